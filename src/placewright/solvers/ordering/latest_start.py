"""Backward schedules: one placement in, how long before the end each op must start out."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


def latest_start(
    problem: Problem, device: NDArray[np.int32], finish: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Each op's start in a schedule built from the end, as a time before the end (so negative).

    The step is run with time reversed: a device that is free takes, of the ops whose readers are
    all done, the one of largest `finish`; a tensor goes back over its channel once all its readers
    on the other device are done, and channels serve one at a time. Given when ops finished in a
    forward schedule this is the backward half of forward-backward improvement (Li and Willis 1992,
    EJOR 56); unlike a bottom level it knows that devices and channels are shared.
    """
    return _Backward(problem, device, finish).run()


class _Backward:
    """A step under way with time reversed; all times count from the end of the step."""

    def __init__(
        self, problem: Problem, device: NDArray[np.int32], finish: NDArray[np.float64]
    ) -> None:
        a = self.a = problem.arrays
        self.place: list[int] = device.tolist()
        self.seconds: list[float] = a.compute[np.arange(a.ops), device].tolist()
        self.rank: list[float] = (-finish).tolist()
        self.now = 0.0
        self.before = np.zeros(a.ops)
        self.ready: list[list[tuple[float, int]]] = [[] for _ in range(a.devices)]
        self.running = [False] * a.devices
        # Events: (time, number, op that has run or -1, op whose tensor has come back or -1).
        self.events: list[tuple[float, int, int, int]] = []
        self.count = 0
        self.wire = [0.0] * a.channels
        self.left = [0] * a.ops  # what an op waits for: (tensor, device) pairs that read it
        self.readers: dict[tuple[int, int], int] = {}  # readers of a pair that are not done
        turn = a.turn.tolist()
        reader = np.repeat(np.arange(a.ops), np.diff(a.first_input)).tolist()
        for tensor, op in zip(a.inputs.tolist(), reader, strict=True):
            if turn[op] and turn[source := int(a.producer[tensor])]:
                pair = (tensor, self.place[op])
                if pair not in self.readers:
                    self.readers[pair] = 0
                    self.left[source] += 1
                self.readers[pair] += 1
        for op in np.flatnonzero(a.turn).tolist():
            if not self.left[op]:
                self._wait(op)

    def run(self) -> NDArray[np.float64]:
        self._start()
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, _, ran, source = heapq.heappop(self.events)
                if ran >= 0:
                    self._done(ran)
                else:
                    self._came_back(source)
            self._start()
        return -self.before

    def _wait(self, op: int) -> None:
        heapq.heappush(self.ready[self.place[op]], (self.rank[op], -op))

    def _start(self) -> None:
        for place, heads in enumerate(self.ready):
            if heads and not self.running[place]:
                op = -heapq.heappop(heads)[1]
                self.running[place] = True
                self._at(self.now + self.seconds[op], ran=op)

    def _at(self, time: float, ran: int = -1, source: int = -1) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, ran, source))

    def _done(self, op: int) -> None:
        a, place = self.a, self.place[op]
        self.running[place] = False
        self.before[op] = self.now
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]].tolist():
            pair, source = (tensor, place), int(a.producer[tensor])
            if pair not in self.readers:
                continue  # it takes no turn
            self.readers[pair] -= 1
            if self.readers[pair]:
                continue
            home = self.place[source]
            if home == place:
                self._came_back(source)
                continue
            line = int(a.channel[home, place])
            seconds = float(a.transfer[a.link_class[home, place], tensor])
            self.wire[line] = max(self.wire[line], self.now) + seconds
            self._at(self.wire[line], source=source)

    def _came_back(self, op: int) -> None:
        self.left[op] -= 1
        if not self.left[op]:
            self._wait(op)
