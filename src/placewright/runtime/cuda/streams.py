"""A CUDA device of a plan in, its streams and its staging room out.

A lane has a stream for its ops, one for tensors that come in, one for those that go out to the host
and one for streamed weights, so that nothing waits that need not. Whoever uses a tensor on another
stream than it was made on waits for an event, and tells the allocator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from placewright.errors import ExecutionError
from placewright.runtime.cpu_worker import (
    Late,
    core,
    room_for,
    room_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.graph import Tensor
    from placewright.runtime.cpu_worker import Job
    from placewright.runtime.staging import Staging

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
        if job.part.staging:  # memory is scarce
            self._let_libraries_begin()
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

    def _let_libraries_begin(self) -> None:
        """Let cuBLAS take its room on the ops' stream before all else.

        In the midst of other tensors it would part what is free around it into smaller pieces.
        """
        with torch.cuda.stream(self.compute):
            one = torch.ones(8, 8, device=self.device)
            torch.mm(one, one)

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


class _Haul(NamedTuple):
    """Weights that come together.

    Args:
        after: How many readers must have been issued before.
        pairs: Where each goes, and where it comes from; one pair if they stand side by side.
        readers: Ops that have all their weights once these have come.
    """

    after: int
    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    readers: list[int]


class _Rooms:
    """A lane's staging room: copies run ahead of the ops as far as the room permits (rule 6).

    The host says "copy" as soon as the op that must end before it has been issued; the copy stream
    then waits for that op's event. So the host never waits for room.
    """

    def __init__(
        self, lane: Lane, staging: Staging, source: Callable[[Tensor], torch.Tensor]
    ) -> None:
        self.lane, self.staging = lane, staging
        self.stream = new_stream(lane.device)
        self.room = room_of(lane.job, lane.device)
        self.slots = [room_for(self.room, one.offset, source(one.tensor)) for one in staging.copies]
        self.hauls = self._hauls(source)
        self.arrived = {reader: new_event() for reader in staging.readers}
        self.next = self.issued = 0
        self.freed: torch.cuda.Event | None = None

    def _hauls(self, source: Callable[[Tensor], torch.Tensor]) -> list[_Haul]:
        found, slots = [], iter(self.slots)
        for haul in self.staging.hauls:
            pairs = [(core(next(slots)), core(source(copy.tensor))) for copy in haul]
            readers = list(dict.fromkeys(copy.reader for copy in haul))
            found.append(_Haul(haul[0].after, as_one(pairs), readers))
        return found

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
        if not self._may():
            return
        with torch.cuda.stream(self.stream):
            while self._may():
                self._bring(self.hauls[self.next])
                self.next += 1

    def _may(self) -> bool:
        """Whether the next copy may be issued."""
        return self.next < len(self.hauls) and self.hauls[self.next].after <= self.issued

    def _bring(self, haul: _Haul) -> None:
        if haul.after:
            self.stream.wait_event(self.lane.ended[self.staging.readers[haul.after - 1]])
        for slot, weight in haul.pairs:
            slot.copy_(weight, non_blocking=True)
        for reader in haul.readers:
            self.arrived[reader].record(self.stream)

    def ended(self, event: torch.cuda.Event) -> None:
        """A reader has been issued; its event says when it ends."""
        self.issued += 1
        self.freed = event
        self.pump()


def as_one(
    pairs: list[tuple[torch.Tensor, torch.Tensor]],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copies as one copy of bytes, where all stand side by side at both ends; else as they are."""
    apart = {slot.data_ptr() - weight.data_ptr() for slot, weight in pairs}
    shared = {side.untyped_storage().data_ptr() for pair in pairs for side in pair}
    alike = all(slot.stride() == weight.stride() for slot, weight in pairs)
    if len(pairs) < 2 or len(apart) > 1 or len(shared) > 2 or not alike:
        return pairs
    sides = zip(*pairs, strict=True)
    slots, weights = (_bytes(list(side)) for side in sides)
    return [(slots, weights)] if len(slots) == len(weights) else pairs


def _bytes(side: list[torch.Tensor]) -> torch.Tensor:
    """The bytes from the first of some tensors of one storage to the end of the last."""
    first, last = side[0], side[-1]
    begin = int(first.storage_offset()) * first.element_size()
    end = int(last.storage_offset()) * last.element_size() + last.nbytes
    whole = torch.empty(0, dtype=torch.uint8, device=first.device)
    return whole.set_(first.untyped_storage(), begin, (end - begin,), (1,))
