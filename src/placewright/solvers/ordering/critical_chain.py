"""The critical chain of one simulated step, and order changes that shorten it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.simulator.evaluation import step_columns

if TYPE_CHECKING:
    from placewright.problem import Problem

Keys = NDArray[np.float64]

_TOLERANCE = 1e-9  # of the step time: times that differ by less are equal


@dataclass(frozen=True, eq=False)
class CriticalChain:
    """Which ops waited for which in one step.

    Args:
        device_ops: For each device its ops, in the order in which they ran.
        device_of: Each op's device; -1 for unscheduled ops.
        position: Each op's position in its device's order.
        blocked_ops: Ops on the chain to the end of the step that waited for their device rather
            than for their inputs.
    """

    problem: Problem
    device_ops: tuple[NDArray[np.int64], ...]
    device_of: NDArray[np.int64]
    position: NDArray[np.int64]
    blocked_ops: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        problem: Problem,
        device: NDArray[np.int32],
        priority: Keys,
        staging: NDArray[np.int64] | None = None,
    ) -> CriticalChain:
        a = problem.arrays
        columns = step_columns(problem, device, priority, staging)
        start, end = columns["start"], columns["end"]
        order = np.lexsort((priority, end, start))
        order = order[a.scheduled[order]]
        device_ops = tuple(order[device[order] == index] for index in range(a.devices))
        position = np.zeros(a.ops, dtype=np.int64)
        for ops in device_ops:
            position[ops] = np.arange(len(ops))
        device_of = np.where(a.scheduled, device, -1).astype(np.int64)
        arrivals = {
            (int(tensor), int(target)): float(time)
            for tensor, target, time in zip(
                columns["transfer_tensor"],
                columns["transfer_target"],
                columns["transfer_end"],
                strict=True,
            )
        }
        blocked_ops = _trace_blocked(problem, device, start, end, arrivals, device_ops, position)
        return cls(problem, device_ops, device_of, position, np.array(blocked_ops, dtype=np.int64))

    def pull_earlier(self, keys: Keys, rng: np.random.Generator, critical: bool) -> Keys:
        """Keys that put an op ahead of one that ran before it on its device.

        Its ancestors move with it, or it would have to wait for them.

        Args:
            critical: Take an op that waited on the critical chain, if there is one.
        """
        candidates = (
            self.blocked_ops
            if critical and len(self.blocked_ops)
            else np.flatnonzero(self.position > 0)
        )
        if not len(candidates):
            return keys
        op = int(candidates[int(rng.integers(0, len(candidates)))])
        ops, position = self.device_ops[self.device_of[op]], int(self.position[op])
        earlier_op = ops[max(0, position - _random_distance(rng, position))]
        out = keys.copy()
        self._pull_with_inputs(out, op, float(keys[earlier_op]) - 0.5)
        return out

    def push_later(self, keys: Keys, rng: np.random.Generator) -> Keys:
        """Keys that put an op behind one that ran after it on its device."""
        candidates = np.flatnonzero(self.device_of >= 0)
        if not len(candidates):
            return keys
        op = int(candidates[int(rng.integers(0, len(candidates)))])
        ops, position = self.device_ops[self.device_of[op]], int(self.position[op])
        later_ops = len(ops) - 1 - position
        if later_ops < 1:
            return keys
        out = keys.copy()
        out[op] = float(keys[ops[position + _random_distance(rng, later_ops)]]) + 0.5
        return out

    def _pull_with_inputs(self, out: Keys, op: int, key: float) -> None:
        a = self.problem.arrays
        stack = [op]
        while stack:
            current = stack.pop()
            out[current] = key  # ties go by position, so inputs still come first
            for tensor in a.inputs[a.first_input[current] : a.first_input[current + 1]].tolist():
                source = int(a.producer[tensor])
                if a.scheduled[source] and out[source] > key:
                    stack.append(source)


def _random_distance(rng: np.random.Generator, limit: int) -> int:
    """1 to `limit` positions, small numbers more often."""
    return max(1, min(limit, int(rng.geometric(0.3))))


def _trace_blocked(
    problem: Problem,
    device: NDArray[np.int32],
    start: Keys,
    end: Keys,
    arrivals: dict[tuple[int, int], float],
    device_ops: tuple[NDArray[np.int64], ...],
    position: NDArray[np.int64],
) -> list[int]:
    """From the op that ends last back to the beginning, by what each op waited for longest."""
    a = problem.arrays
    tolerance = _TOLERANCE * float(end.max(initial=0.0))
    op = int(end.argmax())
    blocked: list[int] = []
    visited: set[int] = set()  # ops without duration may wait for each other in a cycle
    while a.scheduled[op] and op not in visited:
        visited.add(op)
        op_device, index = int(device[op]), int(position[op])
        latest, source = -np.inf, -1
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]].tolist():
            producer = int(a.producer[tensor])
            time = arrivals.get((tensor, op_device), float(end[producer]))
            if a.scheduled[producer] and time > latest:
                latest, source = time, producer
        previous = int(device_ops[op_device][index - 1]) if index else -1
        if (
            previous >= 0
            and end[previous] >= start[op] - tolerance
            and latest < start[op] - tolerance
        ):
            blocked.append(op)
            op = previous
        elif source >= 0:
            op = source
        elif previous >= 0:
            op = previous
        else:
            break
    return blocked
