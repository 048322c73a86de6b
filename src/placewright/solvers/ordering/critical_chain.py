"""A critical chain: one plan's step in, what waited for what out, and orders that change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.simulator.evaluation import kernel

if TYPE_CHECKING:
    from placewright.problem import Problem

Keys = NDArray[np.float64]

_NEAR = 1e-9  # of the step time: times that differ by less are one


@dataclass(frozen=True, eq=False)
class Chain:
    """Who waits for whom in one step.

    Args:
        lines: For each device its ops, in the order in which they ran.
        line: Each op's device; -1 for what takes no turn.
        spot: Each op's place in its device's line.
        blocked: Ops on the chain that leads to the end of the step, which waited for their device
            rather than for what they read.
    """

    problem: Problem
    lines: tuple[NDArray[np.int64], ...]
    line: NDArray[np.int64]
    spot: NDArray[np.int64]
    blocked: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        problem: Problem,
        device: NDArray[np.int32],
        priority: Keys,
        staging: NDArray[np.int64] | None = None,
    ) -> Chain:
        a = problem.arrays
        step = kernel(a).timeline(
            np.ascontiguousarray(device[None], dtype=np.int32),
            np.ascontiguousarray(priority[None]),
            None if staging is None else np.ascontiguousarray(staging[None]),
            problem.discipline == "in order",
        )
        start, end = step["start"], step["end"]
        ran = np.lexsort((priority, end, start))
        ran = ran[a.turn[ran]]
        lines = tuple(ran[device[ran] == place] for place in range(a.devices))
        spot = np.zeros(a.ops, dtype=np.int64)
        for ops in lines:
            spot[ops] = np.arange(len(ops))
        line = np.where(a.turn, device, -1).astype(np.int64)
        arrived = {
            (int(tensor), int(target)): float(time)
            for tensor, target, time in zip(
                step["transfer_tensor"], step["transfer_target"], step["transfer_end"], strict=True
            )
        }
        blocked = _walk_back(problem, device, start, end, arrived, lines, spot)
        return cls(problem, lines, line, spot, np.array(blocked, dtype=np.int64))

    def pulled(self, keys: Keys, rng: np.random.Generator, critical: bool) -> Keys:
        """Keys with which an op goes before one that ran before it on its device.

        What it reads, directly or not, goes with it, or it would have to wait in any case.

        Args:
            critical: Take an op that waited on the critical chain, if there is one.
        """
        pool = self.blocked if critical and len(self.blocked) else np.flatnonzero(self.spot > 0)
        if not len(pool):
            return keys
        op = int(pool[int(rng.integers(0, len(pool)))])
        ops, here = self.lines[self.line[op]], int(self.spot[op])
        before = ops[max(0, here - _reach(rng, here))]
        out = keys.copy()
        self._pull(out, op, float(keys[before]) - 0.5)
        return out

    def pushed(self, keys: Keys, rng: np.random.Generator) -> Keys:
        """Keys with which an op goes behind one that ran after it on its device."""
        pool = np.flatnonzero(self.line >= 0)
        if not len(pool):
            return keys
        op = int(pool[int(rng.integers(0, len(pool)))])
        ops, here = self.lines[self.line[op]], int(self.spot[op])
        left = len(ops) - 1 - here
        if left < 1:
            return keys
        out = keys.copy()
        out[op] = float(keys[ops[here + _reach(rng, left)]]) + 0.5
        return out

    def _pull(self, out: Keys, op: int, key: float) -> None:
        a = self.problem.arrays
        stack = [op]
        while stack:
            at = stack.pop()
            out[at] = key  # ties go by position, so what is read still comes first
            for tensor in a.inputs[a.first_input[at] : a.first_input[at + 1]].tolist():
                source = int(a.producer[tensor])
                if a.turn[source] and out[source] > key:
                    stack.append(source)


def _reach(rng: np.random.Generator, most: int) -> int:
    """1 to `most` places, near ones more often."""
    return max(1, min(most, int(rng.geometric(0.3))))


def _walk_back(
    problem: Problem,
    device: NDArray[np.int32],
    start: Keys,
    end: Keys,
    arrived: dict[tuple[int, int], float],
    lines: tuple[NDArray[np.int64], ...],
    spot: NDArray[np.int64],
) -> list[int]:
    """From the op that ends last back to the beginning, by what each op waited for longest."""
    a = problem.arrays
    near = _NEAR * float(end.max(initial=0.0))
    op = int(end.argmax())
    blocked: list[int] = []
    seen: set[int] = set()  # ops that take no time may wait for each other in a circle
    while a.turn[op] and op not in seen:
        seen.add(op)
        place, at = int(device[op]), int(spot[op])
        latest, source = -np.inf, -1
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]].tolist():
            maker = int(a.producer[tensor])
            time = arrived.get((tensor, place), float(end[maker]))
            if a.turn[maker] and time > latest:
                latest, source = time, maker
        ahead = int(lines[place][at - 1]) if at else -1
        if ahead >= 0 and end[ahead] >= start[op] - near and latest < start[op] - near:
            blocked.append(op)
            op = ahead
        elif source >= 0:
            op = source
        elif ahead >= 0:
            op = ahead
        else:
            break
    return blocked
