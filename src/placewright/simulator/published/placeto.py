"""The rules of the simulator that Placeto's authors published, for one placement.

Written from a description of them, not from their code. They differ from ours (rules 1 to 10 of
`simulator/reference.py`), so step times of the two cannot be compared:

- An op takes the same time on every device, which is then idle for 5.7 µs unless the op took none.
- Each device has one outgoing wire, whatever the receiver; a tensor takes its bytes at 7.6 GB/s,
  and the wire is then idle for 25 µs, which delays the next tensor but not this one.
- One transfer serves all readers on other devices, even on different ones: a broadcast is free.
- An op that reads two outputs of one other op pays for the last of them only.
- Devices and wires serve first what was ready first, then in order of arrival.
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

    The time of an op is that on its fastest device: theirs was profiled on one kind of GPU.
    Unscheduled ops, e.g. weights, take no time.
    """
    return _PlacetoStep(problem, [int(index) for index in device]).run()


class _WaitingQueue:
    """The queue of a device or of its wire."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, int, int]] = []
        self.busy = False


class _PlacetoStep:
    def __init__(self, problem: Problem, device: list[int]) -> None:
        a = problem.arrays
        self.a, self.device = a, device
        fastest = np.where(a.allowed, a.compute, np.inf).min(axis=1)
        self.seconds = np.where(a.scheduled, fastest, 0.0).tolist()
        self.awaited = _awaited_tensors(problem)
        self.missing_inputs = [len(reads) for reads in self.awaited]
        self.compute_queue = [_WaitingQueue() for _ in range(a.devices)]
        self.send_queue = [_WaitingQueue() for _ in range(a.devices)]
        self.events: list[tuple[float, int, str, int]] = []
        self.sequence = 0
        self.readers: dict[int, list[int]] = {}
        for op, reads in enumerate(self.awaited):
            for tensor in reads:
                self.readers.setdefault(tensor, []).append(op)

    def run(self) -> float:
        for op, inputs in enumerate(self.missing_inputs):
            if not inputs:
                self._enqueue(self.compute_queue[self.device[op]], 0.0, op)
        for device in range(len(self.compute_queue)):
            self._start_next(device, 0.0)
        now = 0.0
        while self.events:
            now = self.events[0][0]
            affected: set[int] = set()
            while self.events and self.events[0][0] == now:
                _, _, kind, item = heapq.heappop(self.events)
                affected |= self._handle_event(kind, item, now)
            for device in sorted(affected):
                self._start_next(device, now)
        return now

    def _handle_event(self, kind: str, item: int, now: float) -> set[int]:
        """Handle an event; returns the devices where something may start now."""
        if kind == "free":
            self.compute_queue[item].busy = False
            return {item}
        if kind == "wire free":
            self.send_queue[item].busy = False
            return {item}
        if kind == "sent":
            device = self.device[self.a.producer[item]]
            return self._deliver(
                item, now, [op for op in self._readers_of(item) if not self._is_on(op, device)]
            )
        device = self.device[item]  # an op has ended
        affected = {device}
        for tensor in range(self.a.first_tensor[item], self.a.first_tensor[item + 1]):
            local_readers = [op for op in self._readers_of(tensor) if self._is_on(op, device)]
            affected |= self._deliver(tensor, now, local_readers)
            if len(local_readers) < len(self._readers_of(tensor)):
                self._enqueue(self.send_queue[device], now, tensor)
        return affected

    def _deliver(self, tensor: int, now: float, readers: list[int]) -> set[int]:
        affected = set()
        for op in readers:
            self.missing_inputs[op] -= 1
            if not self.missing_inputs[op]:
                self._enqueue(self.compute_queue[self.device[op]], now, op)
                affected.add(self.device[op])
        return affected

    def _start_next(self, device: int, now: float) -> None:
        queue = self.compute_queue[device]
        if queue.waiting and not queue.busy:
            op = heapq.heappop(queue.waiting)[2]
            queue.busy = True
            end = now + self.seconds[op]
            self._push_event(end, "ended", op)
            self._push_event(end + (_AFTER_OP if self.seconds[op] > 0 else 0.0), "free", device)
        wire = self.send_queue[device]
        if wire.waiting and not wire.busy:
            tensor = heapq.heappop(wire.waiting)[2]
            wire.busy = True
            end = now + float(self.a.sizes[tensor]) / _BANDWIDTH
            self._push_event(end, "sent", tensor)
            self._push_event(end + _AFTER_TRANSFER, "wire free", device)

    def _readers_of(self, tensor: int) -> list[int]:
        return self.readers.get(tensor, [])

    def _is_on(self, op: int, device: int) -> bool:
        return self.device[op] == device

    def _enqueue(self, queue: _WaitingQueue, now: float, item: int) -> None:
        self.sequence += 1
        heapq.heappush(queue.waiting, (now, self.sequence, item))

    def _push_event(self, time: float, kind: str, item: int) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, kind, item))


def _awaited_tensors(problem: Problem) -> list[list[int]]:
    """For each op the tensors it waits for: the last one of each op that it reads from."""
    a = problem.arrays
    awaited = []
    for op in range(a.ops):
        last_tensor: dict[int, int] = {}
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]].tolist():
            last_tensor[int(a.producer[tensor])] = tensor
        awaited.append(list(last_tensor.values()))
    return awaited
