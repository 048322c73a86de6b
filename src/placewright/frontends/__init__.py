"""Frontends: read models of other libraries and public workloads as a Graph or a Problem."""

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
    from placewright.frontends.onnx_graph.frontend import from_onnx, from_onnx_with_nodes
    from placewright.frontends.python_file import from_python
    from placewright.frontends.pytorch.frontend import from_torch

__all__ = [
    "device_hints",
    "from_jax",
    "from_onnx",
    "from_onnx_with_nodes",
    "from_python",
    "from_tensorflow",
    "from_torch",
    "from_workload",
    "is_split",
    "is_workload",
    "read_split",
]

_MODULE_OF = {
    "device_hints": "graphdef.frontend",
    "from_jax": "jaxpr.frontend",
    "from_onnx": "onnx_graph.frontend",
    "from_python": "python_file",
    "from_tensorflow": "graphdef.frontend",
    "from_torch": "pytorch.frontend",
    "from_onnx_with_nodes": "onnx_graph.frontend",
}


def __getattr__(name: str) -> object:
    """Load a frontend on first use: most programs need one of them."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
