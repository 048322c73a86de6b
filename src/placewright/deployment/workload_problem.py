"""The planning problem of a mix of calls: op times of this machine, or estimates of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster import Cluster
from placewright.device import HOST
from placewright.graph import INPUT
from placewright.plan import Plan
from placewright.problem import Problem
from placewright.profiling.machine_profile import parse_workers, profile_machine
from placewright.profiling.model_profile import machine_problem
from placewright.profiling.op_costs import prepare_overhead, profile_ops
from placewright.runtime.real_devices import machine_devices
from placewright.simulator import simulate
from placewright.workload import Call, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from placewright.deployment.call_capture import CapturedCall
    from placewright.deployment.call_mix import Calls, Generate
    from placewright.profiling.machine_profile import MachineProfile
    from placewright.runtime.program.program import Program
    from placewright.workload_plan import WorkloadPlan


@dataclass(frozen=True, eq=False)
class MachineCosts:
    """Where op times come from.

    Args:
        machine: This machine, measured; None: times are estimated by the cluster's rates.
        measured: Whether ops are measured on this machine; else its rates say their times.
        budget: Seconds that measuring the ops of all calls may take.
    """

    cluster: Cluster
    machine: MachineProfile | None
    workers: int | None
    budget: float
    measured: bool = True

    @classmethod
    def of(cls, cluster: Cluster | str, budget: float, measured: bool = True) -> MachineCosts:
        """The costs of `here`, of `here:workers=2`, or of a cluster."""
        if isinstance(cluster, str) and cluster.partition(":")[0].strip() != "here":
            cluster = Cluster.parse(cluster)
        if isinstance(cluster, Cluster):
            return cls(cluster, None, None, budget)
        workers = parse_workers(cluster)
        machine = profile_machine(workers)
        if measured:
            devices = machine_devices(machine.machine, workers)
            prepare_overhead(machine.machine, machine.cluster, devices)
        return cls(machine.cluster, machine, workers, budget, measured)

    @property
    def text(self) -> str:
        """What it is, in a line."""
        devices = ", ".join(device.name for device in self.cluster.devices)
        if self.machine is None:
            return f"{devices}; op times are estimated"
        return f"{devices} of {self.machine.machine}"

    @property
    def key(self) -> dict[str, str]:
        """What tells it from others, as plain data."""
        machine = "" if self.machine is None else self.machine.machine.key
        return {"cluster": self.cluster.fingerprint, "machine": machine}

    @property
    def has_gpus(self) -> bool:
        return any(device.kind != HOST for device in self.cluster.devices)

    def problem(
        self, program: Program, limits: Mapping[str, int], budget: float | None = None
    ) -> tuple[Problem, str]:
        """The problem of a program, and what was measured for it, in words."""
        if self.machine is None:
            return Problem(program.graph, self.cluster, limits=limits), "nothing"
        if not self.measured:
            return machine_problem(self.machine, program.graph, limits=limits), "nothing"
        devices = machine_devices(self.machine.machine, self.workers)
        ops = profile_ops(
            program,
            self.machine.machine,
            self.machine.cluster,
            devices,
            self.budget if budget is None else budget,
            limits=limits,
        )
        text = f"{ops.measured} ops, {ops.cached} known, {ops.estimated} estimated"
        problem = machine_problem(self.machine, program.graph, ops.table, limits=limits)
        return problem, text


def build_workload(
    calls: Sequence[CapturedCall], costs: MachineCosts, limits: Mapping[str, int]
) -> tuple[Workload, str]:
    """The workload of captured calls, and what was measured for it, in words.

    Calls share the time for measuring; what one call has measured, the others know.
    """
    problems, texts = [], []
    for call in calls:
        problem, text = costs.problem(call.program, limits, costs.budget / len(calls))
        problems.append(Call(call.name, problem, call.count))
        texts.append(f"{call.name}: {text}")
    nothing = "nothing: op times are estimated"
    is_measured = costs.machine is not None and costs.measured
    return Workload(tuple(problems)), "; ".join(texts) if is_measured else nothing


def with_less_memory(workload: Workload, less: Mapping[str, int]) -> Workload:
    """The workload with some bytes less on some devices.

    Args:
        less: Bytes by device; those without a limit keep their memory.
    """
    calls = []
    for call in workload.calls:
        constraints = call.problem.constraints
        limits = {
            name: max(0, limit - less.get(name, 0)) for name, limit in constraints.limits.items()
        }
        problem = replace(call.problem, constraints=replace(constraints, limits=limits))
        calls.append(replace(call, problem=problem))
    return Workload(tuple(calls))


def library_workload(
    model: torch.nn.Module,
    mix: Generate | Calls,
    costs: MachineCosts,
    limits: Mapping[str, int],
) -> Workload:
    """The workload of a model that may have no data, and is left as it is.

    Raises:
        GraphError: A call cannot be captured.
    """
    from placewright.deployment.call_capture import begin_capture, capture_calls

    host_only = replace(
        costs.cluster,
        devices=tuple(device for device in costs.cluster.devices if device.kind == HOST),
        links={},
    )
    placed = begin_capture(model, host_only)
    try:
        return build_workload(capture_calls(placed, mix), costs, limits)[0]
    finally:
        placed.remove()


def device_that_fits(workload: Workload) -> str | None:
    """A GPU that has memory for all weights and for every call, if there is one."""
    for at, device in enumerate(workload.cluster.devices):
        if device.kind == HOST:
            continue
        if all(_fits_device(problem, at) for problem in workload.problems):
            return device.name
    return None


def _fits_device(problem: Problem, device: int) -> bool:
    """Whether a device has memory for a whole call; inputs may come from elsewhere."""
    placement = problem.legalize(np.full(len(problem.graph), device, dtype=np.int32))
    is_input = np.array([op.kind == INPUT for op in problem.graph.ops])
    if not ((placement == device) | is_input).all():
        return False
    return simulate(problem, Plan.of(problem, placement)).fits


def single_device(plan: WorkloadPlan) -> str | None:
    """The device that a plan has everything on, if it is one."""
    used = {
        call_plan.device_names[device]
        for call_plan in plan.plans
        for device in call_plan.placement.tolist()
    }
    return used.pop() if len(used) == 1 else None
