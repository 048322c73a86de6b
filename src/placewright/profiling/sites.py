"""Where PyTorch runs a device's ops: a thread with cores of its own, or a GPU."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from placewright.profiling.timing import (
    Timing,
    time_on_gpu,
    time_on_host,
)
from placewright.runtime.host_allocator import run_in_main_arena
from placewright.runtime.machine import load_torch
from placewright.runtime.openmp import release_openmp_team

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.profiling.timing import Call
    from placewright.runtime.machine import Machine

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """Where the ops of one device run.

    Args:
        name: The device's, such as `cpu0` or `gpu0`.
        cores: Of a worker on the host; empty for a GPU.
        index: PyTorch's number of a GPU; -1 for a worker.
        model: The hardware's name; of a worker with its number of cores.
        cache: Bytes of its last cache.
    """

    name: str
    cores: tuple[int, ...]
    index: int
    model: str
    cache: int

    @property
    def on_gpu(self) -> bool:
        return self.index >= 0

    @property
    def device(self) -> Any:
        """PyTorch's own word for it."""
        torch = load_torch()
        return torch.device("cuda", self.index) if self.on_gpu else torch.device("cpu")

    def time(self, call: Call, seconds: float = 0.1, as_in_step: bool = False) -> Timing:
        """Time a call; to be used within `run`.

        Args:
            as_in_step: With other ops before each call; on a GPU the calls alone are timed.
        """
        if self.on_gpu:
            return time_on_gpu(load_torch(), self.index, call, seconds)
        return time_on_host(call, seconds, _interleaved_ops() if as_in_step else None)

    def run(self, work: Callable[[], T]) -> T:
        """What some work gives when it is done here, in a thread of its own.

        On a worker the thread has the worker's cores, and so have those that PyTorch starts for it:
        OpenMP makes a team for every thread that asks, and a team inherits its leader's cores.
        """
        torch = load_torch()
        thread_count = torch.get_num_threads()
        if self.cores:
            release_openmp_team()
        results: list[T] = []
        errors: list[BaseException] = []

        def run_work() -> None:
            try:
                if self.cores:
                    if hasattr(os, "sched_setaffinity"):
                        os.sched_setaffinity(0, self.cores)
                    torch.set_num_threads(len(self.cores))
                with torch.no_grad():
                    results.append(work())
            except BaseException as error:
                errors.append(error)

        def run_thread() -> None:  # as workers of the runtime are
            run_in_main_arena(run_work) if self.cores else run_work()

        thread = threading.Thread(target=run_thread, name=f"placewright-{self.name}", daemon=True)
        thread.start()
        try:
            thread.join()
        finally:
            torch.set_num_threads(thread_count)
        if errors:
            raise errors[0]
        return results[0]


def sites_of(machine: Machine, workers: int | None = None) -> list[Site]:
    """The sites of a machine: GPUs first, then so many workers (`Machine.usual_workers`).

    A lone worker is `cpu`, several are `cpu0`, `cpu1` and so on, as in a cluster's string.

    Raises:
        ClusterError: There are fewer cores than workers.
    """
    shares = machine.share_cores(machine.default_workers if workers is None else workers)
    sites = [
        Site(f"gpu{at}", (), at, gpu.name, gpu.cache or 64 << 20)
        for at, gpu in enumerate(machine.gpus)
    ]
    for at, cores in enumerate(shares):
        name = "cpu" if len(shares) == 1 else f"cpu{at}"
        model = f"{machine.processor} x{len(cores)}"
        sites.append(Site(name, cores, -1, model, machine.cache))
    return sites


def _interleaved_ops() -> Callable[[], object]:
    """Small ops of several kinds, as they run between two calls of an op in a step.

    They were chosen so that ops of a small decoder, timed one by one after them, take about as long
    as in a run of the decoder: between 1.3 and 2 times as long as in a loop of their own.
    """
    torch = load_torch()
    square, vector = torch.rand(64, 64), torch.rand(1 << 15)

    def run_ops() -> None:
        torch.mm(square, square)
        torch.softmax(square, -1)
        torch.cat((square, square))
        torch.nn.functional.layer_norm(square, (64,))
        torch.add(vector, 1.0)

    return run_ops
