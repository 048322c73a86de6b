"""Backward list scheduling: how long before the end of the step each op must start."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


def latest_starts(
    problem: Problem, device: NDArray[np.int32], finish: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Each op's start in a schedule built from the end, as a time before the end (so negative).

    The step is run with time reversed: a free device takes, of the ops whose readers are all done,
    the one of largest `finish`; a tensor returns over its channel once all its readers on the other
    device are done, and a channel serves one tensor at a time. With the finish times of a forward
    schedule this is the backward half of forward-backward improvement (Li and Willis 1992, EJOR
    56); unlike a bottom level it accounts for shared devices and channels.
    """
    return _BackwardSchedule(problem, device, finish).run()


class _BackwardSchedule:
    """A step with time reversed; all times count from the end of the step."""

    def __init__(
        self, problem: Problem, device: NDArray[np.int32], finish: NDArray[np.float64]
    ) -> None:
        a = self.a = problem.arrays
        self.device_of: list[int] = device.tolist()
        self.seconds: list[float] = a.compute[np.arange(a.ops), device].tolist()
        self.rank: list[float] = (-finish).tolist()
        self.now = 0.0
        self.time_to_end = np.zeros(a.ops)
        self.ready: list[list[tuple[float, int]]] = [[] for _ in range(a.devices)]
        self.running = [False] * a.devices
        # Events: (time, number, op that has run or -1, op whose tensor has returned or -1).
        self.events: list[tuple[float, int, int, int]] = []
        self.event_count = 0
        self.channel_free = [0.0] * a.channels
        self.pending = [0] * a.ops  # (tensor, device) pairs that an op waits for
        self.pending_readers: dict[tuple[int, int], int] = {}  # readers of a pair that are not done
        scheduled = a.scheduled.tolist()
        for tensor, op in zip(a.inputs.tolist(), a.reader.tolist(), strict=True):
            if scheduled[op] and scheduled[source := int(a.producer[tensor])]:
                pair = (tensor, self.device_of[op])
                if pair not in self.pending_readers:
                    self.pending_readers[pair] = 0
                    self.pending[source] += 1
                self.pending_readers[pair] += 1
        for op in np.flatnonzero(a.scheduled).tolist():
            if not self.pending[op]:
                self._make_ready(op)

    def run(self) -> NDArray[np.float64]:
        self._start_ready()
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, _, finished_op, source = heapq.heappop(self.events)
                if finished_op >= 0:
                    self._finish(finished_op)
                else:
                    self._return_tensor(source)
            self._start_ready()
        return -self.time_to_end

    def _make_ready(self, op: int) -> None:
        heapq.heappush(self.ready[self.device_of[op]], (self.rank[op], -op))

    def _start_ready(self) -> None:
        for device, queue in enumerate(self.ready):
            if queue and not self.running[device]:
                op = -heapq.heappop(queue)[1]
                self.running[device] = True
                self._push_event(self.now + self.seconds[op], finished_op=op)

    def _push_event(self, time: float, finished_op: int = -1, source: int = -1) -> None:
        self.event_count += 1
        heapq.heappush(self.events, (time, self.event_count, finished_op, source))

    def _finish(self, op: int) -> None:
        a, device = self.a, self.device_of[op]
        self.running[device] = False
        self.time_to_end[op] = self.now
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]].tolist():
            pair, source = (tensor, device), int(a.producer[tensor])
            if pair not in self.pending_readers:
                continue  # unscheduled
            self.pending_readers[pair] -= 1
            if self.pending_readers[pair]:
                continue
            source_device = self.device_of[source]
            if source_device == device:
                self._return_tensor(source)
                continue
            channel = int(a.channel[source_device, device])
            seconds = float(a.transfer[a.link_class[source_device, device], tensor])
            self.channel_free[channel] = max(self.channel_free[channel], self.now) + seconds
            self._push_event(self.channel_free[channel], source=source)

    def _return_tensor(self, op: int) -> None:
        self.pending[op] -= 1
        if not self.pending[op]:
            self._make_ready(op)
