"""Tasks of the tests: a worker imports them from here."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scale:
    """Multiplies each number; `seconds` is how long an item takes."""

    factor: int = 2
    seconds: float = 0.0

    def __call__(self, problem: Any, items: Any) -> list[int]:
        time.sleep(self.seconds * len(items))
        return [self.factor * item for item in items]


@dataclass(frozen=True)
class Pid:
    """The process that each item was computed in."""

    seconds: float = 0.0

    def __call__(self, problem: Any, items: Any) -> list[int]:
        time.sleep(self.seconds * len(items))
        return [os.getpid() for _ in items]
