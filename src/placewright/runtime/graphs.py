"""Runs of ops of one GPU in, each captured once as a CUDA graph and replayed, out.

Issuing a small op from Python takes the host some 20 µs, so a step of many small ops waits for the
host. A run of ops between two points where streams or the host must meet is captured instead; where
one GPU does all, that is the whole step, copies of streamed weights included. What it reads must
then always lie in the same place, so what comes from elsewhere is copied there first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from placewright.runtime.script import ENV, ROOM

if TYPE_CHECKING:
    from placewright.graph import Tensor
    from placewright.runtime.lanes import Lane
    from placewright.runtime.streams import Issuer

FEWEST = 6  # ops that are worth a graph
EAGER, CAPTURE, REPLAY = "eager", "capture", "replay"
_TRIED = 3  # steps each way before one way is chosen


@dataclass
class Segment:
    """A run of ops that are issued together.

    Args:
        begin: Where it begins in the issuer's order.
        inputs: What it reads from elsewhere, and where that must lie.
        outputs: What it makes that is read after it.
        whole: Whether it is all of a step: then copies into its staging room are part of it.
        needs: What must have come before a whole step.
    """

    begin: int
    turns: list[int]
    graph: Any = None
    inputs: dict[Tensor, torch.Tensor] = field(default_factory=dict)
    outputs: dict[Tensor, torch.Tensor] = field(default_factory=dict)
    whole: bool = False
    needs: list[Tensor] = field(default_factory=list)


class Graphs:
    """Decides which runs of ops are captured, and replays them.

    Args:
        wanted: Whether to capture; None: try both ways, step by step, and keep the quicker.
    """

    def __init__(self, issuer: Issuer, wanted: bool | None) -> None:
        self.issuer, self.wanted = issuer, wanted
        self.segments = {} if wanted is False else {one.begin: one for one in _segments(issuer)}
        self.mode = EAGER
        self.steps = 0
        self.seconds: dict[str, list[float]] = {EAGER: [], REPLAY: []}
        self.pools: dict[int, Any] = {}
        self.fixed: set[int] = set()  # tensors that a replay overwrites
        self._began = 0.0

    @property
    def settled(self) -> bool:
        """Whether it is decided how steps are run."""
        return not self.segments or self.steps > (1 if self.wanted else 2 * _TRIED + 1)

    @property
    def covers(self) -> bool:
        """Whether the step at hand is one graph."""
        return self.mode != EAGER and any(one.whole for one in self.segments.values())

    def needs(self, at: int) -> list[Tensor] | None:
        """What must have come before the graph that begins here; None if none does."""
        segment = self.segments.get(at) if self.mode != EAGER else None
        return segment.needs if segment is not None and segment.whole else None

    def begin(self) -> None:
        """A step begins: decide how it is run."""
        if not self.segments:
            return
        if len(self.issuer.steps) > 1:  # steps in flight must not share their tensors
            self._drop()
            return
        lanes = list(self.issuer.lanes.values())
        for lane in lanes:
            for other in lanes:
                if other is not lane and other.device == lane.device:
                    lane.compute.wait_stream(other.compute)
        eager = 1 if self.wanted else _TRIED
        self.mode = EAGER if self.steps < eager else CAPTURE if self.steps == eager else REPLAY
        if self.wanted is None and self.steps == 2 * _TRIED + 1 and not self._quicker():
            self._drop()
        self._began = time.perf_counter()

    def finish(self) -> None:
        """A step is over; the first few are timed to the end."""
        if not self.segments:
            return
        if self.wanted is None and self.steps <= 2 * _TRIED and self.mode != CAPTURE:
            for lane in self.issuer.lanes.values():
                lane.compute.synchronize()
            self.seconds[self.mode].append(time.perf_counter() - self._began)
        self.steps += 1

    def _quicker(self) -> bool:
        """Whether replays are quicker; the first step of either kind is not typical."""
        replayed, eager = self.seconds[REPLAY][1:], self.seconds[EAGER][1:]
        return median(replayed) < median(eager)

    def _drop(self) -> None:
        self.segments, self.mode = {}, EAGER
        self.fixed.clear()

    def run(self, step: Any, lane: Lane, at: int) -> int:
        """Issue the run of ops that begins here, if there is one; how many ops that were."""
        segment = self.segments.get(at) if self.mode != EAGER else None
        if segment is None:
            return 0
        env = step.env[lane.number]
        if self.mode == CAPTURE and not self._capture(segment, step, lane):
            del self.segments[at]
            return 0
        for tensor, place in segment.inputs.items():
            if env[tensor] is not place:
                place.copy_(env[tensor])
        segment.graph.replay()
        env.update(segment.outputs)
        return len(segment.turns)

    def own(self, value: torch.Tensor) -> torch.Tensor:
        """A value that the next step does not overwrite."""
        return value.clone() if id(value) in self.fixed else value

    def _capture(self, segment: Segment, step: Any, lane: Lane) -> bool:
        """Capture a run of ops, without running it; false if that is not possible."""
        env, turns = step.env[lane.number], lane.job.part.turns
        before = dict(env)
        made: set[int] = set()
        for index in segment.turns:
            for where, key in turns[index].inputs:
                if where == ENV and key[0] not in made and key not in segment.inputs:
                    value = env[key]
                    if id(value) not in self.fixed:
                        value = torch.empty_like(value).copy_(value)
                    segment.inputs[key] = env[key] = value
            made.add(turns[index].position)
        graph = torch.cuda.CUDAGraph()
        pool = self.pools.setdefault(lane.number, torch.cuda.graph_pool_handle())
        try:
            with torch.cuda.graph(
                graph, pool=pool, stream=lane.compute, capture_error_mode="thread_local"
            ):
                try:
                    self._issue_all(segment, step, lane)
                finally:  # a capture that ends with another stream still in it is an error
                    if segment.whole and lane.rooms is not None:
                        lane.rooms.join()
        except Exception:
            torch.cuda.synchronize(lane.device)
            env.clear()
            env.update(before)
            return False
        segment.outputs = {key: value for key, value in env.items() if key not in before}
        segment.graph = graph
        self.fixed |= {id(value) for value in segment.outputs.values()}
        for key, value in before.items():
            env.setdefault(key, segment.inputs.get(key, value))
        return True

    def _issue_all(self, segment: Segment, step: Any, lane: Lane) -> None:
        """Issue the ops of a segment, and of a whole step the copies between them."""
        env, turns = step.env[lane.number], lane.job.part.turns
        if segment.whole and lane.rooms is not None:
            lane.rooms.fork(lane.mark(-1))
        for index in segment.turns:
            if segment.whole:
                self.issuer.wait_room(lane, turns[index])
            self.issuer.issue(step, lane, index)
            if segment.whole:
                self.issuer.free_room(lane, turns[index])
            for tensor in turns[index].frees:
                if tensor[0] != turns[index].position or not turns[index].sends:
                    env.pop(tensor, None)  # what is sent is needed a moment longer


def _segments(issuer: Issuer) -> list[Segment]:
    """The longest runs of ops of one device that meet others only at their ends."""
    if issuer.alone:
        (lane,) = issuer.lanes.values()
        turns = lane.job.part.turns
        needs = [tensor for turn in turns for tensor in turn.needs]
        return [Segment(0, list(range(len(turns))), whole=True, needs=needs)]
    found: list[Segment] = []
    last: tuple[int, bool] | None = None  # device, and whether its run is closed
    for at, (number, index) in enumerate(issuer.order):
        turn = issuer.jobs[number].part.turns[index]
        streamed = any(where == ROOM for where, _ in turn.inputs)
        opens = streamed or bool(turn.needs or turn.after)
        if last is None or last != (number, False) or opens:
            found.append(Segment(at, []))
        found[-1].turns.append(index)
        last = number, streamed or bool(turn.sends or turn.tells)
    return [segment for segment in found if len(segment.turns) >= FEWEST]
