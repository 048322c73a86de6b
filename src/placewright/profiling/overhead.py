"""Measures the runtime's own overhead per op and per handoff between a worker and a GPU."""

from __future__ import annotations

import functools
import time
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.plan import Plan
from placewright.problem import Problem
from placewright.profiling.timing import time_call
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.cluster import Cluster
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice

OVERHEAD_KEY = "the runtime's own time for an op"
"""The timing cache's key of the overhead."""
CHAIN_OPS, TIMED_STEPS = 64, 40


def measure_overhead(device: RealDevice, cluster: Cluster) -> float:
    """Run a chain of the smallest ops under a plan: seconds per op, less the op's own.

    The faster steps count, so that a busy machine does not distort it.
    """
    torch = load_torch()
    model, example, program = _relu_chain()
    if device.is_gpu:  # alone, so that the input is on it from the start
        cluster = cluster.subset([device.name])
    problem = Problem(program.graph, cluster)  # workers: all of them, since they share the cores
    plan = Plan.of(problem, np.full(len(program.graph), cluster.position[device.name]))
    device_map = None if device.is_gpu else {device.name: f"cpu:{device.threads}"}
    step_seconds = _step_seconds(program, model, plan, example, device_map)
    op_seconds = device.run(lambda: _isolated_seconds(torch, device))
    return max(0.0, step_seconds / CHAIN_OPS - op_seconds)


def measure_handoff(cluster: Cluster, host: str, gpu: str) -> float:
    """Seconds to pass a small tensor to the other device, measured by a ping-pong of ops."""
    model, example, program = _relu_chain()
    problem, device_index = Problem(program.graph, cluster), cluster.position
    op_number = np.cumsum([op.kind != "input" for op in program.graph.ops])
    alternating = np.where(op_number % 2, device_index[gpu], device_index[host])
    seconds = [
        _step_seconds(program, model, Plan.of(problem, problem.legalize(placement)), example)
        for placement in (
            alternating,
            *(np.full_like(op_number, device_index[name]) for name in (host, gpu)),
        )
    ]
    return max(0.0, (seconds[0] - (seconds[1] + seconds[2]) / 2) / CHAIN_OPS)


def _step_seconds(
    program: Any, model: Any, plan: Plan, example: Any, device_map: Mapping[str, str] | None = None
) -> float:
    """Seconds of a step: the first quartile."""
    from placewright.runtime.executor import Executor

    torch = load_torch()
    seconds, thread_count = [], torch.get_num_threads()
    try:
        # Replayed ops have no such overhead; ops that are issued one by one do.
        with Executor(program, model, plan, device_map, cuda_graphs=False) as executor:
            for _ in range(TIMED_STEPS):
                start = time.perf_counter()
                executor(example)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(thread_count)
    return quantiles(seconds[TIMED_STEPS // 4 :], n=4)[0]


@functools.cache
def _relu_chain() -> tuple[Any, Any, Program]:
    """A chain of the smallest ops, its argument and its program, which every device runs."""
    from placewright.runtime.program.program import build_program

    torch: Any = load_torch()

    class ReluChain(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            for _ in range(CHAIN_OPS):
                x = torch.relu(x)
            return x

    model, example = ReluChain().eval(), torch.ones(8)
    return model, example, build_program(model, (example,))


def _isolated_seconds(torch: Any, device: RealDevice) -> float:
    tensor = torch.ones(8, device=device.torch_device)
    timing = time_call(device, lambda _: torch.ops.aten.relu.default(tensor), 0.05)
    return max(timing.seconds, timing.issue)
