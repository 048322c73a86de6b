"""The runtime: runs a model under a Plan on real devices.

`program` holds the ops of a model as functions; `instructions` says what each device does in a
step; `cpu_worker` and `cuda` do it; `weight_storage` puts weights on their devices; `executor` runs
steps; `placed_model` makes a model of it again; `verification` and `meter` check and time plans.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.runtime.apply_plan import apply as apply
    from placewright.runtime.executor import Executor as Executor
    from placewright.runtime.measurement_journal import Measurement as Measurement
    from placewright.runtime.meter import Meter as Meter
    from placewright.runtime.meter import time_steps as time_steps
    from placewright.runtime.placed_model import PlacedModel as PlacedModel
    from placewright.runtime.verification import Verification as Verification
    from placewright.runtime.verification import verify as verify

_MODULE_OF = {
    "Executor": "executor",
    "Measurement": "measurement_journal",
    "Meter": "meter",
    "PlacedModel": "placed_model",
    "Verification": "verification",
    "apply": "apply_plan",
    "time_steps": "meter",
    "verify": "verification",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    """Everything here needs PyTorch, so it loads on first use."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
