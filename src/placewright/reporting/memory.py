"""A timeline in, what each device's memory holds over time out, by what it is for.

The simulator records only how many bytes are in use. Weights and staging rooms stay for the whole
step; how long a received copy lives follows from rule 8; activations (outputs, graph inputs and
workspace) are the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.simulator.reference import readers_of

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.timeline import Timeline

Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Over:
    """One device's memory over time, from each `time` to the next; times do not go back."""

    time: Seconds
    activations: Bytes
    copies: Bytes


@dataclass(frozen=True, eq=False)
class Split:
    """What the memory of each device holds.

    Args:
        weights: Bytes by device that stay for the whole step: weights, states, optimizer state.
        staging: Bytes of staging room by device.
        over: What comes and goes, for each device.
    """

    weights: Bytes
    staging: Bytes
    over: tuple[Over, ...]


def split_memory(problem: Problem, timeline: Timeline) -> Split:
    """The memory of each device, for a timeline without fused groups."""
    a, plan, memory = problem.arrays, timeline.plan, timeline.memory
    weights = np.bincount(plan.device, a.resident, a.devices).astype(np.int64)
    staging = np.zeros(a.devices, dtype=np.int64)
    if plan.staging is not None:
        staging = np.maximum(plan.staging, 0)
    held = _Lives(problem, timeline).copies()
    over = []
    for place in range(a.devices):
        rows = memory.device == place
        time, used = memory.time[rows], memory.used[rows]
        lives = np.array(held[place], dtype=np.float64).reshape(-1, 3)
        copies = _alive(lives, time)
        # Several rounds of one instant have a row each, and a copy may come and go within it.
        rest = used - weights[place] - staging[place]
        copies = np.minimum(copies, rest)
        over.append(Over(time, rest - copies, copies))
    return Split(weights, staging, tuple(over))


def _alive(lives: Seconds, time: Seconds) -> Bytes:
    """Bytes of the copies (from, until, bytes) that are alive at each time."""
    total = np.zeros(len(time))
    for column, sign in ((0, 1.0), (1, -1.0)):
        order = np.argsort(lives[:, column], kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(lives[order, 2])])
        total += sign * sums[np.searchsorted(lives[order, column], time, side="right")]
    return np.rint(total).astype(np.int64)


class _Lives:
    """How long the memory of a tensor on a device is kept (rule 8)."""

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.a, self.end = problem.arrays, timeline.end.tolist()
        self.device = timeline.plan.device.tolist()
        moved = timeline.transfers
        sent = moved.reader < 0
        self.sends: list[tuple[int, int, float, float]] = list(
            zip(
                moved.tensor[sent].tolist(),
                moved.target[sent].tolist(),
                moved.start[sent].tolist(),
                moved.end[sent].tolist(),
                strict=True,
            )
        )
        self.gone: dict[int, float] = {}  # tensor → when its last send has ended
        for tensor, _, _, end in self.sends:
            self.gone[tensor] = max(end, self.gone.get(tensor, 0.0))
        self.known: dict[tuple[int, int], float] = {}
        streamed = moved.tensor[~sent].tolist(), moved.reader[~sent].tolist()
        self.streamed = set(zip(*streamed, strict=True))

    def copies(self) -> list[list[tuple[float, float, float]]]:
        """For each device the received copies: from when, until when, bytes."""
        held: list[list[tuple[float, float, float]]] = [[] for _ in range(self.a.devices)]
        for tensor, target, start, end in self.sends:
            until = max(end, self._until(tensor, target))
            held[target].append((start, until, float(self.a.sizes[tensor])))
        return held

    def _until(self, tensor: int, place: int) -> float:
        """When the last use of a tensor's memory on a device has ended."""
        waiting = [(tensor, place)]
        while waiting:  # an output that is an alias keeps its input's memory: deepest first
            storage = waiting[-1]
            unknown = [each for each in self._aliases(*storage) if each not in self.known]
            if unknown:
                waiting += unknown
                continue
            waiting.pop()
            self.known[storage] = self._last_use(*storage)
        return self.known[tensor, place]

    def _last_use(self, tensor: int, place: int) -> float:
        a, source = self.a, int(self.a.producer[tensor])
        ends = [self.end[op] for op in self._readers(tensor, place)]
        if self.device[source] == place:
            ends += [self.end[source], self.gone.get(tensor, 0.0)]
            ends += [np.inf] if a.kept[tensor] else []
        ends += [self.known[each] for each in self._aliases(tensor, place)]
        return max(ends, default=0.0)

    def _readers(self, tensor: int, place: int) -> list[int]:
        found = readers_of(self.a, tensor)
        return [op for op in found if self.device[op] == place and self.a.turn[op]]

    def _aliases(self, tensor: int, place: int) -> list[tuple[int, int]]:
        """Outputs made here that are this tensor's own memory."""
        a = self.a
        return [
            (output, place)
            for op in self._readers(tensor, place)
            for output in range(a.first_tensor[op], a.first_tensor[op + 1])
            if a.alias[output] == tensor and (tensor, op) not in self.streamed
        ]
