"""Frontends: a model of another library or a public workload in, a Graph or a Problem out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from placewright.frontends.workloads.frontend import (
    from_workload,
    is_split,
    is_workload,
    read_split,
)

if TYPE_CHECKING:
    from placewright.frontends.graphdef.frontend import device_hints, from_tensorflow
    from placewright.frontends.jaxpr.frontend import from_jax
    from placewright.frontends.onnx_graph.frontend import from_onnx, nodes_of_onnx
    from placewright.frontends.python_file import from_python
    from placewright.frontends.pytorch.frontend import from_torch

__all__ = [
    "device_hints",
    "from_jax",
    "from_onnx",
    "from_python",
    "from_tensorflow",
    "from_torch",
    "from_workload",
    "is_split",
    "is_workload",
    "nodes_of_onnx",
    "read_split",
]

_HOME = {
    "device_hints": "graphdef.frontend",
    "from_jax": "jaxpr.frontend",
    "from_onnx": "onnx_graph.frontend",
    "from_python": "python_file",
    "from_tensorflow": "graphdef.frontend",
    "from_torch": "pytorch.frontend",
    "nodes_of_onnx": "onnx_graph.frontend",
}


def __getattr__(name: str) -> object:
    """A frontend loads on first use: most people need one of them."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
