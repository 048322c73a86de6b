"""Runs of ops of one GPU in, each captured once as a CUDA graph and replayed, out.

Issuing a small op from Python takes the host some 20 µs, so a step of many small ops waits for the
host. A run of ops between two points where devices must meet is captured instead: it begins when
all its streamed weights have come, while those of the next runs are on their way. Where one GPU
does all, it is the whole step, on all of its streams and copies of streamed weights included. What
it reads must then always lie in the same place, so what comes from elsewhere is copied there.

Capturing runs nothing, so it needs no step: what graphs will read is noted in the first step, and
between two steps all are captured in a row, each tensor freed where a step frees it.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from placewright.runtime.cuda.graph_segments import (
    Held,
    Segment,
    segments_of,
)
from placewright.runtime.instructions import ENV
from placewright.runtime.micro_batches import updates_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Tensor
    from placewright.runtime.cuda.issuer import Issuer
    from placewright.runtime.cuda.streams import Lane
    from placewright.runtime.instructions import Turn

NOTE, EAGER, REPLAY = "note", "eager", "replay"
_TRIED = 3  # steps each way before one way is chosen


class Graphs:
    """Decides which runs of ops are captured, and replays them.

    Args:
        wanted: Whether to capture; None: try both ways, step by step, and keep the quicker.
    """

    def __init__(self, issuer: Issuer, wanted: bool | None) -> None:
        self.issuer, self.wanted = issuer, wanted
        self.segments = {} if wanted is False else {one.begin: one for one in segments_of(issuer)}
        self.mode = EAGER
        self.gathered = updates_of(issuer.jobs.values())
        self.steps = 0
        self.seconds: dict[str, list[float]] = {EAGER: [], REPLAY: []}
        self.noted: dict[Held, torch.Tensor] = {}  # tensors that graphs may read, without data
        self.homes: dict[int, set[int]] = {}  # where stored tensors lie, by device, while noting
        self.fixed: set[int] = set()  # memory that a replay overwrites
        self.places: dict[Held, torch.Tensor] = {}  # of tensors that graphs read and none made
        self.why = ""
        """Why ops are issued one by one, where nobody asked for that."""
        self._began = 0.0

    @property
    def settled(self) -> bool:
        """Whether it is decided how steps are run."""
        return not self.segments or self.steps > (1 if self.wanted else 2 * _TRIED)

    @property
    def captured(self) -> bool:
        """Whether there are graphs."""
        return any(segment.graph is not None for segment in self.segments.values())

    @property
    def covers(self) -> bool:
        """Whether the step at hand is one graph, but for a few ops at its end."""
        return self.mode == REPLAY and any(one.whole for one in self.segments.values())

    @property
    def gathers(self) -> bool:
        """Whether updates only add up gradients now, which is not what was captured."""
        return any(run.waits for run in self.gathered)

    def needs(self, at: int) -> list[Held] | None:
        """What must have come before the graph that begins here; None if none does."""
        segment = self.segments.get(at) if self.mode == REPLAY else None
        return segment.needs if segment is not None and segment.whole else None

    def place(self, number: int, tensor: Tensor) -> torch.Tensor | None:
        """Where the graphs that read a tensor want it; None if none was captured."""
        return self.places.get((number, tensor)) if self.mode == REPLAY else None

    # -- steps ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins: decide how it is run."""
        if not self.segments:
            return
        if len(self.issuer.steps) > 1:  # which must not share their tensors
            self.drop("several steps are in flight")
            return
        if self.gathers:
            self.mode = EAGER
            return
        lanes = list(self.issuer.lanes.values())
        for lane in lanes:
            for other in lanes:
                if other is not lane and other.device == lane.device:
                    lane.compute.wait_stream(other.compute)
        eager = 1 if self.wanted else _TRIED
        self.mode = NOTE if self.steps == 0 else EAGER if self.steps < eager else REPLAY
        if self.mode == NOTE:
            self.homes = {lane.number: set(map(_memory, lane.job.home.values())) for lane in lanes}
        if self.steps == eager:
            self._capture()
        if self.wanted is None and self.steps == 2 * _TRIED:
            self._choose()
        self._began = time.perf_counter()

    def finish(self) -> None:
        """A step is over; the first few are timed to the end."""
        if not self.segments or self.gathers:
            return
        if self.wanted is None and self.steps < 2 * _TRIED:
            for lane in self.issuer.lanes.values():
                lane.compute.synchronize()
            self.seconds[REPLAY if self.mode == REPLAY else EAGER].append(
                time.perf_counter() - self._began
            )
        self.steps += 1

    def _choose(self) -> None:
        """Keep the quicker way; the first step of either kind is not typical."""
        replayed, eager = (median(self.seconds[mode][1:]) for mode in (REPLAY, EAGER))
        if replayed >= eager:
            self.drop(f"a replay took {1e3 * replayed:.2f} ms, op by op it is {1e3 * eager:.2f}")

    def __str__(self) -> str:
        count = sum(segment.graph is not None for segment in self.segments.values())
        if count:
            return f"{count} graph{'s' * (count > 1)}"
        return f"op by op: {self.why}" if self.why else "op by op"

    def drop(self, why: str = "") -> None:
        """Forget all that was captured: ops are issued one by one from now on."""
        self.segments, self.mode, self.why = {}, EAGER, why or self.why
        self.fixed.clear()
        self.places.clear()

    def give_up(self, at: int = 0) -> bool:
        """There is no memory for graphs beside the ops: do without; false if that cannot be.

        Args:
            at: Where the step stands. What graphs have made for later ones alone, no op would find.
        """
        later = [one for one in self.segments.values() if one.begin >= at]
        if not self.segments or any(begin < at for one in later for begin in one.makers):
            return False
        self.drop("there is no memory for graphs")
        _make_room(self.issuer)
        return True

    def note(self, number: int, turn: Turn, read: Sequence[torch.Tensor]) -> None:
        """Keep in mind what tensors look like that an op reads, and that graphs may read.

        A state that was changed in place, or a view of a stored tensor, is read where it lies.
        """
        for (where, key), value in zip(turn.inputs, read, strict=True):
            if where == ENV and (number, key) not in self.noted:
                stored = _memory(value) in self.homes[number]
                self.noted[number, key] = (
                    value if stored else torch.empty_like(value, device="meta")
                )

    def run(self, step: Any, lane: Lane, at: int) -> int:
        """Issue the run of ops that begins here, if there is one; how many ops that were."""
        segment = self.segments.get(at) if self.mode == REPLAY else None
        if segment is None:
            return 0
        for index in segment.streamed:
            self.issuer.wait_room(lane, lane.job.part.turns[index])
        for (number, tensor), place in segment.inputs.items():
            given = step.env[number][tensor]
            if given is not place:
                step.env[number][tensor] = place.copy_(given)
        segment.graph.replay()
        for (number, tensor), value in segment.outputs.items():
            step.env[number][tensor] = value
        if not segment.whole:
            return len(segment.turns)
        for other in self.issuer.lanes.values():
            if other is not lane:
                other.compute.wait_stream(lane.compute)
        return segment.whole

    def own(self, value: torch.Tensor) -> torch.Tensor:
        """A value that the next step does not overwrite."""
        if _memory(value) not in self.fixed:
            return value
        try:
            return value.clone()
        except torch.OutOfMemoryError:
            self.give_up()  # then nothing overwrites it
            return value

    # -- capturing -----------------------------------------------------------------------------

    def _capture(self) -> None:
        """Capture all runs of ops, without running them; those that cannot be are left out."""
        while self.segments:
            _make_room(self.issuer)  # a capture cannot use what the steps before have left
            with torch.inference_mode(False), torch.no_grad():
                begin = self._try_all()
            if begin is None:
                if not any(one.whole for one in self.segments.values()):
                    self._try_beside()
                for lane in self.issuer.lanes.values():
                    torch.cuda.synchronize(lane.device)  # or places are filled before they are zero
                break
            self.segments.pop(begin, None)
            for segment in self.segments.values():  # which may need what that one was to make
                segment.graph, segment.inputs, segment.outputs = None, {}, {}
                segment.makers = set()
            self.fixed.clear()
            self.places.clear()
        if not self.segments:
            self.mode = EAGER
            _make_room(self.issuer)
        self.noted.clear()
        self.homes.clear()

    def _try_beside(self) -> None:
        """Give up if there is no memory for what is issued one by one between graphs."""
        try:
            for lane in self.issuer.lanes.values():
                torch.empty(self._beside(lane), dtype=torch.uint8, device=lane.device)
        except torch.OutOfMemoryError:
            self.give_up()

    def _beside(self, lane: Lane) -> int:
        """The most bytes at once that come from elsewhere to no place, or that no graph makes."""
        number, graphed = lane.number, self._graphed(lane)
        made: dict[int, list[Tensor]] = {}
        for holder, key in self.noted:
            if holder == number:
                made.setdefault(key[0], []).append(key)
        alive: dict[Tensor, int] = {}
        most = 0
        for at, turn in enumerate(lane.job.part.turns):
            new = [key for key in turn.needs if (number, key) not in self.places]
            new += made.get(turn.position, []) if at not in graphed else []
            alive |= {key: self.noted[number, key].nbytes for key in new}
            most = max(most, sum(alive.values()))
            for key in turn.frees:
                alive.pop(key, None)
        return most

    def _try_all(self) -> int | None:
        """Capture all runs of ops; where the one begins that cannot be."""
        step, pools = self.issuer.blank_step(), dict[int, Any]()
        maker: dict[Held, int] = {}
        for segment in sorted(self.segments.values(), key=lambda one: one.begin):
            lane = self.issuer.lanes[self.issuer.order[segment.begin][0]]
            pool = pools.setdefault(lane.number, torch.cuda.graph_pool_handle())
            try:
                self._record(segment, step, lane, pool, maker)
            except Exception as error:
                torch.cuda.synchronize(lane.device)
                # The end of a capture that was broken off may fail, too.
                short = torch.OutOfMemoryError in (type(error), type(error.__context__))
                self.why = str(error).partition("\n")[0]
            else:
                continue
            if short:  # and the error, which knew what had been made, is gone
                self.give_up()
            return segment.begin
        return None

    def _record(
        self, segment: Segment, step: Any, lane: Lane, pool: Any, maker: dict[Held, int]
    ) -> None:
        for held in self._read(segment, lane):
            self._settle(segment, step, held)
            segment.makers |= {maker[held]} if held in maker else set()
        before = [set(env) for env in step.env]
        kept = None if segment.whole else self._kept(lane)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=pool, stream=lane.compute, capture_error_mode="thread_local"
        ):
            if kept is None:
                self._issue_step(segment, step, lane)
            else:
                self._issue_run(segment, step, lane, kept)
        for number, env in enumerate(step.env):
            for key, value in env.items():
                if key not in before[number] and (kept is None or key in kept):
                    segment.outputs[number, key] = value
                elif key not in before[number]:
                    maker[number, key] = segment.begin
        segment.graph = graph
        self.fixed |= set(map(_memory, segment.outputs.values()))

    def _settle(self, segment: Segment, step: Any, held: Held) -> None:
        """Give what a run of ops reads a place, unless a graph has put it into one."""
        number, tensor = held
        if tensor not in step.env[number]:
            like, lane = self.noted[held], self.issuer.lanes[number]
            if like.is_meta and held not in self.places:
                with torch.cuda.stream(lane.compute):
                    self.places[held] = torch.zeros_like(like, device=lane.device)
                self.fixed.add(_memory(self.places[held]))
            step.env[number][tensor] = self.places[held] if like.is_meta else like
        if held in self.places:
            segment.inputs[held] = self.places[held]

    def _graphed(self, lane: Lane) -> set[int]:
        """The turns of a lane that are parts of graphs."""
        order = self.issuer.order
        mine = [one for one in self.segments.values() if order[one.begin][0] == lane.number]
        return {at for one in mine for at in one.turns}

    def _kept(self, lane: Lane) -> set[Tensor]:
        """What is not read by graphs alone; the room of all else can be used again.

        What is sent stays: who fetches it may take longer than the next graph.
        """
        graphed, kept = self._graphed(lane), set(lane.job.part.outputs)
        for at, turn in enumerate(lane.job.part.turns):
            kept |= {(turn.position, output) for output, _ in turn.sends}
            if at not in graphed:
                kept |= {key for where, key in turn.inputs if where == ENV}
        return kept

    def _read(self, segment: Segment, lane: Lane) -> list[Held]:
        """What a run of ops reads that it does not make."""
        run = self.issuer.order[: segment.whole]
        run = run or [(lane.number, at) for at in segment.turns]
        turns = [(number, self.issuer.jobs[number].part.turns[index]) for number, index in run]
        made = {turn.position for _, turn in turns}
        found = {
            (number, key): None
            for number, turn in turns
            for where, key in turn.inputs
            if where == ENV and key[0] not in made
        }
        return list(found)

    def _issue_run(self, segment: Segment, step: Any, lane: Lane, kept: set[Tensor]) -> None:
        """Issue ops of one device that meet nobody."""
        env, turns = step.env[lane.number], lane.job.part.turns
        for index in segment.turns:
            self.issuer.issue(step, lane, index)
            for tensor in turns[index].frees:
                if tensor not in kept:
                    env.pop(tensor, None)

    def _issue_step(self, segment: Segment, step: Any, first: Lane) -> None:
        """Issue a whole step: other streams leave the first one, and come back to it."""
        issuer = self.issuer
        begun, joined = first.mark(-1), []
        try:
            for lane in issuer.lanes.values():
                if lane is not first:
                    joined.append(lane.compute)
                    lane.compute.wait_event(begun)
                if lane.rooms is not None:
                    joined.append(lane.rooms.stream)
                    lane.rooms.fork(begun)
            for number, index in issuer.order[: segment.whole]:
                lane = issuer.lanes[number]
                if len(issuer.lanes) > 1:
                    torch.cuda.set_stream(lane.compute)
                turn = lane.job.part.turns[index]
                issuer.wait(step, lane, turn)
                issuer.issue(step, lane, index)
                issuer.after(step, lane, turn)
        finally:  # a capture that ends with another stream still in it is an error
            torch.cuda.set_stream(first.compute)
            for stream in joined:
                first.compute.wait_stream(stream)
            for lane in issuer.lanes.values():
                if lane.rooms is not None:
                    lane.rooms.freed = None  # captured: nothing that a later step could wait for


def _memory(value: torch.Tensor) -> int:
    """Where the memory begins that a tensor is in, or a part of."""
    return int(value.untyped_storage().data_ptr())


def _make_room(issuer: Issuer) -> None:
    """Give back what the allocator keeps for later."""
    for device in {lane.device for lane in issuer.lanes.values()}:
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
