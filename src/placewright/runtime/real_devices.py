"""Real devices: the worker thread or CUDA stream behind each device name of a plan.

`cpu`, `cpu0`, `cpu1` … are worker threads, each with its own cores; `gpu0` is the first CUDA
device; `gpu0.0` and `gpu0.1` are two streams of it. A device map gives any name another device,
written as `cpu`, `cpu:2` (two cores), `cuda:0`, `cuda:0/1` (its second stream) or `cuda:0/1@64`
(that stream confined to 64 multiprocessors).

Devices are measured and run on the same cores: `share_cores` alone decides which.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from placewright.device import HOST_SEPARATOR
from placewright.errors import ClusterError, ConfigError, ExecutionError
from placewright.frontends.pytorch.torch_version import check_running
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.host_allocator import run_in_main_arena
from placewright.runtime.machine import available_cores, load_torch
from placewright.runtime.openmp import release_openmp_team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placewright.plan import Plan
    from placewright.runtime.machine import Machine

T = TypeVar("T")

_DEVICE_NAME = re.compile(r"(?P<kind>cpu|gpu|cuda)(?P<index>\d*)(?:\.(?P<stream>\d+))?$", re.I)
_DEVICE_SPEC = re.compile(
    r"(?P<kind>cpu|cuda)(?::(?P<index>\d+))?(?:/(?P<stream>\d+))?(?:@(?P<parts>\d+))?$"
)
_GPU_CACHE = 64 << 20  # bytes, where PyTorch does not report the L2 cache


@dataclass(frozen=True)
class RealDevice:
    """Where the ops of one device of a plan run.

    Args:
        name: The device's name in the plan.
        kind: `cpu` for a worker thread, `cuda` for a stream of a GPU.
        index: PyTorch's number of the GPU.
        stream: Which of that GPU's streams.
        multiprocessors: How many of the GPU's it is confined to; 0: all.
        cores: The cores that a worker keeps to; empty: any.
        threads: How many threads an op of a worker uses.
        model: The hardware's name, a worker's with its number of cores; known of a `Machine` only.
        cache: Bytes of its last cache; likewise.
    """

    name: str
    kind: str = "cpu"
    index: int = 0
    stream: int = 0
    multiprocessors: int = 0
    cores: tuple[int, ...] = ()
    threads: int = 1
    model: str = ""
    cache: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether it is a stream of a GPU."""
        return self.kind == "cuda"

    @property
    def torch_name(self) -> str:
        """PyTorch's name of the device."""
        return current_backend().device_name(self.index) if self.is_gpu else "cpu"

    @property
    def torch_device(self) -> Any:
        """PyTorch's `torch.device`."""
        return load_torch().device(self.torch_name)

    def bind_thread(self) -> None:
        """Keep the calling thread to a worker's cores, and its ops to as many threads."""
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)  # of this thread alone
        # OpenMP keeps this number thread by thread, so workers may differ.
        load_torch().set_num_threads(self.threads)

    def run(self, work: Callable[[], T]) -> T:
        """Run some work in a thread of its own, set up as the runtime sets up this device.

        On a worker the thread has the worker's cores, and so have those that PyTorch starts for it:
        OpenMP makes a team for every thread that asks, and a team inherits its leader's cores.
        """
        torch = load_torch()
        thread_count = torch.get_num_threads()
        if not self.is_gpu:
            release_openmp_team()
        results: list[T] = []
        errors: list[BaseException] = []

        def run_work() -> None:
            try:
                if not self.is_gpu:
                    self.bind_thread()
                with torch.no_grad():
                    results.append(work())
            except BaseException as error:
                errors.append(error)

        def run_thread() -> None:  # as workers of the runtime are run
            run_work() if self.is_gpu else run_in_main_arena(run_work)

        thread = threading.Thread(target=run_thread, name=f"placewright-{self.name}", daemon=True)
        thread.start()
        try:
            thread.join()
        finally:
            torch.set_num_threads(thread_count)
        if errors:
            raise errors[0]
        return results[0]


def find_real_devices(
    names: Sequence[str], device_map: Mapping[str, str] | None = None, pin_cores: bool = True
) -> tuple[RealDevice, ...]:
    """The real device behind each name, in order.

    Args:
        device_map: Real devices of some names, as written above; the others are found by name.
        pin_cores: Keep each worker to its own cores.

    Raises:
        ConfigError: A name tells no real device, or an entry of the map is written wrongly.
        ExecutionError: The installed version of PyTorch does not run plans.
    """
    check_running(load_torch().__version__)
    devices = [parse_device(name, (device_map or {}).get(name)) for name in names]
    unknown = sorted(set(device_map or ()) - set(names))
    if unknown:
        raise ConfigError(
            f"the device map has {unknown[0]!r}: the plan's devices are {', '.join(names)}"
        )
    shared = share_cores(devices, available_cores())
    return tuple(shared if pin_cores else [replace(device, cores=()) for device in shared])


def plan_devices(plan: Plan, device_map: Mapping[str, str] | None = None) -> tuple[RealDevice, ...]:
    """The real device behind each device of a plan, in order.

    A GPU that the plan uses for nothing and that this machine does not have is an idle worker, so
    that the plan runs without it.

    Raises:
        ConfigError: A name tells no real device, or an entry of the map is written wrongly.
    """
    devices = find_real_devices(plan.device_names, device_map)
    used, count = set(plan.placement.tolist()), current_backend().device_count()
    return tuple(
        RealDevice(device.name)
        if device.is_gpu and device.index >= count and position not in used
        else device
        for position, device in enumerate(devices)
    )


def check_gpus(real_devices: Sequence[RealDevice]) -> None:
    """Check that this machine has the GPUs among these devices.

    Raises:
        ExecutionError: One is missing.
    """
    count = current_backend().device_count()
    for real_device in real_devices:
        if real_device.is_gpu and real_device.index >= count:
            raise ExecutionError(
                f"device {real_device.name!r} is CUDA device {real_device.index}, but this "
                f"machine has {count}: map it to another one with "
                f"--device-map {real_device.name}=cpu or "
                f"device_map={{{real_device.name!r}: 'cpu'}}"
            )


def machine_devices(machine: Machine, workers: int | None = None) -> list[RealDevice]:
    """The real devices of a machine: its GPUs, then CPU workers that share its cores.

    A lone worker is `cpu`, several are `cpu0`, `cpu1` and so on, as in a cluster's string.

    Args:
        workers: How many; None: `Machine.default_workers`.

    Raises:
        ClusterError: There are fewer cores than workers.
    """
    workers = machine.default_workers if workers is None else workers
    count = len(machine.cores) - _reserved_cores(len(machine.cores), bool(machine.gpus))
    if not 1 <= workers <= count:
        raise ClusterError(
            f"{workers} CPU workers on a machine of {count} cores: expected 1 to {count}"
        )
    gpus = [
        RealDevice(f"gpu{index}", "cuda", index, model=gpu.name, cache=gpu.cache or _GPU_CACHE)
        for index, gpu in enumerate(machine.gpus)
    ]
    names = ["cpu"] if workers == 1 else [f"cpu{index}" for index in range(workers)]
    hosts = [RealDevice(name, threads=0, cache=machine.cache) for name in names]
    return [
        device if device.is_gpu else replace(device, model=f"{machine.processor} x{device.threads}")
        for device in share_cores([*gpus, *hosts], machine.cores)
    ]


def share_cores(devices: Sequence[RealDevice], cores: Sequence[int]) -> list[RealDevice]:
    """Give each worker cores of its own, neighbours together.

    A worker gets as many cores as it has threads. Those whose number of threads is 0 share the rest
    equally; if cores are left over, the first of them get one more each. Beside GPUs a few cores
    are left to the issuing thread. A lone worker without GPUs may use any core, and so may a worker
    for which too few cores are left.
    """
    workers = [device for device in devices if not device.is_gpu]
    has_gpu = len(workers) < len(devices)
    requested = sum(device.threads for device in workers)
    free = max(0, len(cores) - _reserved_cores(len(cores), has_gpu) - requested)
    share, remainder = divmod(free, max(1, sum(device.threads == 0 for device in workers)))
    start, shared = 0, []
    for device in devices:
        if device.is_gpu:
            shared.append(device)
            continue
        threads = device.threads
        if not threads:
            threads = max(1, share + (remainder > 0))
            remainder -= 1
        own_cores = tuple(cores[start : start + threads])
        start += threads
        is_pinned = len(own_cores) == threads and (has_gpu or len(workers) > 1)
        shared.append(replace(device, threads=threads, cores=own_cores if is_pinned else ()))
    return shared


def issuing_cores(cores: int) -> int:
    """How many of a host's cores are left to the thread that issues to GPUs, and to their driver.

    An op on all cores waits for its slowest thread: taking one core from it delays all of it.
    """
    return 2 if cores >= 8 else 1 if cores > 2 else 0


def _reserved_cores(cores: int, has_gpu: bool) -> int:
    return issuing_cores(cores) if has_gpu else 0


def parse_device(name: str, spec: str | None, local_name: str | None = None) -> RealDevice:
    """The real device behind a name.

    Args:
        spec: What the device map has for it.
        local_name: Its name on this host, if that is another one.

    Raises:
        ConfigError: The name tells no real device, or the map's entry is written wrongly.
    """
    if spec is None:
        match = _DEVICE_NAME.match(local_name or name)
        if match is None:
            if HOST_SEPARATOR in name:
                raise ConfigError(
                    f"device {name!r} is one of several hosts: start a process on each with "
                    "torchrun (or torch.distributed.init_process_group), or map it to a device of "
                    "this machine in the device map"
                )
            raise ConfigError(
                f"device {name!r} is no device of this machine: expected a name such as cpu0 or "
                "gpu0, or an entry in the device map"
            )
        if match["kind"].lower() == "cpu":
            return RealDevice(name, threads=0)
        return RealDevice(name, "cuda", int(match["index"] or 0), int(match["stream"] or 0))
    match = _DEVICE_SPEC.match(spec)
    if match is None:
        raise ConfigError(
            f"device {name!r} is mapped to {spec!r}: expected cpu, cpu:2, cuda:0 or cuda:0/1@64"
        )
    if match["kind"] == "cpu":
        return RealDevice(name, threads=int(match["index"] or 0))
    multiprocessors = int(match["parts"] or 0)
    return RealDevice(
        name, "cuda", int(match["index"] or 0), int(match["stream"] or 0), multiprocessors
    )


def spare_cores(devices: Sequence[RealDevice]) -> tuple[int, ...]:
    """The cores that no worker keeps to, for the issuing thread; none where no worker is pinned."""
    worker_cores = {core for device in devices for core in device.cores}
    return (
        tuple(core for core in available_cores() if core not in worker_cores)
        if worker_cores
        else ()
    )


@contextmanager
def cpu_affinity(cores: Sequence[int]) -> Iterator[None]:
    """Keep this thread to these cores inside the block; without any, leave it as it is.

    A thread that is woken by another one runs on that one's core if it may. If that is the core of
    an OpenMP team, the whole team waits.
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
