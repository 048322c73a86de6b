"""A model that runs under a plan on several ranks: `apply` in an initialised process group.

Every rank builds the model and applies the plan. Rank 0 then calls the model as before, and the
others call `model.placed.serve()`, which returns when rank 0 closes. So it is with training steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from placewright.errors import ExecutionError
from placewright.runtime.callbacks import weak_callback
from placewright.runtime.distributed.bandwidth_limit import BandwidthLimit
from placewright.runtime.distributed.control_channel import ControlMessage, MessageKind
from placewright.runtime.distributed.host_ranks import HostRanks, host_of
from placewright.runtime.distributed.rank_backend import RankBackend, RankCalls
from placewright.runtime.distributed.rank_digests import file_digest, plan_digest
from placewright.runtime.distributed.rank_train_step import RankTrainStep
from placewright.runtime.distributed.rank_weights import (
    drop_weights,
    foreign_names,
    synchronise_weights,
)
from placewright.runtime.distributed.session import SILENCE, STEP_TIMEOUT, RankSession
from placewright.runtime.distributed.weight_gather import (
    gather_weights,
    restore_weights,
    send_weights,
)
from placewright.runtime.placed_model import PlacedModel
from placewright.runtime.program.optimizer_step import OptimizerRule
from placewright.runtime.weight_loading import load_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import torch

    from placewright.plan import Plan
    from placewright.runtime.planned_calls import PlannedCall
    from placewright.runtime.program.host_products import HostKernels


@dataclass(frozen=True)
class RankOptions:
    """How a plan runs on several ranks.

    Args:
        rank_map: Ranks of some hosts or devices, by name; by default hosts are numbered in the
            plan's order.
        silence: Seconds after which a rank that says nothing counts as lost; one that dies is
            noticed at once.
        step_timeout: Seconds that a tensor of a step may take.
        bandwidth: Bytes per second that a rank may send: for tests and benchmarks, in which
            processes of one machine stand for hosts. None: as fast as it goes.
    """

    rank_map: Mapping[str, int] | None = None
    silence: float = SILENCE
    step_timeout: float = STEP_TIMEOUT
    bandwidth: float | None = None

    @classmethod
    def of(cls, ranks: Mapping[str, int] | RankOptions | None) -> RankOptions:
        """The options that a map of ranks, or nothing, stands for."""
        return ranks if isinstance(ranks, cls) else cls(ranks if isinstance(ranks, Mapping) else {})

    def open_session(self, plan: Plan, **identity: str) -> tuple[RankSession, HostRanks]:
        """Open a session of all ranks for a plan, which must be the same on all.

        Args:
            identity: What else must be equal on all ranks, by name.

        Raises:
            ConfigError: The plan's hosts do not go with the number of ranks.
            ExecutionError: There is no process group, a rank has ended, or ranks differ.
        """
        import torch.distributed as dist

        is_ready = dist.is_available() and dist.is_initialized()
        world_size = dist.get_world_size() if is_ready else 1
        host_ranks = HostRanks.of(plan.device_names, world_size, self.rank_map)
        identity = {"plan": plan_digest(plan, host_ranks), **identity}
        limit = None if self.bandwidth is None else BandwidthLimit(self.bandwidth)
        return RankSession(identity, self.silence, self.step_timeout, limit), host_ranks


def spans_ranks(plan: Plan, ranks: Mapping[str, int] | RankOptions | None) -> bool:
    """Whether a plan is to run on several ranks: its devices name hosts, or ranks are given."""
    import torch.distributed as dist

    names_hosts = any(host_of(name) for name in plan.device_names)
    return ranks is not None or (names_hosts and dist.is_available() and dist.is_initialized())


def apply_on_ranks(
    plan: Plan,
    model: torch.nn.Module,
    weights: str | os.PathLike[str] | None,
    device_map: Mapping[str, str] | None,
    cuda_graphs: bool | None,
    host_kernels: HostKernels,
    planned_calls: Sequence[PlannedCall],
    options: RankOptions,
    optimizer: str | OptimizerRule | None = None,
) -> None:
    """Let a model run under a plan on all ranks of the process group; see `apply`."""
    identity = {"optimizer": str(OptimizerRule.of(optimizer))}
    if weights is not None:
        identity["weight file"] = file_digest(weights)
    session, host_ranks = options.open_session(plan, **identity)
    try:
        placed_model = RankModel(
            session,
            host_ranks,
            plan,
            model,
            device_map,
            optimizer,
            cuda_graphs,
            host_kernels,
            planned_calls,
        )
        foreign = foreign_names(model, plan, host_ranks, session.rank)
        if weights is None:
            synchronise_weights(session, model, foreign)
        else:
            load_weights(model, weights, placed_model.torch_devices, foreign)
        drop_weights(model, foreign)
        placed_model.move_weights()
        placed_model.install()
    except Exception as error:
        session.fail(error)
        raise


class RankModel(PlacedModel):
    """A model that runs on several ranks; `apply` sets it as `model.placed`."""

    train: RankTrainStep
    calls: RankCalls

    def __init__(
        self,
        session: RankSession,
        host_ranks: HostRanks,
        plan: Plan,
        model: torch.nn.Module,
        device_map: Mapping[str, str] | None,
        optimizer: str | OptimizerRule | None,
        cuda_graphs: bool | None,
        host_kernels: HostKernels,
        planned_calls: Sequence[PlannedCall],
    ) -> None:
        self.session, self.host_ranks = session, host_ranks
        self._modules_called = 0
        super().__init__(
            plan, model, device_map, optimizer, cuda_graphs, host_kernels, planned_calls
        )
        session.handlers[MessageKind.PREPARE] = weak_callback(self._prepare)
        session.handlers[MessageKind.GATHER] = weak_callback(self._send_weights)

    def _new_backend(
        self,
        device_map: Mapping[str, str] | None,
        cuda_graphs: bool | None,
        host_kernels: HostKernels,
        planned_calls: Sequence[PlannedCall],
    ) -> RankBackend:
        return RankBackend(
            self.session,
            self.host_ranks,
            self.plan,
            self.model,
            device_map,
            cuda_graphs,
            host_kernels=host_kernels,
            planned_calls=planned_calls,
        )

    def _new_calls(self, module: torch.nn.Module) -> RankCalls:
        number, self._modules_called = self._modules_called, self._modules_called + 1
        assert isinstance(self.backend, RankBackend)
        return RankCalls(module, self.backend, number)

    def _new_train_step(self, optimizer: str | OptimizerRule | None) -> RankTrainStep:
        return RankTrainStep(self.plan, self.calls, optimizer)

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.session.rank

    # -- the ranks -----------------------------------------------------------------------------

    def serve(self) -> None:
        """Do this rank's part of all calls, until rank 0 closes; for all ranks but rank 0.

        Raises:
            ExecutionError: A rank has failed, this one included.
        """
        self.session.serve()

    def close(self) -> None:
        """End the session: on rank 0, which lets the other ranks' `serve` return.

        Rank 0 also closes when its program ends.

        Raises:
            ExecutionError: A training step has failed, and rank 0 had its loss before that.
        """
        self.backend.close()
        self.session.close()

    def remove(self) -> torch.nn.Module:
        """Close, and restore the model.

        Weights that other ranks hold stay on `meta`; but after training steps rank 0 has them all.
        """
        session = self.session
        is_alive = not session.is_closed and session.failure is None
        if session.is_leader and session.has_trained and is_alive:
            restore_weights(self.model, self.gather_weights())
        self.close()
        return super().remove()

    def gather_weights(self) -> dict[str, Any]:
        """The whole model's `state_dict`, on rank 0: a copy on the host, of all ranks' weights.

        It is what training has made of them so far, and training may go on.

        Raises:
            ExecutionError: A rank has failed; or this is not rank 0.
        """
        if not self.session.is_leader:
            self._refuse(f"weights cannot be gathered on rank {self.rank}", "do it on rank 0")
        with self.backend.lock:
            return gather_weights(self.session, self.model, self.plan, self.host_ranks)

    def __enter__(self) -> RankModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.nullcontext() if kind is None else contextlib.suppress(ExecutionError):
            self.close()

    def _send_weights(self, message: ControlMessage) -> None:
        send_weights(self.session, self.model, message)

    def _prepare(self, message: ControlMessage) -> None:
        number = message.data.get("module")
        calls: list[Any] = [self.calls, *self.part_calls]
        if message.data.get("step"):
            calls, number = [self.train], 0
        if not isinstance(number, int) or not 0 <= number < len(calls):
            raise ExecutionError(f"rank 0 calls module {number!r}: this rank has {len(calls)}")
        calls[number].prepare(message)
        self.session.send(0, ControlMessage(MessageKind.READY))

    # -- what ranks cannot do ------------------------------------------------------------------

    def _refuse(self, what: str, remedy: str = "do it before apply, or in one process") -> NoReturn:
        raise ExecutionError(f"{what} on several ranks: {remedy}")

    def use_plan(self, plan: Plan, planned_calls: Sequence[PlannedCall] = ()) -> None:
        """Refuse: the ranks hold the weights of their own plan."""
        self._refuse("the plan cannot be changed")

    def _after_load(self, *_: object) -> None:
        self._refuse("weights cannot be loaded into a model that runs")

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("a model cannot be cast or moved")
