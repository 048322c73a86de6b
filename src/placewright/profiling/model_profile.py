"""Profiles a model on this machine: the cluster, the time of every op, and their problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.costs import Roofline
from placewright.logs import log_duration
from placewright.problem import Constraints, Problem
from placewright.profiling.as_executed import executed_problem
from placewright.profiling.machine_profile import profile_machine
from placewright.profiling.op_costs import DEFAULT_BUDGET, profile_ops
from placewright.runtime.program_loading import find_program
from placewright.runtime.real_devices import machine_devices
from placewright.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from placewright.cluster import Cluster
    from placewright.costs import CostModel, Table
    from placewright.graph import Graph
    from placewright.problem import Discipline, Objective
    from placewright.profiling.machine_profile import MachineProfile
    from placewright.profiling.op_costs import OpProfile
    from placewright.runtime.program.program import Program

    Limits = Mapping[str, int | str]


@dataclass(frozen=True, eq=False)
class Profile:
    """A model and this machine, measured.

    Args:
        program: The model's ops, ready to run.
        machine: This machine's devices and links.
        ops: The time of every op on every device.
        limits: Bytes that may be used, by device, as given to `profile`.
    """

    program: Program
    machine: MachineProfile
    ops: OpProfile
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def cluster(self) -> Cluster:
        """This machine's devices and links."""
        return self.machine.cluster

    @property
    def costs(self) -> Table:
        """The seconds of every op on every device."""
        return self.ops.table

    def problem(
        self,
        limits: Mapping[str, int | str] | None = None,
        constraints: Constraints | None = None,
        objective: Objective = "step",
        discipline: Discipline = "in order",
    ) -> Problem:
        """The problem of placing the model on this machine, as the runtime will run it.

        Args:
            limits: Bytes or text such as `"4GiB"`, by device; by default those of the profile.
        """
        return machine_problem(
            self.machine,
            self.graph,
            self.costs,
            limits=self.limits if limits is None else limits,
            constraints=constraints,
            objective=objective,
            discipline=discipline,
        )


def profile(
    model: torch.nn.Module | str,
    args: Sequence[Any] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
    optimizer: str | None = None,
    *,
    limits: Limits | Callable[[Cluster], Limits] | None = None,
    workers: int | None = None,
    budget: str | float = DEFAULT_BUDGET,
    refresh: bool = False,
    notify: Callable[[str], None] | None = None,
    progress: Callable[[str, float | None], None] = lambda text, share: None,
) -> Profile:
    """Measure this machine, and every op of a model on each of its devices.

    What was measured before on this machine is read from a cache.

    Args:
        model: A PyTorch model with `args` and `kwargs` of one call, or text: `model.py:build` or a
            network of the zoo.
        training: Profile a training step, not one call; a network's name says so itself.
        optimizer: `sgd` (the default), `momentum` or `adam`.
        limits: Memory that may be used, by device: bytes or text such as `"4GiB"`; or a function of
            the cluster. If the weights exceed it, the host is measured while it streams weights.
        workers: CPU devices to make of the cores; by default 1 next to GPUs, else 2.
        budget: Time budget for measuring ops: seconds or text.
        refresh: Measure again what was measured before.
        notify: Called with a line of text before something that takes long.
        progress: Called with what is measured and the share of the budget that is used.

    Raises:
        PlacewrightError: The model cannot be captured, or there are fewer cores than workers.
        MissingDependency: PyTorch is not installed.
    """
    # The program first: a model's file may change settings that the machine's key has.
    program = _program(model, args, kwargs, training, optimizer)
    machine = profile_machine(workers, refresh, notify, progress=lambda text: progress(text, None))
    real_devices = machine_devices(machine.machine, workers)
    if notify is not None:
        notify(f"measuring the ops of {program.graph.name}: up to a minute, once")
    seconds = parse_seconds(budget) if isinstance(budget, str) else budget
    sizes = Constraints(limits=limits(machine.cluster) if callable(limits) else limits).limits
    with log_duration(f"measuring the ops of {program.graph.name}"):
        ops = profile_ops(
            program,
            machine.machine,
            machine.cluster,
            real_devices,
            seconds,
            refresh,
            progress,
            sizes,
        )
    return Profile(program, machine, ops, sizes)


def machine_problem(
    machine: MachineProfile,
    graph: Graph,
    costs: CostModel | None = None,
    *,
    limits: Mapping[str, int | str] | None = None,
    constraints: Constraints | None = None,
    objective: Objective = "step",
    discipline: Discipline = "in order",
) -> Problem:
    """The problem of placing a graph on this machine, as the runtime will run it.

    Args:
        costs: Measured op times; without them a roofline with all of the measured rates, which are
            what kernels reach and not a data sheet's.
    """
    problem = Problem(
        graph,
        machine.cluster,
        Roofline(compute=1.0, memory=1.0) if costs is None else costs,
        constraints,
        discipline,
        objective,
        limits=limits,
    )
    return executed_problem(problem, machine)


def _program(
    model: torch.nn.Module | str,
    args: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None,
    training: bool,
    optimizer: str | None,
) -> Program:
    if isinstance(model, str):
        return find_program(model, training, optimizer)
    from placewright.runtime.program.program import build_program

    return build_program(model, args, kwargs, training, optimizer)
