"""Exporters: a plan in the terms of another runtime, and what that costs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, nearest
from placewright.exporters.base import (
    ExportCost,
    ExportedPlan,
    ExportRequest,
    PlanMetrics,
    fit_plan,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem

__all__ = ["TARGETS", "WRITE_MODELS", "ExportCost", "ExportedPlan", "PlanMetrics", "export"]

TARGETS: Mapping[str, str] = {
    "accelerate": "device_map of Hugging Face Accelerate and Transformers, as Python",
    "pipelining": "split points of torch.distributed.pipelining, as Python",
    "onnxruntime": "an ONNX file with layer annotations, and the session's settings",
    "onnx": "an ONNX file with device configurations (IR version 11)",
    "openvino": "affinities of OpenVINO's HETERO device, as JSON",
    "llama.cpp": "flags of llama.cpp, for decoder models",
    "vllm": "the layers of each pipeline stage of vLLM, for decoder models",
    "tensorflow": "a GraphDef with devices",
}
"""What a plan can be exported to, and what comes out."""

WRITE_MODELS = ("onnxruntime", "onnx", "tensorflow")
"""Targets whose export is the model's own file, written anew."""

_MODULES = {
    "accelerate": "accelerate_map",
    "llama.cpp": "llama_cpp",
    "onnx": "onnx_devices",
    "onnxruntime": "onnxruntime_session",
    "openvino": "openvino_hetero",
    "pipelining": "pipelining",
    "tensorflow": "graphdef",
    "vllm": "vllm_stages",
}


def export(
    problem: Problem,
    plan: Plan,
    to: str,
    model: str | Path | None = None,
    names: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ExportedPlan:
    """A plan in another runtime's own words, with what that runtime cannot express.

    Args:
        to: One of `TARGETS`.
        model: The file that the graph was read from, for `onnxruntime`, `onnx` and `tensorflow`.
        names: What the target calls a device, such as `{"gpu0": "1"}`; by default devices are
            numbered in the cluster's order.
        dims: What `from_onnx` was given, if anything.
        shapes: What `from_onnx` or `from_tensorflow` was given, if anything.

    Raises:
        ConfigError: The target is unknown, or needs the model's file.
        PlanError: The plan belongs to another graph, or the target takes no such model.
    """
    if to not in TARGETS:
        raise ConfigError(f"no target is named {to!r}: {nearest(to, TARGETS)}")
    request = ExportRequest(
        problem,
        fit_plan(problem, plan),
        None if model is None else Path(model),
        names or {},
        dims or {},
        shapes or {},
    )
    exporter = importlib.import_module(f"{__name__}.{_MODULES[to]}")
    exported: ExportedPlan = exporter.export(request)
    return exported
