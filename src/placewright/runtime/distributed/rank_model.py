"""A model that runs under a plan on several ranks: `apply` in an initialised process group.

Every rank builds the model and applies the plan. Rank 0 then calls the model as before, and the
others call `model.placed.serve()`, which returns when rank 0 closes.
"""

from __future__ import annotations

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
from placewright.runtime.distributed.rank_weights import (
    drop_weights,
    foreign_names,
    synchronise_weights,
)
from placewright.runtime.distributed.session import SILENCE, STEP_TIMEOUT, RankSession
from placewright.runtime.placed_model import PlacedModel
from placewright.runtime.weight_loading import load_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

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
) -> None:
    """Let a model run under a plan on all ranks of the process group; see `apply`."""
    identity = {} if weights is None else {"weight file": file_digest(weights)}
    session, host_ranks = options.open_session(plan, **identity)
    try:
        placed_model = RankModel(
            session, host_ranks, plan, model, device_map, cuda_graphs, host_kernels, planned_calls
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

    def __init__(
        self,
        session: RankSession,
        host_ranks: HostRanks,
        plan: Plan,
        model: torch.nn.Module,
        device_map: Mapping[str, str] | None,
        cuda_graphs: bool | None,
        host_kernels: HostKernels,
        planned_calls: Sequence[PlannedCall],
    ) -> None:
        self.session, self.host_ranks = session, host_ranks
        self._modules_called = 0
        super().__init__(plan, model, device_map, None, cuda_graphs, host_kernels, planned_calls)
        session.handlers[MessageKind.PREPARE] = weak_callback(self._prepare)

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
        """
        self.backend.close()
        self.session.close()

    def remove(self) -> torch.nn.Module:
        """Close, and restore the model; weights that other ranks hold stay on `meta`."""
        self.close()
        return super().remove()

    def __enter__(self) -> RankModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, message: ControlMessage) -> None:
        number = message.data.get("module")
        calls: list[Any] = [self.calls, *self.part_calls]
        if not isinstance(number, int) or not 0 <= number < len(calls):
            raise ExecutionError(f"rank 0 calls module {number!r}: this rank has {len(calls)}")
        calls[number].prepare(message)
        self.session.send(0, ControlMessage(MessageKind.READY))

    # -- what ranks cannot do ------------------------------------------------------------------

    def _refuse(self, what: str) -> NoReturn:
        raise ExecutionError(f"{what} on several ranks: do it before apply, or in one process")

    def use_plan(self, plan: Plan, planned_calls: Sequence[PlannedCall] = ()) -> None:
        """Refuse: the ranks hold the weights of their own plan."""
        self._refuse("the plan cannot be changed")

    def train_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Refuse: ranks run inference."""
        self._refuse("training steps cannot run")

    def train_micro_batches(
        self, micro_batches: Iterable[tuple[Any, ...]], in_flight: int = 4
    ) -> list[torch.Tensor]:
        """Refuse: ranks run inference."""
        self._refuse("training steps cannot run")

    def _after_load(self, *_: object) -> None:
        self._refuse("weights cannot be loaded into a model that runs")

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("a model cannot be cast or moved")
