"""A case in, the plan that `auto` finds on this machine with half its weights' bytes out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright import Cluster, Constraints, Device, Link, MaxTime, Plan, Problem, simulate, solve
from placewright.runtime.here import here
from placewright.runtime.ops import profile_ops
from placewright.runtime.replayed import as_run
from placewright.runtime.sites import sites_of
from placewright.solvers import Auto

if TYPE_CHECKING:
    from collections.abc import Callable

    from offload_models import Case


@dataclass(frozen=True)
class Found:
    """A plan, and where it says that weights live.

    Args:
        where: Places of devices that are not what their name says: a stand-in for a GPU.
    """

    program: Any
    plan: Plan
    predicted: float
    note: str
    home: Callable[[str], torch.device]
    where: dict[str, str] = field(default_factory=dict)


def planned(
    case: Case,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    small: bool,
    limit: int,
    seconds: float,
    profiling: float = 60.0,
) -> Found:
    """Profile the network's ops here, and search for so many seconds."""
    from placewright.frontends.torch_program import program_of

    program = program_of(model, args, kwargs, name=case.name)
    profile = here()
    sites = sites_of(profile.machine)
    if torch.cuda.is_available():
        cluster, where = profile.cluster, {}
        measured = profile_ops(program, profile.machine, cluster, sites, profiling)
        costs, more = measured.table, f"{measured.worked_out} times worked out; "
    else:
        cluster, where = _stand_in(profile.cluster), {"gpu0": "cpu", "cpu": "cpu"}
        costs, more = None, "the CPU stands in for a GPU; "
    problem = Problem(program.graph, cluster, constraints=Constraints(limits={"gpu0": limit}))
    if costs is not None:
        problem = as_run(replace(problem, costs=costs), profile)
    result = solve(problem, Auto(), MaxTime(3.0 if small else seconds))
    names = {op.name: at for at, op in enumerate(program.graph.ops)}

    def home(name: str) -> torch.device:
        device = result.plan.devices[result.plan.device[names[name]]] if name in names else "gpu0"
        on_gpu = device.startswith("gpu") and torch.cuda.is_available()
        return torch.device("cuda", 0) if on_gpu else torch.device("cpu")

    counts = {use.name: use.ops for use in result.devices}
    note = f"{more}{result.found_by}: {counts}, fits: {result.fits}"
    return Found(program, result.plan, result.step_time, note, home, where)


def predicted_whole(
    case: Case, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> float:
    """What the simulator says of everything on the GPU, without a limit."""
    from placewright.frontends.torch_program import program_of

    program, profile = program_of(model, args, kwargs, name=case.name), here()
    sites = sites_of(profile.machine)
    table = profile_ops(program, profile.machine, profile.cluster, sites).table
    problem = as_run(Problem(program.graph, profile.cluster, table), profile)
    everything = problem.settle(np.zeros(len(program.graph), dtype=np.int32))
    return simulate(problem, Plan.of(problem, everything)).step_time


def _stand_in(cluster: Cluster) -> Cluster:
    """A worker of this machine as a GPU ten times as fast, and a host: to try the code."""
    worker = cluster.devices[0]
    rates = {dtype: 10 * rate for dtype, rate in worker.rates.items()}
    gpu = Device("gpu0", "gpu", "stand-in", 1 << 34, 0, rates, 10 * worker.bandwidth, worker.launch)
    host = replace(worker, name="cpu")
    link = Link(1e10, 1e-5)
    return Cluster("stand-in", (gpu, host), {("gpu0", "cpu"): link, ("cpu", "gpu0"): link})
