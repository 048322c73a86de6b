"""The rules of the simulator that Placeto's authors published: a placement in, its step time out.

Written anew from a description of them, not from their code. They differ from ours (rules 1 to 10
of `simulator/reference.py`), so step times by the one and by the other do not compare:

- An op takes the same time on every device, which is then idle for 5.7 µs unless the op took none.
- Each device has one outgoing wire, whatever the receiver; a tensor takes its bytes at 7.6 GB/s,
  and the wire is then idle for 25 µs, which delays the next tensor but not this one.
- One transfer serves all readers on other devices, even on different ones: a broadcast is free.
- An op that reads two outputs of one other op pays for the last of them alone.
- Devices and wires serve by the time of being ready, then in order of arrival.
- The step ends with the last event, idle times included. Memory is not counted here.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

_AFTER_OP, _AFTER_TRANSFER = 5.7e-6, 25e-6  # seconds
_BANDWIDTH = 7.6e9  # bytes per second


def placeto_seconds(problem: Problem, device: NDArray[np.integer]) -> float:
    """The step time of one placement (ops).

    The time of an op is that on its fastest device: theirs was profiled on one kind of GPU. What
    exists before the step, such as a weight, is an op of no time.
    """
    return _Step(problem, [int(each) for each in device]).run()


class _Queue:
    """What a device or its wire has to do, one after the other."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, int, int]] = []
        self.busy = False


class _Step:
    def __init__(self, problem: Problem, device: list[int]) -> None:
        a = problem.arrays
        self.a, self.device = a, device
        fastest = np.where(a.allowed, a.compute, np.inf).min(axis=1)
        self.seconds = np.where(a.turn, fastest, 0.0).tolist()
        self.charged = _charged(problem)
        self.missing = [len(reads) for reads in self.charged]
        self.compute = [_Queue() for _ in range(a.devices)]
        self.wire = [_Queue() for _ in range(a.devices)]
        self.events: list[tuple[float, int, str, int]] = []
        self.count = 0
        self.readers: dict[int, list[int]] = {}
        for op, reads in enumerate(self.charged):
            for tensor in reads:
                self.readers.setdefault(tensor, []).append(op)

    def run(self) -> float:
        for op, missing in enumerate(self.missing):
            if not missing:
                self._put(self.compute[self.device[op]], 0.0, op)
        for at in range(len(self.compute)):
            self._serve(at, 0.0)
        now = 0.0
        while self.events:
            now = self.events[0][0]
            touched: set[int] = set()
            while self.events and self.events[0][0] == now:
                _, _, what, item = heapq.heappop(self.events)
                touched |= self._happen(what, item, now)
            for at in sorted(touched):
                self._serve(at, now)
        return now

    def _happen(self, what: str, item: int, now: float) -> set[int]:
        """An event; the devices where something may begin now."""
        if what == "free":
            self.compute[item].busy = False
            return {item}
        if what == "wire free":
            self.wire[item].busy = False
            return {item}
        if what == "sent":
            home = self.device[self.a.producer[item]]
            return self._arrived(item, now, [op for op in self._of(item) if not self._at(op, home)])
        home = self.device[item]  # an op has ended
        touched = {home}
        for tensor in range(self.a.first_tensor[item], self.a.first_tensor[item + 1]):
            here = [op for op in self._of(tensor) if self._at(op, home)]
            touched |= self._arrived(tensor, now, here)
            if len(here) < len(self._of(tensor)):
                self._put(self.wire[home], now, tensor)
        return touched

    def _arrived(self, tensor: int, now: float, readers: list[int]) -> set[int]:
        touched = set()
        for op in readers:
            self.missing[op] -= 1
            if not self.missing[op]:
                self._put(self.compute[self.device[op]], now, op)
                touched.add(self.device[op])
        return touched

    def _serve(self, at: int, now: float) -> None:
        queue = self.compute[at]
        if queue.waiting and not queue.busy:
            op = heapq.heappop(queue.waiting)[2]
            queue.busy = True
            end = now + self.seconds[op]
            self._event(end, "ended", op)
            self._event(end + (_AFTER_OP if self.seconds[op] > 0 else 0.0), "free", at)
        wire = self.wire[at]
        if wire.waiting and not wire.busy:
            tensor = heapq.heappop(wire.waiting)[2]
            wire.busy = True
            end = now + float(self.a.sizes[tensor]) / _BANDWIDTH
            self._event(end, "sent", tensor)
            self._event(end + _AFTER_TRANSFER, "wire free", at)

    def _of(self, tensor: int) -> list[int]:
        return self.readers.get(tensor, [])

    def _at(self, op: int, device: int) -> bool:
        return self.device[op] == device

    def _put(self, queue: _Queue, now: float, item: int) -> None:
        self.count += 1
        heapq.heappush(queue.waiting, (now, self.count, item))

    def _event(self, when: float, what: str, item: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what, item))


def _charged(problem: Problem) -> list[list[int]]:
    """For each op the tensors it waits for: the last one of each op that it reads from."""
    a = problem.arrays
    found = []
    for op in range(a.ops):
        last: dict[int, int] = {}
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]].tolist():
            last[int(a.producer[tensor])] = tensor
        found.append(list(last.values()))
    return found
