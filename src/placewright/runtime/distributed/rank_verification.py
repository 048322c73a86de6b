"""Verifies a plan on several ranks: one step of theirs against the model itself, on rank 0.

Outputs of a call, or a training step's loss and gradients, are compared with those of the model,
and every weight's update with what its optimizer makes of the gradient that the ranks computed.
(Adam makes a step of full size of any gradient, be it rounding alone: the updates that it makes of
two gradients say little.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import VerifyError
from placewright.frontends.pytorch.values import tensors_in
from placewright.runtime.distributed.weight_gather import gather_weights
from placewright.runtime.program.optimizer_step import WeightUpdate
from placewright.runtime.program.runners import InputRead
from placewright.runtime.verification import (
    TOLERANCE,
    compare_tensors,
    copy_tensors,
    expected_tensors,
    gradient_floor,
    sum_gradient,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.runtime.distributed.host_ranks import HostRanks
    from placewright.runtime.distributed.rank_executor import RankExecutor
    from placewright.runtime.program.program import Program


ULPS = 4
"""Last bits of a weight's largest number by which its update may differ."""


class StepReference:
    """What the model itself computes in a step, and its weights before that.

    Args:
        model: With all of its weights.
    """

    def __init__(
        self,
        program: Program,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.program, self.args, self.kwargs = program, args, kwargs
        self.expected = expected_tensors(program, model, args, dict(kwargs))
        self.weights = {
            name: tensor.detach().clone()
            for name, tensor in model.named_parameters(remove_duplicate=False)
            if name in program.gradients
        }

    def compare(
        self, executor: RankExecutor, model: torch.nn.Module, host_ranks: HostRanks
    ) -> float:
        """Run a step, which changes the weights, and compare it; the largest difference.

        Args:
            executor: It keeps the gradients.

        Raises:
            VerifyError: Something differs.
        """
        outputs = tensors_in(
            executor(*copy_tensors(list(self.args)), **copy_tensors(dict(self.kwargs)))
        )
        actual = {f"output {index}": output for index, output in enumerate(outputs)}
        gradients = {
            name: sum_gradient(executor, tensors)
            for name, tensors in self.program.gradients.items()
        }
        actual |= {f"the gradient of {name!r}": value for name, value in gradients.items()}
        if set(actual) != set(self.expected):
            raise VerifyError(
                f"the ranks return {len(actual)} tensors: expected {len(self.expected)}"
            )
        floor = gradient_floor(self.program, self.expected)
        floors = dict.fromkeys((f"the gradient of {name!r}" for name in gradients), floor)
        expected = dict(self.expected)
        if self.program.training:
            state = gather_weights(executor.session, model, executor.plan, host_ranks)
            for name, gradient in gradients.items():
                label, weight = f"the update of {name!r}", self.weights[name].cpu()
                expected[label] = self._updated(weight, gradient) - weight
                actual[label] = state[name] - weight
                floors[label] = _rounding(weight)
        compared = [
            compare_tensors(name, actual[name], value, floor=floors.get(name, 0.0))
            for name, value in expected.items()
        ]
        errors = [error for _, messages in compared for error in messages]
        if errors:
            raise VerifyError(errors[0])
        return max((difference for difference, _ in compared), default=0.0)

    def _updated(self, weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """A weight after a first update by a gradient."""
        assert self.program.rule is not None
        weight, gradient = weight.clone(), gradient.cpu().reshape(weight.shape)
        WeightUpdate(self.program.rule, (InputRead(1, ()),))([weight, gradient])
        return weight


def _rounding(weight: torch.Tensor) -> float:
    """What an update is compared relative to at least: a weight rounds it to some last bits."""
    last_bits = ULPS * torch.finfo(weight.dtype).eps * weight.abs().max().item()
    return float(last_bits / TOLERANCE.get(weight.dtype, 1.0))
