"""The runtime: a model and a Plan in, the model run under it on real devices out.

`script` says what each device does, `workers` and `streams` do it, `homes` has the weights,
`executor` runs steps, `placed` makes it a model again, `checking` and `measure` hold it to its
word.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.runtime.checking import Verified as Verified
    from placewright.runtime.checking import verify as verify
    from placewright.runtime.executor import Executor as Executor
    from placewright.runtime.measure import Measured as Measured
    from placewright.runtime.measure import Meter as Meter
    from placewright.runtime.measure import time_steps as time_steps
    from placewright.runtime.placed import Placed as Placed
    from placewright.runtime.placed import apply as apply
    from placewright.runtime.ranking import Remeasured as Remeasured
    from placewright.runtime.ranking import rerank as rerank

_HOME = {
    "Executor": "executor",
    "Measured": "measure",
    "Meter": "measure",
    "Placed": "placed",
    "Remeasured": "ranking",
    "Verified": "checking",
    "apply": "placed",
    "rerank": "ranking",
    "time_steps": "measure",
    "verify": "checking",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    """Everything here needs PyTorch, so it loads on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
