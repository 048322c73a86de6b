"""Real devices: the worker thread or CUDA stream behind each device name of a plan.

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
from placewright.runtime.machine import available_cores, issuing_cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEVICE_NAME = re.compile(r"(?P<kind>cpu|gpu|cuda)(?P<index>\d*)(?:\.(?P<stream>\d+))?$", re.I)
_DEVICE_SPEC = re.compile(
    r"(?P<kind>cpu|cuda)(?::(?P<index>\d+))?(?:/(?P<stream>\d+))?(?:@(?P<parts>\d+))?$"
)


@dataclass(frozen=True)
class RealDevice:
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


def find_real_devices(
    names: Sequence[str], device_map: Mapping[str, str] | None = None, pin_cores: bool = True
) -> tuple[RealDevice, ...]:
    """The place of each device, in turn.

    Args:
        device_map: Places of some of them, as written above; others are found by their names.
        pin_cores: Let each worker keep to its own cores.

    Raises:
        ConfigError: A name says no place, or a place is written wrongly.
    """
    devices = [_parse_device(name, (device_map or {}).get(name)) for name in names]
    unknown = sorted(set(device_map or ()) - set(names))
    if unknown:
        raise ConfigError(
            f"a place is given for {unknown[0]!r}: the devices are {', '.join(names)}"
        )
    return tuple(_share_cores(devices, pin_cores))


def _parse_device(name: str, spec: str | None) -> RealDevice:
    if spec is None:
        match = _DEVICE_NAME.match(name)
        if match is None:
            raise ConfigError(
                f"device {name!r} says no place: expected a name such as cpu0 or gpu0, or its place"
            )
        if match["kind"].lower() == "cpu":
            return RealDevice(name, threads=0)
        return RealDevice(name, "cuda", int(match["index"] or 0), int(match["stream"] or 0))
    match = _DEVICE_SPEC.match(spec)
    if match is None:
        raise ConfigError(
            f"device {name!r} has place {spec!r}: expected cpu, cpu:2, cuda:0 or cuda:0/1@64"
        )
    if match["kind"] == "cpu":
        return RealDevice(name, threads=int(match["index"] or 0))
    multiprocessors = int(match["parts"] or 0)
    return RealDevice(
        name, "cuda", int(match["index"] or 0), int(match["stream"] or 0), multiprocessors
    )


def _share_cores(devices: Sequence[RealDevice], pin_cores: bool) -> list[RealDevice]:
    """Give each worker cores of its own, in equal shares unless it asks for a number.

    A lone worker without GPUs beside it may use any core.
    """
    cores = available_cores()
    count = len(cores)
    workers = [device for device in devices if device.kind == "cpu"]
    requested = sum(device.threads for device in workers)
    unspecified = sum(device.threads == 0 for device in workers)
    has_gpu = any(device.kind == "cuda" for device in devices)
    reserved = issuing_cores(count) if has_gpu else 0
    share = max(1, (count - requested - reserved) // unspecified) if unspecified else 0
    start, assigned = 0, []
    for device in devices:
        if device.kind != "cpu":
            assigned.append(device)
            continue
        threads = device.threads or share
        worker_cores = tuple(cores[start : start + threads])
        start += threads
        fits = pin_cores and len(worker_cores) == threads and (has_gpu or len(workers) > 1)
        assigned.append(replace(device, threads=threads, cores=worker_cores if fits else ()))
    return assigned


def spare_cores(devices: Sequence[RealDevice]) -> tuple[int, ...]:
    """The cores that no worker keeps to, for whoever issues to GPUs; none where none is kept."""
    worker_cores = {core for device in devices for core in device.cores}
    return (
        tuple(core for core in available_cores() if core not in worker_cores)
        if worker_cores
        else ()
    )


@contextmanager
def cpu_affinity(cores: Sequence[int]) -> Iterator[None]:
    """Let this thread use these cores alone meanwhile; any, if none is said.

    A thread that wakes where another has just told it something takes the core of one of a team,
    and the whole team waits for that one.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    previous = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, previous)
