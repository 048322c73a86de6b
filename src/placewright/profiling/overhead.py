"""Sites in, the seconds that our runtime takes beside ops and copies out.

For each op that it issues, and for each tensor that it hands from a host's thread to a GPU or back.
"""

from __future__ import annotations

import time
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.plan import Plan
from placewright.problem import Problem
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.cluster import Cluster
    from placewright.profiling.sites import Site

OVERHEAD = "the runtime's own time for an op"
"""The name under which it is kept beside the ops' times."""
OPS, STEPS = 64, 40


def measure_overhead(site: Site, cluster: Cluster) -> float:
    """Run a chain of the smallest ops under a plan: what a step takes per op, less the op's own.

    The quicker steps count, so that a machine that does other things too is not held against it.
    """
    from placewright.runtime.program.program import program_of

    torch = load_torch()
    model, given = _chain(torch), torch.ones(8)
    program = program_of(model, (given,))
    problem = Problem(program.graph, cluster.only([site.name]))
    plan = Plan.of(problem, np.zeros(len(program.graph), dtype=np.int32))
    where = {site.name: f"cuda:{site.index}" if site.on_gpu else f"cpu:{len(site.cores)}"}
    step = _step(program, model, plan, given, where)
    alone = site.run(lambda: _alone(torch, site))
    return max(0.0, step / OPS - alone)


def measure_handing(cluster: Cluster, host: str, gpu: str) -> float:
    """Seconds until an op's small output is on the other device, beside the ops: of a ping-pong."""
    from placewright.runtime.program.program import program_of

    torch = load_torch()
    model, given = _chain(torch), torch.ones(8)
    program = program_of(model, (given,))
    problem = Problem(program.graph, cluster.only([host, gpu]))
    places = problem.cluster.position
    turns = np.cumsum([op.kind != "input" for op in program.graph.ops])
    to_and_fro = np.where(turns % 2, places[gpu], places[host])
    took = [
        _step(program, model, Plan.of(problem, problem.settle(device)), given)
        for device in (to_and_fro, *(np.full_like(turns, places[one]) for one in (host, gpu)))
    ]
    return max(0.0, (took[0] - (took[1] + took[2]) / 2) / OPS)


def _step(
    program: Any, model: Any, plan: Plan, given: Any, where: Mapping[str, str] | None = None
) -> float:
    """Seconds of a step, of the quicker ones."""
    from placewright.runtime.executor import Executor

    torch = load_torch()
    took, before = [], torch.get_num_threads()
    try:
        # Replayed ops have no such time; those that are issued one by one do.
        with Executor(program, model, plan, where, graphs=False) as executor:
            for _ in range(STEPS):
                began = time.perf_counter()
                executor(given)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                took.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return quantiles(took[STEPS // 4 :], n=4)[0]


def _chain(torch: Any) -> Any:
    class Chain(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            for _ in range(OPS):
                x = torch.relu(x)
            return x

    return Chain().eval()


def _alone(torch: Any, site: Site) -> float:
    one = torch.ones(8, device=site.device)
    took = site.time(lambda _: torch.ops.aten.relu.default(one), 0.05)
    return max(took.seconds, took.issue)
