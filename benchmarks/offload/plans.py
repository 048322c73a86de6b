"""Plans of `auto` for a case on this machine, with half of its weights' bytes as the limit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright import Cluster, Constraints, Device, Link, MaxTime, Plan, Problem, simulate
from placewright.profiling.as_executed import executed_problem
from placewright.profiling.host_sensitivity import HOST_SCALES, host_variants
from placewright.profiling.machine_profile import profile_machine
from placewright.profiling.op_costs import profile_ops
from placewright.runtime.real_devices import machine_devices
from placewright.solvers import Auto

if TYPE_CHECKING:
    from benchmarks.offload.models import Case


@dataclass(frozen=True)
class Candidate:
    """A plan to be measured.

    Args:
        device_map: Real devices of those that are not what their name says: a stand-in for a GPU.
    """

    program: Any
    plan: Plan
    predicted: float
    note: str
    device_map: dict[str, str] = field(default_factory=dict)

    def device_of(self, name: str) -> torch.device:
        """The device that the weight of that name is stored on."""
        names = {op.name: at for at, op in enumerate(self.program.graph.ops)}
        device = (
            self.plan.device_names[self.plan.placement[names[name]]] if name in names else "gpu0"
        )
        on_gpu = device.startswith("gpu") and torch.cuda.is_available()
        return torch.device("cuda", 0) if on_gpu else torch.device("cpu")


def find_candidates(
    case: Case,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    small: bool,
    limit: int,
    seconds: float,
    profiling: float = 60.0,
) -> list[Candidate]:
    """Profile the network's ops on this machine, and search: plans to be measured."""
    from placewright.runtime.program.program import build_program

    program = build_program(model, args, kwargs, name=case.name)
    profile = profile_machine()
    sites = machine_devices(profile.machine)
    if torch.cuda.is_available():
        cluster, device_map = profile.cluster, {}
        limits = {"gpu0": limit}
        measured = profile_ops(program, profile.machine, cluster, sites, profiling, limits=limits)
        costs, more = measured.table, f"{measured.estimated} op times estimated; "
    else:
        cluster, device_map = _stand_in(profile.cluster), {"gpu0": "cpu", "cpu": "cpu"}
        costs, more = None, "the CPU stands in for a GPU; "
    # PyTorch's limit also holds the workspaces that the reserve is for.
    usable = limit - cluster.devices[cluster.position["gpu0"]].reserve
    problem = Problem(program.graph, cluster, constraints=Constraints(limits={"gpu0": usable}))
    if costs is not None:
        problem = executed_problem(replace(problem, costs=costs), profile)
    stop = MaxTime(1.0 if small else seconds / len(HOST_SCALES))
    candidates = []
    for plan in host_variants(problem, Auto(), stop):
        timeline = simulate(problem, plan)
        used = Counter(plan.device_names[at] for at in plan.placement[problem.arrays.scheduled])
        note = f"{more}ops {dict(used)}, fits: {timeline.fits}"
        candidates.append(Candidate(program, plan, timeline.step_time, note, device_map))
    return candidates


def predicted_whole(
    case: Case, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> float:
    """The simulated step time of everything on the GPU, without a limit."""
    from placewright.runtime.program.program import build_program

    program, profile = build_program(model, args, kwargs, name=case.name), profile_machine()
    sites = machine_devices(profile.machine)
    table = profile_ops(program, profile.machine, profile.cluster, sites).table
    problem = executed_problem(Problem(program.graph, profile.cluster, table), profile)
    everything = problem.legalize(np.zeros(len(program.graph), dtype=np.int32))
    return simulate(problem, Plan.of(problem, everything)).step_time


def _stand_in(cluster: Cluster) -> Cluster:
    """A worker of this machine as a GPU ten times as fast, and a host: to test the code."""
    worker = cluster.devices[0]
    rates = {dtype: 10 * rate for dtype, rate in worker.rates.items()}
    gpu = Device(
        "gpu0",
        "gpu",
        "stand-in",
        1 << 34,
        0,
        rates,
        10 * worker.memory_bandwidth,
        worker.launch_overhead,
    )
    host = replace(worker, name="cpu")
    link = Link(1e10, 1e-5)
    return Cluster("stand-in", (gpu, host), {("gpu0", "cpu"): link, ("cpu", "gpu0"): link})
