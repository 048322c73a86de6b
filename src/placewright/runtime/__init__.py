"""The runtime: a model and a Plan in, the model run under it on real devices out.

`script` says what each device does, `workers` and `streams` do it, `homes` has the weights, and
`executor` runs steps.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.runtime.executor import Executor as Executor

_HOME = {"Executor": "executor"}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    """Everything here needs PyTorch, so it loads on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
