"""The CUDA parts of a script in; their ops issued, by one host thread in the plan's order, out.

The host waits only where an op needs what a CPU device has not made yet, and has by then issued
every transfer and every copy of streamed weights that can run meanwhile.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from placewright.runtime.cpu_worker import (
    Done,
    Job,
    Note,
)
from placewright.runtime.cuda.graphs import (
    NOTE,
    REPLAY,
    Graphs,
)
from placewright.runtime.cuda.streams import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.instructions import Turn


@dataclass
class _Step:
    """A step that is being issued."""

    number: int
    env: list[dict[Tensor, torch.Tensor]]
    at: int = 0
    arrived: dict[tuple[int, Tensor], torch.cuda.Event] = field(default_factory=dict)
    read: set[tuple[int, int]] = field(default_factory=set)
    events: dict[int, torch.cuda.Event] = field(default_factory=dict)


def _places(lane: Lane, step: _Step) -> tuple[Any, Any, Any]:
    """Where an op finds what it reads: by `ENV`, `HOME` and `ROOM`."""
    return step.env[lane.number], lane.job.home, None if lane.rooms is None else lane.rooms.slots


_issuers: WeakSet[Issuer] = WeakSet()  # that have not let go of their streams


def clear_workspaces() -> None:
    """Let cuBLAS give back its room on all streams; it takes it anew when it is used.

    It keeps it while there are graphs anywhere, which were captured with it and work in it.
    """
    captured = any(issuer.graphs.captured for issuer in _issuers)
    if torch.cuda.is_available() and not captured:
        torch._C._cuda_clearCublasWorkspaces()


class Issuer:
    """Issues the ops of all CUDA devices of a plan.

    Args:
        jobs: Of the CUDA devices, by number.
        order: (device, turn) of each of their ops, in the plan's order.
        source: Gives a stored tensor where it lies.
        graphs: Whether to capture runs of ops once and replay them; None: if that is quicker.
        workers: Whether CPU devices have ops, too.
    """

    def __init__(
        self,
        jobs: Mapping[int, Job],
        order: Sequence[tuple[int, int]],
        devices: int,
        source: Callable[[Tensor], torch.Tensor],
        graphs: bool | None,
        workers: bool = True,
    ) -> None:
        self.alone = len({job.place.index for job in jobs.values()}) == 1 and not workers
        """Whether one GPU does all ops, on one stream or several."""
        self.jobs, self.order, self.devices = jobs, order, devices
        self.inbox: queue.SimpleQueue[Note] = queue.SimpleQueue()
        self.lanes = {number: Lane(job, source) for number, job in jobs.items()}
        self.steps: list[_Step] = []
        self.staged = any(lane.rooms is not None for lane in self.lanes.values())
        self.current: Lane | None = None
        self.graphs = Graphs(self, graphs)
        _issuers.add(self)
        self.plain = [
            index if number == before and self._plain(jobs[number], index) else -1
            for (number, index), (before, _) in zip(order, [(-1, -1), *order], strict=False)
        ]
        """The turn of each op, in order, that follows one of its device and meets nobody; or -1."""
        self.begun = 0

    # -- steps ---------------------------------------------------------------------------------

    def run_until(self, number: int) -> bool:
        """Issue ops until a step is over here; false if told to stop before."""
        devices = {lane.device for lane in self.lanes.values()}
        before = {device: torch.cuda.current_stream(device) for device in devices}
        try:
            with torch.no_grad():
                while any(step.number <= number for step in self.steps) or self._expects(number):
                    step = self._next()
                    if step is None:
                        note = self.inbox.get()
                    elif self.inbox.empty():
                        self._advance(step)
                        continue
                    else:
                        note = self.inbox.get_nowait()
                    if note.what == "stop":
                        return False
                    self._take(note)
        finally:
            self.current = None
            for stream in before.values():
                torch.cuda.set_stream(stream)
        return True

    def _expects(self, number: int) -> bool:
        """Whether a step has been announced, and its note not been read yet."""
        return self.begun <= number

    def _take(self, note: Note) -> None:
        if note.what == "begin":
            self.begun = note.step + 1
            step = self.blank_step(note.step)
            self.steps.append(step)
            covered = self.graphs.covers
            self.graphs.begin()
            if covered and not self.graphs.covers and self.steps[0].at == 0 < len(self.steps) - 1:
                self._begin_rooms()  # of the step before, which was to be one graph
            for number, lane in self.lanes.items():
                step.env[number].update(note.value[number])
                if lane.rooms is not None and len(self.steps) == 1 and not self.graphs.covers:
                    lane.rooms.begin()
            return
        step = next(step for step in self.steps if step.number == note.step)
        target, key = note.key
        if note.what == "read":
            step.read.add((target, key))
            return
        try:
            self._receive(step, target, key, note.value, note.event)
        except Exception as error:
            self._fail(step, error)

    def blank_step(self, number: int = -1) -> _Step:
        """A step of which nothing is issued yet."""
        return _Step(number, [{} for _ in range(self.devices)])

    def _receive(
        self,
        step: _Step,
        target: int,
        key: Tensor,
        value: torch.Tensor,
        after: torch.cuda.Event | None,
    ) -> None:
        lane = self.lanes[target]
        if value.is_cuda and value.device == lane.device:  # another stream of the same GPU
            step.env[target][key] = value
            if after is not None:
                step.arrived[target, key] = after
        else:
            try:
                here, arrived = lane.receive(value, after, self.graphs.place(target, key))
            except torch.OutOfMemoryError:
                if not self.graphs.give_up(step.at):
                    raise
                here, arrived = lane.receive(value, after)
            step.env[target][key], step.arrived[target, key] = here, arrived

    def _next(self) -> _Step | None:
        """The oldest step whose next op has all it needs from CPU devices."""
        for step in self.steps[:1] if self.staged else self.steps:
            number, index = self.order[step.at]
            turn = self.jobs[number].part.turns[index]
            needs = self.graphs.needs(step.at)
            if needs is None:
                here = all(tensor in step.env[number] for tensor in turn.needs)
            else:
                here = all(tensor in step.env[holder] for holder, tensor in needs)
            if here and all(self._has_read(step, number, op) for op in turn.after):
                return step
        return None

    def _has_read(self, step: _Step, number: int, op: int) -> bool:
        return (number, op) in step.read or op in step.events

    # -- ops -----------------------------------------------------------------------------------

    def _advance(self, step: _Step) -> None:
        """Issue the next op of a step, or the run of ops that was captured together."""
        number, index = self.order[step.at]
        lane, job = self.lanes[number], self.jobs[number]
        if self.current is not lane:
            torch.cuda.set_stream(lane.compute)
            self.current = lane
        try:
            needs = self.graphs.needs(step.at)
            if needs is None:
                self.wait(step, lane, job.part.turns[index])
            else:
                self._wait_all(step, lane, needs)
            count = self.graphs.run(step, lane, step.at)
            if not count:
                self._issue_alone(step, lane, index)
            if needs is None:
                for one in self.graphs.segments[step.at].heard if count else (index,):
                    self.after(step, lane, job.part.turns[one])
            step.at += count or 1
            if needs is None:  # or the next op may be of another lane
                self._issue_plain(step, lane)
        except Exception as error:
            self._fail(step, error)
            return
        if step.at == len(self.order):
            self._finish(step)

    def _fail(self, step: _Step, error: Exception) -> None:
        """Report that the op which a step stands at has failed."""
        self.steps.remove(step)
        number, index = self.order[step.at]
        job = self.jobs[number]
        job.report(Done(step.number, number, {}, error, job.names[index]))

    def _issue_plain(self, step: _Step, lane: Lane) -> None:
        """Issue what follows and meets nobody: a host that is slower than the GPU does little else.

        It looks for notes in between, since what comes from elsewhere is to be sent on at once.
        """
        job, env, rooms, empty = lane.job, step.env[lane.number], lane.rooms, self.inbox.empty
        turns, runners, places = job.part.turns, job.runners, _places(lane, step)
        arrived = {} if rooms is None else rooms.arrived
        segments = self.graphs.segments if self.graphs.mode == REPLAY else {}
        for at in range(step.at, len(self.order)):
            index = self.plain[at]
            if index < 0 or at in segments or self.graphs.mode == NOTE or not empty():
                return
            turn = turns[index]
            position = turn.position
            come = arrived.get(position)
            if come is not None:
                lane.compute.wait_event(come)
            try:
                made = runners[index]([places[where][key] for where, key in turn.inputs])
            except torch.OutOfMemoryError:
                return  # it is issued alone
            for output, value in enumerate(made):
                env[position, output] = value
            if come is not None and rooms is not None:
                rooms.ended(lane.mark(position))
            for tensor in turn.frees:
                env.pop(tensor, None)
            step.at = at + 1

    @staticmethod
    def _plain(job: Job, index: int) -> bool:
        """Whether an op waits for no other device, and none for it."""
        turn = job.part.turns[index]
        meets = turn.needs or turn.after or turn.sends or turn.tells or turn.in_place
        return not meets and job.watch is None

    def _issue_alone(self, step: _Step, lane: Lane, index: int) -> None:
        """Issue an op that is part of no graph; graphs must not take the memory that it needs."""
        try:
            self.issue(step, lane, index)
            return
        except torch.OutOfMemoryError:
            if lane.job.part.turns[index].in_place or not self.graphs.give_up(step.at):
                raise
        self.issue(step, lane, index)

    def wait(self, step: _Step, lane: Lane, turn: Turn) -> None:
        """Let the compute stream wait for what an op needs from other streams."""
        for tensor in turn.needs:
            event = step.arrived.pop((lane.number, tensor), None)
            if event is not None:
                lane.compute.wait_event(event)
                step.env[lane.number][tensor].record_stream(lane.compute)
        for op in turn.after:
            if op in step.events:
                lane.compute.wait_event(step.events[op])
        self.wait_room(lane, turn)

    def _wait_all(self, step: _Step, lane: Lane, needs: Sequence[tuple[int, Tensor]]) -> None:
        """Let the stream of a captured step wait for all that comes from elsewhere."""
        for holder, tensor in needs:
            event = step.arrived.pop((holder, tensor), None)
            if event is not None:
                lane.compute.wait_event(event)
                step.env[holder][tensor].record_stream(lane.compute)

    @staticmethod
    def wait_room(lane: Lane, turn: Turn) -> None:
        """Let the compute stream wait for an op's streamed weights."""
        if lane.rooms is not None and turn.position in lane.rooms.arrived:
            lane.compute.wait_event(lane.rooms.arrived[turn.position])

    def issue(self, step: _Step, lane: Lane, index: int) -> None:
        """Issue one op on the current stream."""
        job, env, places = lane.job, step.env[lane.number], _places(lane, step)
        turn = job.part.turns[index]
        read = [places[where][key] for where, key in turn.inputs]
        if self.graphs.mode == NOTE:
            self.graphs.note(lane.number, turn, read)
        made = job.runners[index](read)
        for output, value in enumerate(made):
            env[turn.position, output] = value
        if job.watch is not None:
            job.watch(lane.number, step, turn, made)

    def after(self, step: _Step, lane: Lane, turn: Turn) -> None:
        """Send what an op made, give back its room, and let go of what nobody needs."""
        env, position = step.env[lane.number], turn.position
        streamed = lane.rooms is not None and position in lane.rooms.arrived
        if turn.sends or turn.tells or streamed:
            event = lane.mark(position)
            for output, target in turn.sends:
                self.send(step, lane, target, (position, output), env[position, output], event)
            for target in turn.tells:
                if target in self.lanes:
                    step.events[position] = event
                else:
                    event.synchronize()
                    lane.job.send(target, Note("read", step.number, position))
            if streamed and lane.rooms is not None:
                lane.rooms.ended(event)
        for tensor in turn.frees:
            env.pop(tensor, None)

    def send(
        self,
        step: _Step,
        lane: Lane,
        target: int,
        key: Tensor,
        value: torch.Tensor,
        event: torch.cuda.Event,
    ) -> None:
        """Send a tensor from a GPU."""
        if target in self.lanes:
            self._receive(step, target, key, value, event)
        else:
            late: Any = lane.give_out(value, event)
            lane.job.send(target, Note("tensor", step.number, key, late))

    def _finish(self, step: _Step) -> None:
        self.steps.remove(step)
        for number, lane in self.lanes.items():
            outputs = {}
            with torch.cuda.stream(lane.compute):
                for tensor in lane.job.part.outputs:
                    own = tensor in step.env[number]
                    value = step.env[number][tensor] if own else lane.job.home[tensor]
                    outputs[tensor] = self.graphs.own(value)
            lane.job.report(Done(step.number, number, outputs))
        if self.steps:
            self._begin_rooms()
        self.graphs.finish()

    def _begin_rooms(self) -> None:
        for lane in self.lanes.values():
            if lane.rooms is not None:
                lane.rooms.begin()

    def meet(self) -> None:
        """Let all that is issued from now on wait for what the caller's streams do."""
        for lane in self.lanes.values():
            now = torch.cuda.current_stream(lane.device)
            lane.compute.wait_stream(now)
            lane.incoming.wait_stream(now)
            if lane.rooms is not None:
                lane.rooms.stream.wait_stream(now)

    def let_go(self) -> None:
        """Give back rooms, graphs and what libraries keep for the streams (cuBLAS 32 MiB each).

        At once: lanes and rooms know each other, so they would stay until garbage is collected.
        """
        for lane in self.lanes.values():
            lane.compute.synchronize()
            lane.rooms = None
        self.graphs.drop()
        self.lanes, self.jobs = {}, {}
        _issuers.discard(self)
        clear_workspaces()

    def join(self, outputs: Iterable[torch.Tensor]) -> None:
        """Let the caller's streams wait for all that was issued, and have the outputs."""
        for lane in self.lanes.values():
            torch.cuda.current_stream(lane.device).wait_stream(lane.compute)
        for value in outputs:
            if value.is_cuda:
                value.record_stream(torch.cuda.current_stream(value.device))
