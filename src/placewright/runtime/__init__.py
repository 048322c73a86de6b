"""The runtime: a model and a Plan in, the model run under it on real devices out.

`script` says what each device does, `workers` and `streams` do it, `homes` has the weights,
`executor` runs steps, `placed` makes it a model again, `checking` and `measure` hold it to its
word.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.runtime.executor import Executor as Executor
    from placewright.runtime.meter import Measured as Measured
    from placewright.runtime.meter import Meter as Meter
    from placewright.runtime.meter import time_steps as time_steps
    from placewright.runtime.placed_model import Placed as Placed
    from placewright.runtime.placed_model import apply as apply
    from placewright.runtime.verification import Verified as Verified
    from placewright.runtime.verification import verify as verify

_HOME = {
    "Executor": "executor",
    "Measured": "meter",
    "Meter": "meter",
    "Placed": "placed_model",
    "Verified": "verification",
    "apply": "placed_model",
    "time_steps": "meter",
    "verify": "verification",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    """Everything here needs PyTorch, so it loads on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
