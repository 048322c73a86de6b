"""Micro-batches: one training step of a whole batch, run in parts.

The parts are in flight together, as GPipe has them (Huang et al. 2019): every weight's gradient is
added up where the weight lives, and the weights change once, when all parts are through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ConfigError, ExecutionError
from placewright.runtime.in_flight import pipelined_results
from placewright.runtime.program.optimizer_step import WeightUpdate
from placewright.runtime.program.runners import InputRead

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placewright.runtime.cpu_worker import DeviceJob
    from placewright.runtime.executor import Executor
    from placewright.runtime.instructions import DeviceInstructions
    from placewright.runtime.program.optimizer_step import OptimizerState
    from placewright.runtime.program.program import Program
    from placewright.runtime.program.runners import Runner, Values
    from placewright.runtime.real_devices import RealDevice


class AccumulatingUpdate:
    """An update of one weight that can wait: until then it adds up gradients."""

    def __init__(self, update: WeightUpdate) -> None:
        self.update = update
        self.accumulates = False
        self.weight: torch.Tensor | None = None
        self.gradient_sum: torch.Tensor | None = None

    @torch.no_grad()
    def __call__(self, values: Values) -> tuple[torch.Tensor, ...]:
        if not self.accumulates:
            return self.update(values)
        self.weight = values[0]
        for read in self.update.gradients:
            gradient = read(values)
            if self.gradient_sum is None:
                self.gradient_sum = gradient.clone()  # whose memory the op before may use again
            else:
                self.gradient_sum.add_(gradient)
        return (self.weight.new_empty(0),)

    def apply(self, count: int) -> None:
        """Change the weight by the mean of what was added up."""
        if self.weight is None or self.gradient_sum is None:
            return
        reads, self.update.gradients = self.update.gradients, (InputRead(1, ()),)
        try:
            self.update([self.weight, self.gradient_sum.div_(count)])
        finally:
            self.update.gradients = reads
            self.weight = self.gradient_sum = None


def op_runners(
    program: Program,
    instructions: DeviceInstructions,
    real_device: RealDevice,
    seed: int | None = None,
) -> list[Runner | AccumulatingUpdate]:
    """What runs each turn of a device's part.

    Args:
        seed: What random numbers are drawn from, op by op; None: as PyTorch does.
    """
    runners = [
        program.runner(
            instruction.position,
            real_device.torch_name,
            instruction.in_place,
            None if seed is None else seed + instruction.position,
        )
        for instruction in instructions.sequence
    ]
    return [AccumulatingUpdate(run) if isinstance(run, WeightUpdate) else run for run in runners]


def weight_updates(jobs: Iterable[DeviceJob]) -> list[AccumulatingUpdate]:
    """The updates among all that devices do."""
    return [run for job in jobs for run in job.runners if isinstance(run, AccumulatingUpdate)]


def share_optimizer_states(jobs: Iterable[DeviceJob], states: dict[str, OptimizerState]) -> None:
    """Let updates go on with the states of others of the same weights, or leave theirs for them."""
    for job in jobs:
        for name, run in zip(job.names, job.runners, strict=True):
            if isinstance(run, AccumulatingUpdate):
                run.update.state = states.setdefault(name, run.update.state)


def train_micro_batches(
    executor: Executor, micro_batches: Iterable[tuple[Any, ...]], in_flight: int = 4
) -> list[torch.Tensor]:
    """The loss of each part; the weights have changed by the mean of the parts' gradients.

    That is the step of the whole batch where a loss is a mean over the examples and parts are of
    one size.

    Args:
        micro_batches: The positional arguments of each, all of the shapes that were captured.
        in_flight: How many may be under way at once.

    Raises:
        ConfigError: There are no parts, or the executor does not train.
        ExecutionError: A step changes other states than weights, such as a norm's running mean.
    """
    updates = weight_updates(executor.jobs.values())
    calls = list(micro_batches)
    if not updates:
        raise ConfigError("the plan is not one of a training step: plan with --training")
    if not calls:
        raise ConfigError("a step of no parts: expected one or more")
    for update in updates:
        update.accumulates = True
    try:
        if in_flight > 1 and not executor.stateless:
            raise ExecutionError(
                "parts of a batch would change states of this model beside its weights, so that "
                "they cannot overlap: run with one in flight"
            )
        losses = [loss for _, loss in pipelined_results(executor, calls[0], calls[1:], in_flight)]
    except BaseException:
        for update in updates:
            update.weight = update.gradient_sum = None
        raise
    finally:
        for update in updates:
            update.accumulates = False
    for update in updates:
        update.apply(len(calls))
    return losses
