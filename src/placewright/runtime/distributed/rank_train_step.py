"""Training steps on several ranks: one program of loss, gradients and updates, a part on each rank.

Rank 0 is called; the others make the same program when rank 0 describes the step, as they do for a
call. Every weight is updated on the rank that holds it, where its optimizer's states are, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from placewright.errors import ExecutionError
from placewright.runtime.dynamo.train_step import TrainBackend, TrainStep
from placewright.runtime.micro_batches import share_optimizer_states

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from placewright.runtime.distributed.control_channel import ControlMessage
    from placewright.runtime.distributed.rank_backend import RankBackend, RankCalls
    from placewright.runtime.distributed.rank_executor import RankExecutor
    from placewright.runtime.program.optimizer_step import OptimizerRule
    from placewright.runtime.real_devices import RealDevice


class RankTrainStep(TrainStep):
    """The training steps of a placed model, called on rank 0; each must be one program."""

    calls: RankCalls

    def prepare(self, message: ControlMessage) -> None:
        """Make this rank's executor of a step that rank 0 describes."""
        backend, compiled = self._ready()
        reason = self._hooks()
        if reason:
            self._count_loop(f"{reason} on rank {self.calls.backend.session.rank}")
        self.calls.prepare(message, backend, compiled)

    def _ready(self) -> tuple[TrainBackend, Callable[..., Any]]:
        backend, compiled = super()._ready()
        self.calls.compiled_step = compiled
        return backend, compiled

    def _new_backend(self, rule: OptimizerRule) -> TrainBackend:
        return RankTrainBackend(rule, self.calls.model, self.calls.backend)

    def _count_loop(self, reason: str) -> NoReturn:
        """Refuse a step that would run as a loop: most weights are on other ranks."""
        raise ExecutionError(f"this training step cannot run on several ranks: {reason}")


class RankTrainBackend(TrainBackend):
    """The backend of training steps of one rank.

    Args:
        sibling: The backend of the model's calls, which makes executors on all ranks.
    """

    def __init__(self, rule: OptimizerRule, model: torch.nn.Module, sibling: RankBackend) -> None:
        self._rank_backend = sibling
        super().__init__(rule, model, sibling)

    def _find_devices(self) -> tuple[RealDevice, ...]:
        return self._rank_backend.real_devices

    def new_executor(self, *args: Any) -> RankExecutor:
        """This rank's executor of a step, with the optimizer's states of its weights."""
        executor = self._rank_backend.new_executor(*args)
        share_optimizer_states(executor.jobs.values(), self.optimizer_states)
        return executor

    def eager_scope(self) -> NoReturn:
        """Refuse what would run without the plan."""
        self._rank_backend.eager_scope()
