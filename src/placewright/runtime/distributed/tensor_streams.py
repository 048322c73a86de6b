"""Tensor streams: the tensors of all steps that one rank sends to another, stage by stage.

Both ends of a stream know its order: by step, then by the position of the producing op in the
plan's order, which is the same on all ranks. The sender waits for the next tensor of that order;
receives of the next few are posted ahead, into buffers whose sizes both ends know.

**Why ranks cannot deadlock.** Order all tensors that change ranks by (step, position of the
producing op). Suppose some never arrive, and take the first of them. Everything before it has
arrived. Its op reads tensors whose ops come earlier in a topological order, so that those from
other ranks are there; the ops before it on its device come earlier too, and have run: a device runs
any step whose next op is ready, so no other step holds it up. Hence the op runs and offers its
tensor. In its stream all earlier tensors have left, so it is the sender's next one; its receive is
the next one, too, and a receive is posted when its step begins, waiting for nothing but earlier
receives of its stream. So it arrives, which contradicts the choice. This holds for any division of
the tensors into streams. What a stream may hold up is a later step: so tensors are divided by stage
(how often the data have changed ranks before), or a plan that goes from rank 0 to rank 1 and back
could not begin a step at rank 1 before the one before it has come back.

**Nor can training steps.** A rank holds back a step until those before it have ended there, if one
of the two changes weights (`step_order.py`). Then the tensor of the argument may be of an op whose
step is held back. All tensors of earlier steps have arrived, so all ops of earlier steps run: by
the argument for the ops of one rank, first step by step, then in the plan's order. So these steps
end on that rank, which tells the thread that serves, and the step begins. That thread waits for
nothing that comes later: it makes graphs, sends weights that rank 0 is receiving, or issues the ops
of a GPU in their order. Receives are posted when rank 0 says that a step begins, held back or not,
so no stream waits either. Other messages wait likewise for steps that change weights; rank 0 sends
them when its own part of those has ended. No thread waits for another rank's step but in rank 0's
caller, and in queues and connections, which a failure ends.

Memory is bounded by the steps in flight: a frame is made when it is next to leave, or, in training
and where ops write in place, when its tensor is there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from placewright.runtime.cpu_worker import PendingTensor
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.distributed.tensor_frames import frame_bytes, pack_tensor, unpack_tensor
from placewright.runtime.distributed.transport import FIRST_STREAM_TAG
from placewright.runtime.host_allocator import run_in_main_arena

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.graph import Tensor
    from placewright.runtime.distributed.bandwidth_limit import BandwidthLimit
    from placewright.runtime.distributed.transport import Transport

POSTED_RECEIVES = 3
"""Receives of one stream that are posted ahead."""


class ExpectedTensor(NamedTuple):
    """A tensor that a stream carries next, or later.

    Args:
        template: Its shape and dtype, as the program says.
        deliver: Called with the tensor when it has arrived; for a sender None.
        pinned: Whether it goes on to a GPU, so that it arrives in pinned memory.
    """

    step: int
    key: Tensor
    template: torch.Tensor
    deliver: Callable[[torch.Tensor], None] | None = None
    pinned: bool = False


class TensorSender(threading.Thread):
    """Sends the tensors of one stream, in its order.

    Args:
        fail: Called with the error that ends the stream.
    """

    def __init__(
        self,
        transport: Transport,
        target: int,
        tag: int,
        limit: BandwidthLimit | None,
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name=f"placewright-to-rank{target}", daemon=True)
        self._transport, self._target, self._tag = transport, target, tag
        self._limit, self._fail = limit, fail
        self._order: deque[ExpectedTensor] = deque()
        self._values: dict[tuple[int, Tensor], tuple[Any, float]] = {}
        self._changed = threading.Condition()
        self._stopped = False

    def expect(self, expected: list[ExpectedTensor]) -> None:
        """Append tensors to the order: those of the next step."""
        with self._changed:
            self._order += expected
            self._changed.notify()

    def offer(self, step: int, key: Tensor, value: Any) -> None:
        """A tensor is there; it leaves when it is the next one."""
        with self._changed:
            self._values[step, key] = value, time.perf_counter()
            self._changed.notify()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def run(self) -> None:
        try:
            run_in_main_arena(self._send_all)
        except BaseException as error:
            self._fail(error)

    def _next(self) -> tuple[ExpectedTensor, Any, float] | None:
        with self._changed:
            while not self._stopped:
                if self._order:
                    expected = self._order[0]
                    found = self._values.pop((expected.step, expected.key), None)
                    if found is not None:
                        self._order.popleft()
                        return expected, *found
                self._changed.wait()
        return None

    @torch.no_grad()
    def _send_all(self) -> None:
        try:
            while (item := self._next()) is not None:
                expected, value, ready_at = item
                frame = value
                if not isinstance(value, PackedFrame):
                    tensor = value.wait() if isinstance(value, PendingTensor) else value
                    frame = pack_frame(tensor, expected)
                if self._limit is not None:
                    self._limit.wait(len(frame.data), ready_at)
                self._transport.send(frame.data, self._target, self._tag)
                del item, value, frame
        except BaseException as error:
            self._fail(error)


class PackedFrame(NamedTuple):
    """A tensor that was packed before its memory could change."""

    data: torch.Tensor


def pack_frame(tensor: torch.Tensor, expected: ExpectedTensor) -> PackedFrame:
    """The frame of a tensor of a stream."""
    return PackedFrame(pack_tensor(tensor, expected.template, expected.step, expected.key))


class TensorReceiver(threading.Thread):
    """Receives the tensors of one stream, in its order.

    Args:
        timeout: Seconds that a tensor of a step that has begun may take.
        pin: Makes a buffer pinned.
        fail: Called with the error that ends the stream.
    """

    def __init__(
        self,
        transport: Transport,
        source: int,
        tag: int,
        timeout: float,
        pin: Callable[[torch.Tensor], torch.Tensor],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name=f"placewright-from-rank{source}", daemon=True)
        self._transport, self._source, self._tag = transport, source, tag
        self._timeout, self._pin, self._fail = timeout, pin, fail
        self._order: deque[ExpectedTensor] = deque()
        self._posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._posted_count = 0
        self._lock = threading.Lock()

    def expect(self, expected: list[ExpectedTensor]) -> None:
        """Append tensors to the order, and post receives of those that are next."""
        with self._lock:
            self._order += expected
            self._post()

    def stop(self) -> None:
        """End the thread, when all that is posted has arrived."""
        self._posted.put(None)

    def _post(self) -> None:
        while self._order and self._posted_count < POSTED_RECEIVES:
            expected = self._order.popleft()
            frame = torch.empty(frame_bytes(expected.template), dtype=torch.uint8)
            if expected.pinned:
                frame = self._pin(frame)
            wait = self._transport.receive(frame, self._source, self._tag)
            self._posted_count += 1
            self._posted.put((expected, frame, wait))

    def run(self) -> None:
        try:
            run_in_main_arena(self._receive_all)
        except BaseException as error:
            self._fail(error)

    def _receive_all(self) -> None:
        try:
            while (item := self._posted.get()) is not None:
                expected, frame, wait = item
                wait(self._timeout)
                with self._lock:
                    self._posted_count -= 1
                    self._post()
                value = unpack_tensor(frame, expected.template, expected.step, expected.key)
                assert expected.deliver is not None
                expected.deliver(value)
                del item, expected, frame, wait, value
        except BaseException as error:
            self._fail(error)


class RankStreams:
    """The streams of one rank, to and from all others, each begun when it is first needed.

    Args:
        timeout: Seconds that a tensor of a step that has begun may take.
        limit: Delays what this rank sends.
        fail: Called with the error that ends a stream.
    """

    def __init__(
        self,
        transport: Transport,
        timeout: float,
        limit: BandwidthLimit | None,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._transport, self._timeout = transport, timeout
        self._limit, self._fail = limit, fail
        self._senders: dict[tuple[int, int], TensorSender] = {}
        self._receivers: dict[tuple[int, int], TensorReceiver] = {}
        self._lock = threading.Lock()

    def sender(self, target: int, stage: int) -> TensorSender:
        """The stream to a rank."""
        with self._lock:
            if (target, stage) not in self._senders:
                tag = FIRST_STREAM_TAG + stage
                sender = TensorSender(self._transport, target, tag, self._limit, self._fail)
                self._senders[target, stage] = sender
                sender.start()
            return self._senders[target, stage]

    def receiver(self, source: int, stage: int) -> TensorReceiver:
        """The stream from a rank."""
        with self._lock:
            if (source, stage) not in self._receivers:
                tag, pin = FIRST_STREAM_TAG + stage, current_backend().pin
                receiver = TensorReceiver(
                    self._transport, source, tag, self._timeout, pin, self._fail
                )
                self._receivers[source, stage] = receiver
                receiver.start()
            return self._receivers[source, stage]

    def close(self, timeout: float) -> None:
        """End all streams, and wait for each of them for some seconds."""
        with self._lock:
            senders, receivers = self._senders.values(), self._receivers.values()
            streams: list[TensorSender | TensorReceiver] = [*senders, *receivers]
        for stream in streams:
            stream.stop()
        for stream in streams:
            if stream is not threading.current_thread():
                stream.join(timeout)
