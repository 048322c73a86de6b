"""A device's part of a script in, a thread that runs it step by step out.

A worker does what its inbox says: begin a step, take a tensor from another device. It runs its ops
in the plan's order and waits for the head of the line (rule 2). With several steps in flight it
takes the oldest step whose next op is ready.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from placewright.errors import ExecutionError
from placewright.runtime.host_allocator import in_kept_memory
from placewright.runtime.instructions import ENV, HOME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.instructions import Part, Turn
    from placewright.runtime.program.runners import Runner
    from placewright.runtime.real_devices import Place
    from placewright.runtime.staging import Copy
    from placewright.runtime.weight_storage import Home


PAGEABLE = 2**16  # bytes up to which a copy to a GPU does not hold up who issues it


class Note(NamedTuple):
    """What is said to a device.

    Args:
        what: `begin` (with the inputs), `tensor`, `read` (an op has read what is to change),
            `copy` (of a streamed weight) or `stop`.
        event: When the value is there, if it is still being made on a GPU.
    """

    what: str
    step: int = 0
    key: Any = None
    value: Any = None
    event: torch.cuda.Event | None = None


class Done(NamedTuple):
    """What a device has to say when its part of a step is over."""

    step: int
    device: int
    outputs: Mapping[Tensor, torch.Tensor]
    failure: BaseException | None = None
    where: str = ""


class Late(NamedTuple):
    """A tensor that is still on its way from a GPU."""

    value: torch.Tensor
    event: torch.cuda.Event

    def wait(self) -> torch.Tensor:
        """The tensor, once it is here."""
        self.event.synchronize()
        return self.value


@dataclass
class Step:
    """A step that a device is in the middle of."""

    number: int
    env: dict[Tensor, Any]
    at: int = 0
    copies: dict[int, torch.Tensor] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)

    def ready(self, turn: Turn) -> bool:
        """Whether all that an op waits for is here."""
        return (
            all(tensor in self.env for tensor in turn.needs)
            and all(op in self.read for op in turn.after)
            and all(key in self.copies for where, key in turn.inputs if where not in (ENV, HOME))
        )


@dataclass(frozen=True)
class Job:
    """All that a device needs to do its part.

    Args:
        runners: Of each turn.
        names: Of each turn's op.
        send: Says something to another device.
        report: Says that the part of a step is over.
        gpus: The numbers of the devices that are GPUs.
        rooms: Staging rooms, by the name of their device; programs that never run at the same time
            share them.
        record: Called with (position, begin, end) after every op, if given.
        watch: Called with (device, step, turn, environment) after every op, if given.
    """

    number: int
    place: Place
    part: Part
    home: Home
    runners: Sequence[Runner]
    names: Sequence[str]
    send: Callable[[int, Note], None]
    report: Callable[[Done], None]
    gpus: frozenset[int] = frozenset()
    rooms: dict[str, torch.Tensor] = field(default_factory=dict)
    record: Callable[[int, float, float], None] | None = None
    watch: Callable[[int, Any, Turn, Sequence[torch.Tensor]], None] | None = None


class Worker(threading.Thread):
    """A CPU device: a thread with cores of its own."""

    def __init__(self, job: Job, streamer: Callable[[Note], None] | None = None) -> None:
        super().__init__(name=f"placewright-{job.place.name}", daemon=True)
        self.job, self.streamer = job, streamer
        self.inbox: queue.SimpleQueue[Note] = queue.SimpleQueue()
        self.steps: list[Step] = []
        self.early: dict[int, list[Note]] = {}  # what came before its step had begun here
        self.doing = 0, next(iter(job.names), "")  # the step and the op that it is at

    def run(self) -> None:
        with told(self):
            in_kept_memory(self._work)

    def _work(self) -> None:
        place = self.job.place
        with told(self), torch.no_grad():  # here, too: it may run in a thread below this one
            if place.cores and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, place.cores)  # of this thread alone
            # OpenMP keeps this number thread by thread, so workers may differ.
            torch.set_num_threads(place.threads)
            self.serve()

    def serve(self) -> None:
        """Do what the inbox says, until it says to stop.

        What an op raises is reported. What else goes wrong is raised; the thread reports that, too.
        """
        while True:
            step = self._next()
            if step is not None and self.inbox.empty():
                self._turn(step)
                continue
            note = self.inbox.get()
            if note.what == "stop":
                return
            self.doing = note.step, self.doing[1]
            self._take(note)

    def _take(self, note: Note) -> None:
        if note.what == "begin":
            self.steps.append(Step(note.step, dict(note.value)))
            if self.streamer is not None:
                self.streamer(note)
            for early in self.early.pop(note.step, ()):
                self._take(early)
            return
        found = next((step for step in self.steps if step.number == note.step), None)
        if found is None:
            self.early.setdefault(note.step, []).append(note)
        elif note.what == "tensor":
            found.env[note.key] = note.value
        elif note.what == "copy":
            found.copies[note.key] = note.value
        else:
            found.read.add(note.key)

    def _next(self) -> Step | None:
        """The oldest step whose next op is ready; a staging room serves one step at a time."""
        looked_at = self.steps[:1] if self.streamer is not None else self.steps
        turns = self.job.part.turns
        for step in looked_at:
            if step.ready(turns[step.at]):
                return step
        return None

    def _turn(self, step: Step) -> None:
        job = self.job
        turn = job.part.turns[step.at]
        env, home = step.env, job.home
        self.doing = step.number, job.names[step.at]
        try:
            for tensor in turn.needs:
                if isinstance(env[tensor], Late):
                    env[tensor] = env[tensor].wait()
            read = [
                env[key] if where == ENV else home[key] if where == HOME else step.copies[key]
                for where, key in turn.inputs
            ]
            begin = time.perf_counter()
            made = job.runners[step.at](read)
            end = time.perf_counter()
        except Exception as error:
            self.steps.remove(step)
            job.report(Done(step.number, job.number, {}, error, job.names[step.at]))
            return
        position = turn.position
        for output, value in enumerate(made):
            env[position, output] = value
        for output, target in turn.sends:
            value = made[output]
            if target in job.gpus and value.nbytes > PAGEABLE:
                value = value.pin_memory()  # here, so that the thread that issues does not wait
            job.send(target, Note("tensor", step.number, (position, output), value))
        for target in turn.tells:
            job.send(target, Note("read", step.number, position))
        streamed = [key for where, key in turn.inputs if where not in (ENV, HOME)]
        if streamed and self.streamer is not None:
            del read
            for key in streamed:
                del step.copies[key]
            self.streamer(Note("read", step.number, position))
        if job.watch is not None:
            job.watch(job.number, step, turn, made)
        for tensor in turn.frees:
            env.pop(tensor, None)
        if job.record is not None:
            job.record(position, begin, end)
        step.at += 1
        if step.at == len(job.part.turns):
            self._finish(step)

    def _finish(self, step: Step) -> None:
        self.steps.remove(step)
        outputs = {
            tensor: step.env[tensor] if tensor in step.env else self.job.home[tensor]
            for tensor in self.job.part.outputs
        }
        self.job.report(Done(step.number, self.job.number, outputs))


class Streamer(threading.Thread):
    """Copies streamed weights into a CPU device's staging room, in order, as room permits."""

    def __init__(self, job: Job, source: Callable[[Tensor], torch.Tensor]) -> None:
        super().__init__(name=f"placewright-{job.place.name}-copies", daemon=True)
        assert job.part.staging is not None
        self.job, self.staging, self.source = job, job.part.staging, source
        self.room = room_of(job, torch.device("cpu"))
        self.inbox: queue.SimpleQueue[Note] = queue.SimpleQueue()
        self.begun: deque[int] = deque()  # steps that wait for their copies, the oldest first
        self.ended = 0  # readers, in this step
        turns = job.part.turns
        self.names = {turn.position: name for turn, name in zip(turns, job.names, strict=True)}
        self.doing = 0, self.names[self.staging.readers[0]]  # the step, and whose weight

    def run(self) -> None:
        with told(self), torch.no_grad():
            while self._hear():
                while self.begun:
                    if not self._step(self.begun.popleft()):
                        return

    def _hear(self) -> bool:
        """Wait for what the inbox says next; false if it says to stop."""
        note = self.inbox.get()
        if note.what == "begin":
            self.begun.append(note.step)
        elif note.what == "read":
            self.ended += 1
        return note.what != "stop"

    def _step(self, step: int) -> bool:
        """Make the copies of a step, and see its readers end; false if told to stop."""
        self.ended = 0
        for number, copy in enumerate(self.staging.copies):
            if not self._wait(copy.after):
                return False
            self.doing = step, self.names[copy.reader]
            self.job.send(self.job.number, Note("copy", step, number, self._copy(copy)))
        return self._wait(len(self.staging.readers))

    def _wait(self, readers: int) -> bool:
        """Wait until so many readers have ended; false if told to stop."""
        while self.ended < readers:
            if not self._hear():
                return False
        return True

    def _copy(self, copy: Copy) -> torch.Tensor:
        try:
            source = self.source(copy.tensor)
            made = room_for(self.room, copy.offset, source)
            core(made).copy_(core(source))
        except Exception as error:
            raise ExecutionError(f"a weight that it reads cannot be copied: {error}") from error
        return made


@contextmanager
def told(thread: Worker | Streamer) -> Iterator[None]:
    """Report whatever goes wrong in a thread: the caller would wait for it for ever."""
    try:
        yield
    except BaseException as error:  # an exit, too, ends no more than the thread
        step, op = thread.doing
        thread.job.report(Done(step, thread.job.number, {}, error, op))


def room_of(job: Job, device: torch.device) -> torch.Tensor:
    """The staging room of a device: the one that is there, or a larger one in its place."""
    assert job.part.staging is not None
    name, size = job.place.name, job.part.staging.room
    if name not in job.rooms or len(job.rooms[name]) < size:
        job.rooms[name] = torch.empty(size, dtype=torch.uint8, device=device)
    return job.rooms[name]


def room_for(room: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor like another one, in a room of bytes; to be filled through its `core`."""
    dense = torch.empty_like(core(like), device="meta")
    size = dense.untyped_storage().nbytes()
    stretch = room[offset : offset + size].view(like.dtype)
    return stretch.as_strided(dense.shape, dense.stride()).expand(like.shape)


def core(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without the dimensions along which the same memory is read again and again."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    sizes = [1 if step == 0 else size for size, step in pairs]
    return tensor.as_strided(sizes, tensor.stride(), tensor.storage_offset())
