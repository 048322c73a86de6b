"""Exporters: write a plan for another runtime, and estimate what that loses."""

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
"""The targets of an export, and what each writes."""

WRITE_MODELS = ("onnxruntime", "onnx", "tensorflow")
"""Targets that write the model's file with the plan in it."""

_ONNX, _TENSORFLOW = (".onnx",), (".pb", ".pbtxt")
_NOT_LOADED = {
    **dict.fromkeys(("accelerate", "pipelining", "llama.cpp", "vllm"), _ONNX + _TENSORFLOW),
    **dict.fromkeys(("onnx", "onnxruntime"), _TENSORFLOW),
    "tensorflow": _ONNX,
}
"""Endings of models that a target cannot load."""

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
    """Export a plan to another runtime, with notes on what that runtime cannot express.

    Args:
        to: One of `TARGETS`.
        model: The file that the graph was read from, for `onnxruntime`, `onnx` and `tensorflow`.
        names: The target's names of devices, e.g. `{"gpu0": "1"}`; by default devices are
            numbered in the cluster's order.
        dims: The `dims` of `from_onnx`, if any.
        shapes: The `shapes` of `from_onnx` or `from_tensorflow`, if any.

    Raises:
        ConfigError: The target is unknown, or needs the model's file.
        PlanError: The plan belongs to another graph, or the target does not run such a model.
    """
    if to not in TARGETS:
        raise ConfigError(f"no target is named {to!r}: {nearest(to, TARGETS)}")
    suffix = "" if model is None else Path(model).suffix
    if to in _NOT_LOADED and suffix in _NOT_LOADED[to]:
        others = [name for name in TARGETS if suffix not in _NOT_LOADED.get(name, ())]
        raise ConfigError(
            f"{to} loads no {suffix} files, and {str(model)!r} is one: export to "
            f"{', '.join(others)}, or read the PyTorch model"
        )
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
