"""The names of a plan's devices in, the real devices that stand behind them out.

`cpu`, `cpu0`, `cpu1` … are worker threads, each with its own cores; `gpu0` is the first CUDA
device; `gpu0.0` and `gpu0.1` are two streams of it. Any name can be given another place, written as
`cpu`, `cpu:2` (of two cores), `cuda:0`, `cuda:0/1` (its second stream) or `cuda:0/1@64` (that
stream confined to 64 multiprocessors).
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.errors import ConfigError
from placewright.runtime.machine import own_cores, spared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAMED = re.compile(r"(?P<kind>cpu|gpu|cuda)(?P<index>\d*)(?:\.(?P<stream>\d+))?$", re.I)
_WRITTEN = re.compile(
    r"(?P<kind>cpu|cuda)(?::(?P<index>\d+))?(?:/(?P<stream>\d+))?(?:@(?P<parts>\d+))?$"
)


@dataclass(frozen=True)
class Place:
    """Where the ops of one device of a plan really run.

    Args:
        name: What the plan calls it.
        kind: `cpu` for a worker thread, `cuda` for a stream of a GPU.
        index: Which GPU.
        stream: Which of that GPU's streams.
        multiprocessors: How many of the GPU's it is confined to; 0: all.
        cores: The cores that a worker may use; empty: any.
        threads: How many threads an op of a worker uses.
    """

    name: str
    kind: str = "cpu"
    index: int = 0
    stream: int = 0
    multiprocessors: int = 0
    cores: tuple[int, ...] = ()
    threads: int = 1

    @property
    def torch_name(self) -> str:
        """What PyTorch calls the device."""
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"


def find_places(
    names: Sequence[str], where: Mapping[str, str] | None = None, pinned: bool = True
) -> tuple[Place, ...]:
    """The place of each device, in turn.

    Args:
        where: Places of some of them, as written above; others are found by their names.
        pinned: Let each worker keep to its own cores.

    Raises:
        ConfigError: A name says no place, or a place is written wrongly.
    """
    found = [_place(name, (where or {}).get(name)) for name in names]
    unknown = sorted(set(where or ()) - set(names))
    if unknown:
        raise ConfigError(
            f"a place is given for {unknown[0]!r}: the devices are {', '.join(names)}"
        )
    return tuple(_share_cores(found, pinned))


def _place(name: str, written: str | None) -> Place:
    if written is None:
        match = _NAMED.match(name)
        if match is None:
            raise ConfigError(
                f"device {name!r} says no place: expected a name such as cpu0 or gpu0, or its place"
            )
        if match["kind"].lower() == "cpu":
            return Place(name, threads=0)
        return Place(name, "cuda", int(match["index"] or 0), int(match["stream"] or 0))
    match = _WRITTEN.match(written)
    if match is None:
        raise ConfigError(
            f"device {name!r} has place {written!r}: expected cpu, cpu:2, cuda:0 or cuda:0/1@64"
        )
    if match["kind"] == "cpu":
        return Place(name, threads=int(match["index"] or 0))
    parts = int(match["parts"] or 0)
    return Place(name, "cuda", int(match["index"] or 0), int(match["stream"] or 0), parts)


def _share_cores(places: Sequence[Place], pinned: bool) -> list[Place]:
    """Give each worker cores of its own, in equal shares unless it asks for a number.

    A lone worker without GPUs beside it may use any core.
    """
    cores = own_cores()
    count = len(cores)
    workers = [place for place in places if place.kind == "cpu"]
    asked = sum(place.threads for place in workers)
    silent = sum(place.threads == 0 for place in workers)
    beside = any(place.kind == "cuda" for place in places)
    issuing = spared(count) if beside else 0
    share = max(1, (count - asked - issuing) // silent) if silent else 0
    first, settled = 0, []
    for place in places:
        if place.kind != "cpu":
            settled.append(place)
            continue
        threads = place.threads or share
        own = tuple(cores[first : first + threads])
        first += threads
        fits = pinned and len(own) == threads and (beside or len(workers) > 1)
        settled.append(replace(place, threads=threads, cores=own if fits else ()))
    return settled


def spare_cores(places: Sequence[Place]) -> tuple[int, ...]:
    """The cores that no worker keeps to, for whoever issues to GPUs; none where none is kept."""
    kept = {core for place in places for core in place.cores}
    return tuple(core for core in own_cores() if core not in kept) if kept else ()


@contextmanager
def keeping_to(cores: Sequence[int]) -> Iterator[None]:
    """Let this thread use these cores alone meanwhile; any, if none is said.

    A thread that wakes where another has just told it something takes the core of one of a team,
    and the whole team waits for that one.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
