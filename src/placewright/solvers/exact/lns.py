"""LNS, large-neighbourhood search: improves a plan window by window with CP-SAT.

Shaw 1998, "Using constraint programming and local search methods to solve vehicle routing
problems", CP: free a part of a solution, and let constraint programming solve that part anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.plan import Plan
from placewright.simulator import simulate
from placewright.solvers.exact.process import borrow_worker
from placewright.solvers.exact.solver import judge_baselines, solve_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.solvers.search import Search
    from placewright.timeline import Timeline

Flags = NDArray[np.bool_]

_HANG_SECONDS = 120.0  # seconds for one window, which no window takes unless CP-SAT hangs


@dataclass(frozen=True)
class LNS:
    """From the best baseline, free a window of ops at a time and solve it with CP-SAT.

    A window is a connected part of the graph, a stretch of time around an op on the critical path,
    or what two devices send each other. The rest keeps its device and order. Plans are judged, and
    taken if they are no worse. Windows are limited by CP-SAT's own measure of work, so that the
    same seed gives the same plan. It ends after `patience` windows in a row without a better plan.

    Args:
        window: Ops that are free at a time.
        work: CP-SAT's measure of work for one window; a second or a few are one.
    """

    window: int = 20
    work: float = 0.3
    patience: int = 30
    name = "lns"

    def run(self, search: Search) -> None:
        judge_baselines(search)
        if search.over or search.best is None:
            return
        problem, best = search.problem, search.best
        if best.fusion is not None or best.staging is not None:  # the model knows neither
            if not len(search.judge(best.placement, best.priority).value):
                return
            best = Plan.of(problem, best.placement, best.priority)
        current, key = best, _key(problem, best)
        idle_windows = 0
        with borrow_worker() as worker:
            while idle_windows < self.patience and not search.over:
                idle_windows += 1
                free = self._window(search, problem, current)
                solution = solve_model(
                    problem,
                    start=current,
                    free=free,
                    seconds=min(_HANG_SECONDS, search.stop.seconds_left(search)),
                    deterministic=self.work,
                    seed=int(search.rng.integers(2**31)),
                    worker=worker,
                )
                if not worker.is_alive:  # it was late and has been killed
                    return
                if solution.placement is None or solution.placement is current.placement:
                    continue
                verdict = search.judge(solution.placement, solution.priority)
                if not len(verdict.value):
                    return
                new_key = (int(verdict.overflow[0]), float(verdict.value[0]))
                if new_key < key:
                    idle_windows = 0
                if new_key <= key:
                    current, key = Plan.of(problem, solution.placement, solution.priority), new_key

    def _window(self, search: Search, problem: Problem, plan: Plan) -> Flags:
        """The ops to free, with what follows them (weights, the rest of their units)."""
        timeline = simulate(problem, plan)
        kinds: tuple[Callable[..., NDArray[np.int64]], ...] = (
            graph_neighbourhood,
            time_window,
            boundary_ops,
        )
        kind = kinds[int(search.rng.integers(len(kinds)))]
        window_ops = kind(problem, timeline, search.rng)[: self.window]
        free = np.zeros(problem.arrays.ops, dtype=bool)
        free[window_ops] = True
        return free[problem.arrays.leader]


def graph_neighbourhood(
    problem: Problem, timeline: Timeline, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Ops from a random one outwards, along tensors in both directions."""
    a = problem.arrays
    source = a.producer[a.inputs]
    adjacent: list[list[int]] = [[] for _ in range(a.ops)]
    for producer, consumer in zip(source.tolist(), a.reader.tolist(), strict=True):
        if a.scheduled[producer]:
            adjacent[producer].append(consumer)
            adjacent[consumer].append(producer)
    scheduled_ops = np.flatnonzero(a.scheduled)
    ops = [int(rng.choice(scheduled_ops))]
    visited = set(ops)
    for op in ops:
        shuffled = list(rng.permutation(adjacent[op]).astype(int).tolist())
        ops.extend(consumer for consumer in dict.fromkeys(shuffled) if consumer not in visited)
        visited.update(shuffled)
    return np.array(ops, dtype=np.int64)


def time_window(
    problem: Problem, timeline: Timeline, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Ops by how near they run to an op of the critical path, in time."""
    scheduled_ops = np.flatnonzero(problem.arrays.scheduled)
    moment = timeline.start[int(rng.choice(critical_ops(problem, timeline)))]
    distance = np.maximum(
        timeline.start[scheduled_ops] - moment, moment - timeline.end[scheduled_ops]
    )
    return scheduled_ops[np.argsort(distance, kind="stable")]


def boundary_ops(
    problem: Problem, timeline: Timeline, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Senders and readers of what one device sends another, from a random send onwards."""
    a, transfers = problem.arrays, timeline.transfers
    if not len(transfers.tensor):
        return graph_neighbourhood(problem, timeline, rng)
    start_send = int(rng.integers(len(transfers.tensor)))
    pair = {int(transfers.source[start_send]), int(transfers.target[start_send])}
    ops: list[int] = []
    for send in np.argsort(
        np.abs(transfers.start - transfers.start[start_send]), kind="stable"
    ).tolist():
        if {int(transfers.source[send]), int(transfers.target[send])} != pair:
            continue
        tensor = int(transfers.tensor[send])
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        local_readers = readers[timeline.plan.placement[readers] == transfers.target[send]]
        ops += [int(a.producer[tensor]), *local_readers.tolist()]
    return np.array([op for op in dict.fromkeys(ops) if a.scheduled[op]], dtype=np.int64)


def critical_ops(problem: Problem, timeline: Timeline) -> NDArray[np.int64]:
    """A chain of ops, each the reason why the next one started when it did, to the last to end."""
    a, placement = problem.arrays, timeline.plan.placement
    scheduled_ops = np.flatnonzero(a.scheduled)
    transfers = timeline.transfers
    arrival = {
        (int(tensor), int(target)): float(end)
        for tensor, target, end in zip(
            transfers.tensor, transfers.target, transfers.end, strict=True
        )
    }
    op = int(scheduled_ops[np.argmax(timeline.end[scheduled_ops])])
    chain = [op]
    while timeline.start[op] > 0:
        predecessors: list[tuple[float, int]] = []
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]].tolist():
            producer = int(a.producer[tensor])
            if a.scheduled[producer]:
                available = arrival.get((tensor, int(placement[op])), float(timeline.end[producer]))
                predecessors.append((available, producer))
        earlier = scheduled_ops[
            (placement[scheduled_ops] == placement[op])
            & (timeline.start[scheduled_ops] < timeline.start[op])
        ]
        if len(earlier):
            previous = int(earlier[np.argmax(timeline.end[earlier])])
            predecessors.append((float(timeline.end[previous]), previous))
        if not predecessors:
            break
        op = max(predecessors)[1]
        chain.append(op)
    return np.array(chain, dtype=np.int64)


def _key(problem: Problem, plan: Plan) -> tuple[int, float]:
    timeline = simulate(problem, plan)
    value = timeline.step_time if problem.objective == "step" else timeline.period
    return timeline.overflow, value
