"""The compiler backend of one rank: graphs of TorchDynamo's that run on all ranks.

Rank 0 is called; its guards decide which graph serves a call. The first time that a graph runs,
rank 0 describes the call to the others, and each makes it with zeros, up to its own graph. Digests
of the graphs, constants included, must be equal: so a model that was built or changed otherwise on
one rank is an error, not a wrong result.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from placewright.errors import ExecutionError
from placewright.runtime.distributed.call_arguments import (
    autocast_of,
    describe_call,
    describe_modes,
    restore_call,
    restore_modes,
)
from placewright.runtime.distributed.control_channel import ControlMessage, MessageKind
from placewright.runtime.distributed.rank_devices import find_rank_devices
from placewright.runtime.distributed.rank_digests import program_digest
from placewright.runtime.distributed.rank_executor import RankExecutor
from placewright.runtime.dynamo.backend import PlanBackend
from placewright.runtime.dynamo.model_calls import ModelCalls
from placewright.runtime.dynamo.steps import resolve_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placewright.plan import Plan
    from placewright.runtime.distributed.host_ranks import HostRanks
    from placewright.runtime.distributed.session import RankSession
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice


class RankBackend(PlanBackend):
    """Runs the graphs of one model on several ranks.

    Args:
        options: As of `PlanBackend`.
    """

    def __init__(
        self, session: RankSession, host_ranks: HostRanks, plan: Plan, *args: Any, **options: Any
    ) -> None:
        self.session, self.host_ranks = session, host_ranks
        self.message: ControlMessage | None = None
        """The call that rank 0 describes, while this rank makes it."""
        super().__init__(plan, *args, **options)
        if not session.is_leader:  # rank 0 says which executors all ranks close
            self.executors.staging_buffers.on_replace = lambda: None

    def _find_devices(self) -> tuple[RealDevice, ...]:
        return find_rank_devices(self.host_ranks, self.session.rank, self.device_map)

    def new_executor(
        self,
        program: Program,
        plan: Plan,
        weights: Mapping[int, torch.Tensor],
        args: Sequence[Any] = (),
    ) -> RankExecutor:
        """This rank's executor of a program; rank 0 lets the others make theirs."""
        self.session.check()
        digest, message = program_digest(program, plan), self.message
        if self.session.is_leader:
            self.executors.evict()
        elif message is None:
            raise ExecutionError(f"the model is called on rank {self.session.rank}: call rank 0")
        elif message.data.get("digest") != digest:
            raise ExecutionError(
                f"rank {self.session.rank} captures another graph of this call than rank 0: build "
                "the same model on all ranks, and change it on none"
            )
        executor = RankExecutor(
            program,
            weights,
            plan,
            self.session,
            self.host_ranks,
            self.device_map,
            None if message is None else message.graph,
            cuda_graphs=self.cuda_graphs,
            staging_buffers=self.executors.staging_buffers,
            pack_weights=not self.executors,
            host_kernels=self.host_kernels,
        )
        if self.session.is_leader:
            describe: Callable[[], dict[str, Any]] = self.thread.describe_call
            data = {**describe(), "digest": digest}
            self.session.broadcast(ControlMessage(MessageKind.PREPARE, executor.graph, data=data))
            for peer in self.session.channels:
                self.session.reply(peer, MessageKind.READY)
        return executor

    @contextlib.contextmanager
    def preparing(self, message: ControlMessage) -> Iterator[None]:
        """Make the executor that rank 0 describes."""
        self.message = message
        try:
            yield
        finally:
            self.message = None

    def eager_scope(self) -> NoReturn:
        """Refuse what would run without the plan: most weights are not on this rank."""
        raise ExecutionError(
            "this call cannot run on several ranks: a part of it cannot be run op by op"
        )


class RankCalls(ModelCalls):
    """The calls of a model on several ranks: each is one graph, of fixed shapes, on rank 0.

    Args:
        module: Which of the model's entry modules it is.
    """

    has_static_shapes = True
    backend: RankBackend

    def __init__(self, model: torch.nn.Module, backend: RankBackend, module: int) -> None:
        self.module = module
        self.compiled_step: Callable[..., Any] | None = None
        """The compiled training step of the model, which is another function than its calls."""
        super().__init__(model, backend)
        self.has_gpus = (
            True  # weights are not in one memory: calls are one graph, traced on the CPU
        )

    def count_eager_call(self, reason: str) -> None:
        """Refuse a call that cannot be compiled."""
        raise ExecutionError(f"this call cannot run on several ranks: {reason}")

    def run_compiled(self, compiled: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a compiled function, from rank 0."""
        session = self.backend.session
        session.check()
        if not session.is_leader and self.backend.message is None:
            raise ExecutionError(
                f"the model is called on rank {session.rank}: call it on rank 0, and "
                "model.placed.serve() on the other ranks"
            )
        is_step = compiled is self.compiled_step
        self._check_gradients(args, kwargs, is_step)
        self.backend.thread.describe_call = lambda: {
            "module": self.module,
            "step": is_step,
            **describe_modes(self.model),
            **describe_call(args, kwargs),
        }
        outputs = super().run_compiled(compiled, args, kwargs)
        if any(
            isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in pytree.tree_leaves(outputs)
        ):
            raise ExecutionError(
                "the model returns one of its weights, which is on another rank: return a copy"
            )
        return outputs

    def prepare(
        self,
        message: ControlMessage,
        backend: PlanBackend | None = None,
        compiled: Callable[..., Any] | None = None,
    ) -> None:
        """Make this rank's executor of a call that rank 0 describes.

        Args:
            backend: The backend of training steps, if it is one.
            compiled: The compiled step, likewise.
        """
        args, kwargs = restore_call(message.data)
        restore_modes(self.model, message.data)
        is_cast = bool(message.data.get("autocast"))
        cast = autocast_of(message.data) if is_cast else contextlib.nullcontext()
        self.follow_code()
        function = compiled or self.compiled
        with (
            torch.set_grad_enabled(compiled is not None),
            cast,
            self.backend.preparing(message),
        ):
            call = resolve_call(
                backend or self.backend, lambda: self.run_whole(function, args, kwargs)
            )
            call.graph.ready_executor(call.args)

    def _check_gradients(self, args: Any, kwargs: Any, is_step: bool) -> None:
        """Refuse a call whose gradients somebody may ask for: a loss's alone are computed."""
        if not torch.is_grad_enabled():
            return
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        tensors = leaves if is_step else [*self.model.parameters(), *leaves]
        if not any(isinstance(each, torch.Tensor) and each.requires_grad for each in tensors):
            return
        if is_step:
            raise ExecutionError(
                "an argument of a training step requires a gradient, which several ranks do not "
                "compute: detach it"
            )
        raise ExecutionError(
            "loss.backward() cannot run across ranks: train by model.placed.train_step(...) under "
            "a plan for training, or call the model inside torch.no_grad()"
        )
