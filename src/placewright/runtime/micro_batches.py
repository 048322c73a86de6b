"""A training executor and the parts of a batch in, one step of the whole batch out.

The parts are in flight together, as GPipe has them (Huang et al. 2019): every weight's gradient is
added up where the weight lives, and the weights change once, when all parts are through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ConfigError, ExecutionError
from placewright.runtime.in_flight import in_order
from placewright.runtime.program.optimizer_step import Update
from placewright.runtime.program.runners import Read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placewright.runtime.cpu_worker import Job
    from placewright.runtime.executor import Executor
    from placewright.runtime.instructions import Part
    from placewright.runtime.program.optimizer_step import States
    from placewright.runtime.program.program import Program
    from placewright.runtime.program.runners import Runner, Values
    from placewright.runtime.real_devices import Place


class Gathered:
    """An update of one weight that can wait: until then it adds up gradients."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.waits = False
        self.weight: torch.Tensor | None = None
        self.total: torch.Tensor | None = None

    @torch.no_grad()
    def __call__(self, values: Values) -> tuple[torch.Tensor, ...]:
        if not self.waits:
            return self.update(values)
        self.weight = values[0]
        for part in self.update.gradients:
            gradient = part(values)
            if self.total is None:
                self.total = gradient.clone()  # whose memory the op before may use again
            else:
                self.total.add_(gradient)
        return (self.weight.new_empty(0),)

    def apply(self, parts: int) -> None:
        """Change the weight by the mean of what was added up."""
        if self.weight is None or self.total is None:
            return
        given, self.update.gradients = self.update.gradients, (Read(1, ()),)
        try:
            self.update([self.weight, self.total.div_(parts)])
        finally:
            self.update.gradients = given
            self.weight = self.total = None


def runners_of(
    program: Program, part: Part, place: Place, seed: int | None = None
) -> list[Runner | Gathered]:
    """What runs each turn of a device's part.

    Args:
        seed: What random numbers are drawn from, op by op; None: as PyTorch does.
    """
    runners = [
        program.runner(
            turn.position,
            place.torch_name,
            turn.in_place,
            None if seed is None else seed + turn.position,
        )
        for turn in part.turns
    ]
    return [Gathered(run) if isinstance(run, Update) else run for run in runners]


def updates_of(jobs: Iterable[Job]) -> list[Gathered]:
    """The updates among all that devices do."""
    return [run for job in jobs for run in job.runners if isinstance(run, Gathered)]


def share_states(jobs: Iterable[Job], states: dict[str, States]) -> None:
    """Let updates go on with the states of others of the same weights, or leave theirs for them."""
    for job in jobs:
        for name, run in zip(job.names, job.runners, strict=True):
            if isinstance(run, Gathered):
                run.update.kept = states.setdefault(name, run.update.kept)


def train_step(
    executor: Executor, parts: Iterable[tuple[Any, ...]], in_flight: int = 4
) -> list[torch.Tensor]:
    """The loss of each part; the weights have changed by the mean of the parts' gradients.

    That is the step of the whole batch where a loss is a mean over the examples and parts are of
    one size.

    Args:
        parts: The positional arguments of each, all of the shapes that were captured.
        in_flight: How many may be under way at once.

    Raises:
        ConfigError: There are no parts, or the executor does not train.
        ExecutionError: A step changes other states than weights, such as a norm's running mean.
    """
    gathered = updates_of(executor.jobs.values())
    calls = list(parts)
    if not gathered:
        raise ConfigError("the plan is not one of a training step: plan with --training")
    if not calls:
        raise ConfigError("a step of no parts: expected one or more")
    for one in gathered:
        one.waits = True
    try:
        if in_flight > 1 and not executor.stateless:
            raise ExecutionError(
                "parts of a batch would change states of this model beside its weights, so that "
                "they cannot overlap: run with one in flight"
            )
        losses = [made for _, made in in_order(executor, calls[0], calls[1:], in_flight)]
    except BaseException:
        for one in gathered:
            one.weight = one.total = None
        raise
    finally:
        for one in gathered:
            one.waits = False
    for one in gathered:
        one.apply(len(calls))
    return losses
