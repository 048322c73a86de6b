"""The executor of one rank: runs the ops of its own devices, and hands tensors to other ranks.

On rank 0 it is used as any executor: a step begins there with its inputs, and ends there with its
outputs. The other ranks begin a step when rank 0 says so.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from placewright.errors import ExecutionError, PlanError
from placewright.graph import INPUT
from placewright.runtime.cpu_worker import Message, StepDone
from placewright.runtime.distributed.control_channel import ControlMessage, MessageKind
from placewright.runtime.distributed.hand_overs import divide_instructions
from placewright.runtime.distributed.rank_devices import find_rank_devices
from placewright.runtime.distributed.tensor_streams import ExpectedTensor, pack_frame
from placewright.runtime.executor import Executor
from placewright.runtime.instructions import compile_plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from placewright.graph import Tensor
    from placewright.plan import Plan
    from placewright.runtime.distributed.hand_overs import HandOver
    from placewright.runtime.distributed.host_ranks import HostRanks
    from placewright.runtime.distributed.session import RankSession
    from placewright.runtime.instructions import Instructions
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice


class RankExecutor(Executor):
    """Runs one rank's part of a program under a plan.

    Args:
        weights: As of `Executor`; those on devices of other ranks may be on `meta`.
        graph: The number of the program in the session; None: the next one.
        options: As of `Executor`.

    Raises:
        PlanError: The plan cannot be divided among ranks: it draws random numbers or changes states
            outside rank 0.
    """

    def __init__(
        self,
        program: Program,
        weights: torch.nn.Module | Mapping[int, torch.Tensor],
        plan: Plan,
        session: RankSession,
        host_ranks: HostRanks,
        device_map: Mapping[str, str] | None = None,
        graph: int | None = None,
        **options: Any,
    ) -> None:
        self.session, self.host_ranks = session, host_ranks
        self._is_seeded = options.get("seed") is not None
        self._step_lock = threading.Lock()
        self._results_of: dict[int, dict[int, dict[Tensor, torch.Tensor]]] = {}
        self._inputs_of: dict[int, dict[int, torch.Tensor]] = {}
        self._accumulates_of: dict[int, bool] = {}
        self._reports: dict[int, int] = {}
        self._early: dict[int, list[tuple[int, Message]]] = {}
        """Tensors of steps that are expected and have not begun on the devices of this rank."""
        super().__init__(program, weights, plan, device_map, **options)
        self.graph = session.add_graph(self, graph)

    _has_peers = True  # so a step of a GPU is never one graph, which would wait for all inputs

    # -- the plan ------------------------------------------------------------------------------

    def _find_devices(self, device_map: Mapping[str, str] | None) -> tuple[RealDevice, ...]:
        return find_rank_devices(self.host_ranks, self.session.rank, device_map)

    def _compile(self, keep_tensors: Sequence[Tensor]) -> Instructions:
        program, ranks, rank = self.program, self.host_ranks.ranks, self.session.rank
        if program.scalars is not None:
            raise PlanError("a graph with symbolic sizes cannot run on several ranks")
        whole = compile_plan(program, self.plan, self.real_devices, keep_tensors, ranks)
        for position in program.random_ops:
            is_elsewhere = ranks[whole.placement[position]] != 0
            if is_elsewhere and not self._is_seeded and not _is_without_dropout(program, position):
                raise PlanError(
                    f"op {program.graph.ops[position].name!r} draws random numbers on another rank "
                    "than the caller's: place it on rank 0"
                )
        stages = self.session.transport.stages
        part = divide_instructions(program.graph, whole, self.host_ranks, rank, stages)
        self._results_device = part.results
        self._pack_now = part.has_writes or program.training
        self._stored_outputs = part.stored_outputs
        self._participants = frozenset(
            ranks[device]
            for device, each in enumerate(whole.per_device)
            if each.sequence or each.inputs or each.outputs or each.sends
        )
        self._inputs = [
            tensor[0]
            for device in self.host_ranks.devices_of(rank)
            for tensor in whole.per_device[device].inputs
        ]
        self._outgoing = {
            (each.tensor, each.target): each for each in part.hand_overs if each.source == rank
        }
        self._incoming = [each for each in part.hand_overs if each.target == rank]
        self._result_counts: dict[int, int] = {}
        for each in self._incoming:
            if self._results_device in each.targets:
                self._result_counts[each.source] = self._result_counts.get(each.source, 0) + 1
        return part.local

    @property
    def hand_over_bytes(self) -> int:
        """Bytes that this rank sends in one step."""
        return sum(self._template(each).nbytes for each in self._outgoing.values())

    def _template(self, hand_over: HandOver) -> torch.Tensor:
        return self.program.meta_tensors[hand_over.tensor]

    # -- steps ---------------------------------------------------------------------------------

    def submit_tensors(self, tensors: Mapping[int, torch.Tensor]) -> int:
        """Begin a step on all ranks, from rank 0."""
        if not self.session.is_leader:
            raise ExecutionError(
                f"a step begins on rank 0, and this is rank {self.session.rank}: serve here"
            )
        if self._failure is None:
            self.session.check()
        if self.broken or (self._in_flight and not self.stateless):
            return super().submit_tensors(tensors)  # which says why not
        step = self.session.begin_step(
            self.graph, self._participants, self.program.training, self.accumulates_gradients
        )
        self._expect_tensors(step)
        for each in self._outgoing.values():
            if each.is_input:
                self._offer(each, step, tensors[each.tensor[0]].detach().cpu())
        self._offer_stored(step)
        self._next_step = step
        super().submit_tensors({at: tensors[at] for at in self._own_sources(tensors)})
        self._forward_early(step)
        return step

    def _own_sources(self, tensors: Mapping[int, torch.Tensor]) -> list[int]:
        """The inputs and states that are on this rank."""
        ranks, placement = self.host_ranks.ranks, self.instructions.placement
        return [at for at in tensors if ranks[placement[at]] == self.session.rank]

    def finish_steps(self) -> None:
        """Wait for all steps in flight, on rank 0; the other ranks follow it."""
        if self.session.is_leader:
            super().finish_steps()

    def begin_step(self, step: int, accumulates: bool = False) -> None:
        """Begin a step that rank 0 has begun, when it may.

        Args:
            accumulates: Whether a training step sums gradients, and changes no weights yet.
        """
        with self._step_lock:
            self._reports[step] = len(self.jobs)
            self._inputs_of[step] = {}
            self._accumulates_of[step] = accumulates
        self.session.order.add(step, self.program.training and not accumulates)
        self._expect_tensors(step)  # which does not wait: no stream may
        if not self._inputs:
            self._run_when_free(step)

    def _run_when_free(self, step: int) -> None:
        self.session.order.begin(step, partial(self._run_step, step))

    def _run_step(self, step: int) -> None:
        with self._step_lock:
            inputs, accumulates = self._inputs_of.pop(step), self._accumulates_of.pop(step)
        if accumulates != self.accumulates_gradients:
            self.accumulate_gradients(accumulates)
        self._next_step = step
        self._offer_stored(step)
        for tensor in self._stored_outputs:
            value = inputs[tensor[0]] if tensor[0] in inputs else self._resident_tensor(tensor)
            self._send(self._results_device, Message("tensor", step, tensor, value.cpu()))
        super().submit_tensors(inputs)
        self._forward_early(step)
        if self.issuer is not None:
            self.issuer.run_until(step)  # in this thread, as on rank 0 in the caller's
        if not self.jobs:
            self._forget_step(step)

    def _expect_tensors(self, step: int) -> None:
        """Tell all streams which tensors of this step they carry."""
        with self._step_lock:
            self._early[step] = []
        groups: dict[tuple[bool, int, int], list[ExpectedTensor]] = {}
        for each in self._outgoing.values():
            expected = ExpectedTensor(step, each.tensor, self._template(each))
            groups.setdefault((True, each.target, each.stage), []).append(expected)
        for each in self._incoming:
            groups.setdefault((False, each.source, each.stage), []).append(
                ExpectedTensor(
                    step,
                    each.tensor,
                    self._template(each),
                    partial(self._deliver, step, each),
                    any(
                        target < self._results_device and self.real_devices[target].is_gpu
                        for target in each.targets
                    ),
                )
            )
        for (is_sent, peer, stage), expected_tensors in groups.items():
            if is_sent:
                self.session.streams.sender(peer, stage).expect(expected_tensors)
            else:
                self.session.streams.receiver(peer, stage).expect(expected_tensors)

    # -- tensors -------------------------------------------------------------------------------

    def _send(self, target: int, message: Message) -> None:
        rank = 0 if target == self._results_device else self.host_ranks.ranks[target]
        if rank == self.session.rank:
            super()._send(target, message)
            return
        each = self._outgoing[message.key, rank]
        if target == each.targets[0]:  # it goes there once, for all of its devices
            self._offer(each, message.step, message.value)

    def _offer_stored(self, step: int) -> None:
        """Offer weights to other ranks, before an op of this step can change them."""
        if self.issuer is not None:
            self.issuer.wait_for_caller()  # whose updates by a mean gradient come first
        for instructions in self.instructions.per_device:
            for tensor, target in instructions.sends:
                if self._is_offered(tensor, target):
                    super()._send_source(step, tensor, target, {})

    def _send_source(
        self, step: int, tensor: Tensor, target: int, inputs: Mapping[Tensor, torch.Tensor]
    ) -> None:
        if not self._is_offered(tensor, target):
            super()._send_source(step, tensor, target, inputs)

    def _is_offered(self, tensor: Tensor, target: int) -> bool:
        """Whether it is a stored tensor that goes to another rank when a step begins."""
        is_input = self.program.graph.ops[tensor[0]].kind == INPUT
        return not is_input and self.host_ranks.ranks[target] != self.session.rank

    def _offer(self, each: HandOver, step: int, value: Any) -> None:
        if self._pack_now:
            tensor = value.wait() if hasattr(value, "wait") else value
            value = pack_frame(tensor, ExpectedTensor(step, each.tensor, self._template(each)))
        self.session.streams.sender(each.target, each.stage).offer(step, each.tensor, value)

    def _deliver(self, step: int, each: HandOver, value: torch.Tensor) -> None:
        """Take a tensor of another rank, in the thread of its stream."""
        if each.is_input:
            self._take_input(step, each, value)
            return
        for target in each.targets:
            if target == self._results_device:
                self._take_result(step, each, value)
            else:
                self._forward(target, Message("tensor", step, each.tensor, value))

    def _forward(self, target: int, message: Message) -> None:
        """Hand a tensor of another rank to a device; a GPU must have begun the step before."""
        with self._step_lock:
            if message.step in self._early:
                self._early[message.step].append((target, message))
                return
        super()._send(target, message)

    def _forward_early(self, step: int) -> None:
        """Hand over what arrived before the step had begun."""
        with self._step_lock:
            messages = self._early.pop(step, [])
        for target, message in messages:
            super()._send(target, message)

    def _take_input(self, step: int, each: HandOver, value: torch.Tensor) -> None:
        with self._step_lock:
            inputs = self._inputs_of[step]
            inputs[each.tensor[0]] = value
            is_complete = len(inputs) == len(self._inputs)
        if is_complete:
            self.session.work.put(partial(self._run_when_free, step))

    def _take_result(self, step: int, each: HandOver, value: torch.Tensor) -> None:
        """Note an output of another rank; when all of that rank are there, it has reported."""
        with self._step_lock:
            by_rank = self._results_of.setdefault(step, {})
            values = by_rank.setdefault(each.source, {})
            values[each.tensor] = value
            is_complete = len(values) == self._result_counts[each.source]
            if is_complete:
                del by_rank[each.source]
                if not by_rank:
                    del self._results_of[step]
        if is_complete:
            device = self.host_ranks.devices_of(each.source)[0]
            self._done_queue.put(StepDone(step, device, values))

    # -- reports -------------------------------------------------------------------------------

    @property
    def _reports_per_step(self) -> int:
        return super()._reports_per_step + len(self._result_counts)

    def _report(self, done: StepDone) -> None:
        if done.failure is not None and self._failure is None:
            self.session.fail(ExecutionError(self._failure_text(done)))
        if self.session.is_leader:
            super()._report(done)
            return
        with self._step_lock:
            self._reports[done.step] = self._reports.get(done.step, 0) - 1
            is_done = self._reports[done.step] == 0
        if is_done:
            self._forget_step(done.step)

    def _forget_step(self, step: int) -> None:
        with self._step_lock:
            self._reports.pop(step, None)
        self._done_by_step.pop(step, None)
        self._in_flight.pop(step, None)
        self.session.order.end(step)

    def output_tensors(self, number: int) -> list[torch.Tensor]:
        """As of `Executor`, on rank 0."""
        try:
            return super().output_tensors(number)
        except ExecutionError:
            self.session.is_failure_known = True
            raise

    # -- gradients -----------------------------------------------------------------------------

    def apply_gradients(self, count: int) -> None:
        """Change the weights of all ranks by the mean gradient of the last steps, from rank 0."""
        if self.session.is_leader and (count or not self.broken):
            message = ControlMessage(MessageKind.UPDATE, self.graph, data={"count": count})
            for peer in self.session.channels.keys() & self._participants:
                self.session.send(peer, message)
        self.join_streams()
        super().apply_gradients(count)

    def join_streams(self) -> None:
        """Let the streams of this thread wait for all steps that GPUs of this rank were issued."""
        if self.issuer is not None:
            self.issuer.join_caller(())

    # -- the end -------------------------------------------------------------------------------

    def _failure_text(self, done: StepDone) -> str:
        if done.device < 0:
            return str(done.failure)
        return super()._failure_text(done)

    def end_steps(self, text: str) -> None:
        """Let whoever waits for a step learn that the session has failed."""
        self._done_queue.put(StepDone(-1, -1, {}, ExecutionError(text)))
        self.stop_issuing()

    def stop_issuing(self) -> None:
        """Let GPUs be issued no more ops: whoever issues them waits for other ranks no longer."""
        if self.issuer is not None:
            self.issuer.inbox.put(Message("stop"))

    def close(self) -> None:
        """Stop the threads of this rank; rank 0 lets the others do so, too."""
        if self.session.is_leader and self._in_flight and self.program.training:
            # The other ranks would wait for the end of the step, and some weights have changed.
            self.session.fail(ExecutionError("a training step was interrupted on rank 0"))
            self.session.is_failure_known = True
        if self.session.is_leader and self.session.executors.get(self.graph) is self:
            self.session.drop_graph(self.graph)
        super().close()


def _is_without_dropout(program: Program, position: int) -> bool:
    """Whether an op that may drop elements, such as attention, drops none."""
    node = program.builder.op_nodes[position]
    schema: Any = getattr(node.target, "_schema", None)
    for index, argument in enumerate(() if schema is None else schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[index] if index < len(node.args) else argument.default_value
            return bool(node.kwargs.get(argument.name, given) == 0.0)
    return False
