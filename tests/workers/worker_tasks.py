"""Tasks of the tests: a worker imports them from here."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placewright.errors import MissingDependency, PlanError


@dataclass(frozen=True)
class Scale:
    """Multiplies each number; `seconds` is how long an item takes."""

    factor: int = 2
    seconds: float = 0.0

    def __call__(self, problem: Any, items: Any) -> list[int]:
        time.sleep(self.seconds * len(items))
        return [self.factor * item for item in items]


@dataclass(frozen=True)
class Draw:
    """Random numbers from the seed of each item, with the sum of the problem's op times."""

    def __call__(self, problem: Any, items: Any) -> list[np.ndarray]:
        offset = 0.0 if problem is None else float(problem.arrays.compute.sum())
        return [np.random.default_rng(seed).normal(size=5) + offset for seed in items]


@dataclass(frozen=True)
class Pid:
    """The process that each item was computed in."""

    seconds: float = 0.0

    def __call__(self, problem: Any, items: Any) -> list[int]:
        time.sleep(self.seconds * len(items))
        return [os.getpid() for _ in items]


@dataclass(frozen=True)
class LogAndScale:
    """Writes its process and items to a file per call, then is slow: kill tests read the files."""

    folder: str
    seconds: float

    def __call__(self, problem: Any, items: Any) -> list[int]:
        log = Path(self.folder) / f"{os.getpid()}-{time.monotonic_ns()}"
        log.with_suffix(".part").write_text(" ".join(map(str, items)))
        log.with_suffix(".part").rename(log)
        for _ in items:
            time.sleep(self.seconds)
        return [3 * item for item in items]


@dataclass(frozen=True)
class HangOnce:
    """Hangs the first time that item 0 is computed, and never again."""

    marker: str
    seconds: float = 3600.0

    def __call__(self, problem: Any, items: Any) -> list[int]:
        if 0 in items and not Path(self.marker).exists():
            Path(self.marker).touch()
            time.sleep(self.seconds)
        return [item + 1 for item in items]


@dataclass(frozen=True)
class EndProcess:
    """Ends its worker when it meets an item: with a signal, or by `sys.exit`."""

    item: int
    how: str = "kill"

    def __call__(self, problem: Any, items: Any) -> list[int]:
        if self.item in items:
            if self.how == "exit":
                sys.exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return list(items)


@dataclass(frozen=True)
class Fail:
    """Raises an error for each item that is in `errors`."""

    errors: dict[int, str] = field(default_factory=dict)

    def __call__(self, problem: Any, items: Any) -> list[int]:
        for item in items:
            kind = self.errors.get(item)
            if kind == "plan":
                raise PlanError(f"item {item} is no plan")
            if kind == "missing":
                raise MissingDependency("nothing", "none")
            if kind == "strange":
                raise StrangeError(item, "two arguments")
        return list(items)


class StrangeError(Exception):
    """An error that pickle writes and cannot read."""

    def __init__(self, item: int, text: str) -> None:
        super().__init__(f"item {item}: {text}")


@dataclass(frozen=True)
class WrongCount:
    """Forgets the last result."""

    def __call__(self, problem: Any, items: Any) -> list[int]:
        return list(items)[:-1]


@dataclass(frozen=True)
class Zeros:
    """As many bytes per item as it says."""

    def __call__(self, problem: Any, items: Any) -> list[bytes]:
        return [bytes(item) for item in items]


@dataclass(frozen=True)
class ProblemLoads:
    """How often the process has read a `CountedProblem`, by its name."""

    def __call__(self, problem: Any, items: Any) -> list[tuple[int, str, int]]:
        return [(os.getpid(), problem.name, LOADS[problem.name]) for _ in items]


LOADS: dict[str, int] = {}


class CountedProblem:
    """A problem that counts how often this process has read it."""

    def __init__(self, name: str, size: int = 0) -> None:
        self.name, self.content = name, bytes(size)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        LOADS[self.name] = LOADS.get(self.name, 0) + 1


@dataclass(frozen=True)
class ThreadCounts:
    """The threads of OpenMP and BLAS that the environment allows."""

    def __call__(self, problem: Any, items: Any) -> list[str | None]:
        return [os.environ.get("OMP_NUM_THREADS") for _ in items]


@dataclass(frozen=True)
class StartChild:
    """Starts a process that inherits everything, and then hangs."""

    marker: str

    def __call__(self, problem: Any, items: Any) -> list[int]:
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
        Path(self.marker).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(3600)
        return [child.pid for _ in items]


@dataclass(frozen=True)
class Print:
    """Prints to standard output, which belongs to the driver's answers."""

    def __call__(self, problem: Any, items: Any) -> list[int]:
        for item in items:
            print(item, flush=True)
        return list(items)


@dataclass(frozen=True)
class PageFaults:
    """How many pages the process fetched while it made and filled some arrays."""

    megabytes: int

    def __call__(self, problem, items):
        counts = []
        for item in items:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            arrays = [np.full(2**20, item, dtype=np.uint8) for _ in range(self.megabytes)]
            assert all(array[-1] == item for array in arrays)
            del arrays
            counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return counts
