"""LNS, large-neighbourhood search: a problem in, a plan improved window by window out.

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
from placewright.solvers.exact.process import borrowed
from placewright.solvers.exact.solver import judge_starts, solve_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.solvers.search import Search
    from placewright.timeline import Timeline

Flags = NDArray[np.bool_]

_HANGS = 120.0  # seconds for one window, which no window takes unless CP-SAT hangs


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
        judge_starts(search)
        if search.over or search.best is None:
            return
        problem, best = search.problem, search.best
        if best.fusion is not None or best.staging is not None:  # the model knows neither
            if not len(search.judge(best.device, best.priority).value):
                return
            best = Plan.of(problem, best.device, best.priority)
        current, key = best, _key(problem, best)
        since = 0
        with borrowed() as worker:
            while since < self.patience and not search.over:
                since += 1
                free = self._window(search, problem, current)
                solution = solve_model(
                    problem,
                    start=current,
                    free=free,
                    seconds=min(_HANGS, search.stop.seconds_left(search)),
                    deterministic=self.work,
                    seed=int(search.rng.integers(2**31)),
                    worker=worker,
                )
                if not worker.alive:  # it was late and has been killed
                    return
                if solution.device is None or solution.device is current.device:
                    continue
                verdict = search.judge(solution.device, solution.priority)
                if not len(verdict.value):
                    return
                found = (int(verdict.overflow[0]), float(verdict.value[0]))
                if found < key:
                    since = 0
                if found <= key:
                    current, key = Plan.of(problem, solution.device, solution.priority), found

    def _window(self, search: Search, problem: Problem, plan: Plan) -> Flags:
        """The ops to free, with what follows them (weights, the rest of their units)."""
        timeline = simulate(problem, plan)
        kinds: tuple[Callable[..., NDArray[np.int64]], ...] = (around, stretch, border)
        kind = kinds[int(search.rng.integers(len(kinds)))]
        chosen = kind(problem, timeline, search.rng)[: self.window]
        free = np.zeros(problem.arrays.ops, dtype=bool)
        free[chosen] = True
        return free[problem.arrays.leader]


def around(problem: Problem, timeline: Timeline, rng: np.random.Generator) -> NDArray[np.int64]:
    """Ops from a random one outwards, along tensors in both directions."""
    a = problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    near: list[list[int]] = [[] for _ in range(a.ops)]
    for one, other in zip(source.tolist(), reader.tolist(), strict=True):
        if a.turn[one]:
            near[one].append(other)
            near[other].append(one)
    turns = np.flatnonzero(a.turn)
    found = [int(rng.choice(turns))]
    seen = set(found)
    for op in found:
        fresh = list(rng.permutation(near[op]).astype(int).tolist())
        found.extend(other for other in dict.fromkeys(fresh) if other not in seen)
        seen.update(fresh)
    return np.array(found, dtype=np.int64)


def stretch(problem: Problem, timeline: Timeline, rng: np.random.Generator) -> NDArray[np.int64]:
    """Ops by how near they run to an op of the critical path, in time."""
    turns = np.flatnonzero(problem.arrays.turn)
    moment = timeline.start[int(rng.choice(critical(problem, timeline)))]
    distance = np.maximum(timeline.start[turns] - moment, moment - timeline.end[turns])
    return turns[np.argsort(distance, kind="stable")]


def border(problem: Problem, timeline: Timeline, rng: np.random.Generator) -> NDArray[np.int64]:
    """Senders and readers of what one device sends another, from a random send onwards."""
    a, sent = problem.arrays, timeline.transfers
    if not len(sent.tensor):
        return around(problem, timeline, rng)
    at = int(rng.integers(len(sent.tensor)))
    pair = {int(sent.source[at]), int(sent.target[at])}
    found: list[int] = []
    for send in np.argsort(np.abs(sent.start - sent.start[at]), kind="stable").tolist():
        if {int(sent.source[send]), int(sent.target[send])} != pair:
            continue
        tensor = int(sent.tensor[send])
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        here = readers[timeline.plan.device[readers] == sent.target[send]]
        found += [int(a.producer[tensor]), *here.tolist()]
    return np.array([op for op in dict.fromkeys(found) if a.turn[op]], dtype=np.int64)


def critical(problem: Problem, timeline: Timeline) -> NDArray[np.int64]:
    """A chain of ops, each the reason why the next one started when it did, to the last to end."""
    a, device = problem.arrays, timeline.plan.device
    turns = np.flatnonzero(a.turn)
    sent = timeline.transfers
    arrival = {
        (int(tensor), int(target)): float(end)
        for tensor, target, end in zip(sent.tensor, sent.target, sent.end, strict=True)
    }
    op = int(turns[np.argmax(timeline.end[turns])])
    chain = [op]
    while timeline.start[op] > 0:
        reasons: list[tuple[float, int]] = []
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]].tolist():
            maker = int(a.producer[tensor])
            if a.turn[maker]:
                there = arrival.get((tensor, int(device[op])), float(timeline.end[maker]))
                reasons.append((there, maker))
        beside = turns[(device[turns] == device[op]) & (timeline.start[turns] < timeline.start[op])]
        if len(beside):
            last = int(beside[np.argmax(timeline.end[beside])])
            reasons.append((float(timeline.end[last]), last))
        if not reasons:
            break
        op = max(reasons)[1]
        chain.append(op)
    return np.array(chain, dtype=np.int64)


def _key(problem: Problem, plan: Plan) -> tuple[int, float]:
    timeline = simulate(problem, plan)
    value = timeline.step_time if problem.objective == "step" else timeline.period
    return timeline.overflow, value
