"""Micro-batches: one training step of a whole batch, run in parts.

The parts are in flight together, as in GPipe (Huang et al. 2019): every weight's gradient is summed
on the weight's device, and the weights change once, after all parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ConfigError, ExecutionError
from placewright.runtime.in_flight import pipelined_results
from placewright.runtime.program.optimizer_step import WeightUpdate
from placewright.runtime.program.runners import InputRead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from placewright.runtime.cpu_worker import DeviceJob
    from placewright.runtime.executor import Executor
    from placewright.runtime.instructions import DeviceInstructions
    from placewright.runtime.program.host_products import HostKernels
    from placewright.runtime.program.optimizer_step import OptimizerState
    from placewright.runtime.program.program import Program
    from placewright.runtime.program.runners import Runner, Values
    from placewright.runtime.real_devices import RealDevice


class AccumulatingUpdate:
    """An update of one weight that can be deferred: until then it sums gradients."""

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
                self.gradient_sum = gradient.clone()  # its memory may be reused
            else:
                self.gradient_sum.add_(gradient)
        return (self.weight.new_empty(0),)

    def apply(self, count: int) -> None:
        """Update the weight by the mean of the gradients of some steps; 0: forget their sum."""
        if self.weight is None or self.gradient_sum is None or not count:
            self.weight = self.gradient_sum = None
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
    host_kernels: HostKernels = True,
) -> list[Runner | AccumulatingUpdate]:
    """The function that runs each op of a device.

    Args:
        seed: Seed of random numbers, op by op; None: as PyTorch draws them.
        host_kernels: Whether products of few rows on the CPU may use our own kernel.
    """
    runners = [
        program.runner(
            instruction.position,
            real_device.torch_name,
            instruction.in_place,
            None if seed is None else seed + instruction.position,
            host_kernels,
        )
        for instruction in instructions.sequence
    ]
    return [AccumulatingUpdate(run) if isinstance(run, WeightUpdate) else run for run in runners]


def weight_updates(jobs: Iterable[DeviceJob]) -> list[AccumulatingUpdate]:
    """The weight updates among the ops of all devices."""
    return [run for job in jobs for run in job.runners if isinstance(run, AccumulatingUpdate)]


def share_optimizer_states(jobs: Iterable[DeviceJob], states: dict[str, OptimizerState]) -> None:
    """Let updates of the same weight, in several programs, share one optimizer state."""
    for job in jobs:
        for name, run in zip(job.names, job.runners, strict=True):
            if isinstance(run, AccumulatingUpdate):
                run.update.state = states.setdefault(name, run.update.state)


def train_micro_batches(
    executor: Executor,
    micro_batches: Iterable[tuple[Any, ...]],
    in_flight: int = 4,
    submit: Callable[[tuple[Any, ...]], int] | None = None,
) -> list[torch.Tensor]:
    """Update the weights by the mean gradient of all micro-batches; their losses.

    This equals the step of the whole batch if the loss is a mean over examples and all parts have
    one size.

    Args:
        micro_batches: The positional arguments of each, all of the shapes that were captured.
        in_flight: How many may be in flight at once.
        submit: Begins the step of a micro-batch; by default `executor.submit`.

    Raises:
        ConfigError: There are no micro-batches, or the executor does not train.
        ExecutionError: A step changes other states than weights, such as a norm's running mean.
    """
    calls = list(micro_batches)
    if not executor.program.training:
        raise ConfigError("the plan is not for a training step: plan with --training")
    if not calls:
        raise ConfigError("a step of no micro-batches: expected one or more")
    losses: list[torch.Tensor] = []
    executor.accumulate_gradients(True)
    try:
        if in_flight > 1 and not executor.stateless:
            raise ExecutionError(
                "micro-batches would change states of this model besides its weights, so they "
                "cannot overlap: run with one in flight"
            )
        results = pipelined_results(executor, calls[0], calls[1:], in_flight, submit)
        losses = [loss for _, loss in results]
    finally:
        executor.accumulate_gradients(False)
        executor.apply_gradients(len(losses))  # none: a part has failed, or was refused
    return losses
