"""A CUDA device of a plan in, its streams and its staging room out.

A lane has a stream for its ops, one for tensors that come in, one for those that go out to the host
and one for streamed weights, so that nothing waits that need not. Whoever uses a tensor on another
stream than it was made on waits for an event, and tells the allocator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ExecutionError
from placewright.runtime.workers import Late, core, room_for, room_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.graph import Tensor
    from placewright.runtime.staging import Copy, Staging
    from placewright.runtime.workers import Job

URGENT = -1  # the priority of streams that carry tensors, ahead of weights and ops


def new_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """A stream of a GPU."""
    make: Any = torch.cuda.Stream
    stream: torch.cuda.Stream = make(device, priority=priority)
    return stream


def new_event() -> torch.cuda.Event:
    """An event that streams can wait for."""
    make: Any = torch.cuda.Event
    event: torch.cuda.Event = make()
    return event


def pinned_like(value: torch.Tensor) -> torch.Tensor:
    """Pinned memory of the host for a tensor."""
    return torch.empty_like(value, device="cpu", pin_memory=True)


class Lane:
    """One CUDA device of a plan: streams of a GPU, and a room for streamed weights.

    Args:
        source: Gives a stored tensor where it lies.
    """

    def __init__(self, job: Job, source: Callable[[Tensor], torch.Tensor]) -> None:
        self.job, self.number = job, job.number
        self.device = torch.device(job.place.torch_name)
        self.context: Any = None
        self.compute = self._compute()
        self.incoming = new_stream(self.device, URGENT)
        self.outgoing = new_stream(self.device, URGENT)
        self.ended: dict[int, torch.cuda.Event] = {}  # of each turn that others wait for
        self.rooms = _Rooms(self, job.part.staging, source) if job.part.staging else None

    def _compute(self) -> torch.cuda.Stream:
        place = self.job.place
        if not place.multiprocessors:
            return new_stream(self.device)
        try:
            self.context = torch.cuda.GreenContext.create(
                num_sms=place.multiprocessors, device_id=place.index
            )
            if hasattr(self.context, "Stream"):
                stream: torch.cuda.Stream = self.context.Stream()
                return stream
            self.context.set_context()
            try:
                return torch.cuda.current_stream(self.device)
            finally:
                self.context.pop_context()
        except (RuntimeError, AttributeError) as error:
            raise ExecutionError(
                f"device {place.name!r} asks for {place.multiprocessors} multiprocessors: "
                f"this PyTorch or GPU cannot share them out ({error})"
            ) from error

    def mark(self, position: int) -> torch.cuda.Event:
        """Note on the compute stream that an op has ended."""
        event = self.ended.get(position)
        if event is None:
            event = self.ended[position] = new_event()
        event.record(self.compute)
        return event

    def receive(
        self,
        value: torch.Tensor,
        after: torch.cuda.Event | None,
        place: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Bring a tensor from the host or another GPU here; the event says when it has come.

        Args:
            place: Where it goes, if graphs read it there; nobody reads there any more by now.
        """
        if after is not None:
            self.incoming.wait_event(after)
        with torch.cuda.stream(self.incoming):
            if place is None:
                here = value.to(self.device, non_blocking=True)
            else:
                here = place.copy_(value, non_blocking=True)
            if value.is_cuda:
                value.record_stream(self.incoming)
            arrived = new_event()
            arrived.record(self.incoming)
        return here, arrived

    def hand_out(self, value: torch.Tensor) -> Late:
        """Send a stored tensor to the host, once all is done that was issued before."""
        event = new_event()
        event.record(self.compute)
        return self.give_out(value, event)

    def give_out(self, value: torch.Tensor, after: torch.cuda.Event) -> Late:
        """Send a tensor to the host."""
        self.outgoing.wait_event(after)
        with torch.cuda.stream(self.outgoing):
            there = pinned_like(value)
            there.copy_(value, non_blocking=True)
            value.record_stream(self.outgoing)
            arrived = new_event()
            arrived.record(self.outgoing)
        return Late(there, arrived)


class _Rooms:
    """A lane's staging room: copies run ahead of the ops as far as the room permits (rule 6).

    The host says "copy" as soon as the op that must end before it has been issued; the copy stream
    then waits for that op's event. So the host never waits for room.
    """

    def __init__(
        self, lane: Lane, staging: Staging, source: Callable[[Tensor], torch.Tensor]
    ) -> None:
        self.lane, self.staging, self.source = lane, staging, source
        self.stream = new_stream(lane.device)
        self.room = room_of(lane.job, lane.device)
        self.slots = [room_for(self.room, one.offset, source(one.tensor)) for one in staging.copies]
        readers = [copy.reader for copy in staging.copies]
        self.last = {reader: at for at, reader in enumerate(readers)}  # the reader's last copy
        self.arrived = {reader: new_event() for reader in staging.readers}
        self.next = self.issued = 0
        self.freed: torch.cuda.Event | None = None

    def begin(self) -> None:
        """A step begins: the room is free once the last reader of the step before has ended."""
        if self.freed is not None:
            self.stream.wait_event(self.freed)
        else:
            self.stream.wait_stream(self.lane.compute)
        self.next = self.issued = 0
        self.pump()

    def fork(self, event: torch.cuda.Event) -> None:
        """Begin a step that is being captured: copies follow an event of the ops' stream."""
        self.stream.wait_event(event)
        self.next = self.issued = 0
        self.pump()

    def pump(self) -> None:
        """Issue every copy whose room has been, or is going to be, given back by then."""
        copies = self.staging.copies
        with torch.cuda.stream(self.stream):
            while self.next < len(copies) and copies[self.next].after <= self.issued:
                self._copy(self.next, copies[self.next])
                self.next += 1

    def _copy(self, number: int, copy: Copy) -> None:
        if copy.after:
            self.stream.wait_event(self.lane.ended[self.staging.readers[copy.after - 1]])
        core(self.slots[number]).copy_(core(self.source(copy.tensor)), non_blocking=True)
        if self.last[copy.reader] == number:
            self.arrived[copy.reader].record(self.stream)

    def ended(self, event: torch.cuda.Event) -> None:
        """A reader has been issued; its event says when it ends."""
        self.issued += 1
        self.freed = event
        self.pump()
