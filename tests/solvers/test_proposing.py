"""Proposers: what they are asked, what they may take, and what walks make of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem
from placewright.errors import PlanError
from placewright.solvers import Auto, MaxEvaluations, MaxTime, Search, Stop, solve
from placewright.solvers.proposer import (
    Allowance,
    Asked,
    Proposer,
)
from placewright.solvers.searches.annealing import levels
from placewright.solvers.searches.annealing_chains import (
    Changes,
    Cooling,
    Guide,
    Rows,
    Walker,
)
from placewright.zoo import load


@dataclass
class Opinion:
    """Wants every op on one device; counts how often it is asked for plans and for moves."""

    target: int = 0
    plan_seconds: float = 0.0
    move_seconds: float = 0.0
    wrong: float = 1.0
    asked: list[int] = field(default_factory=lambda: [0, 0])
    name: str = "opinion"

    def propose(self, problem, count, seed):
        self.asked[0] += 1
        yield Plan.of(problem, problem.settle(np.full(len(problem.graph), self.target)))

    def move_probabilities(self, problem, plan):
        self.asked[1] += 1
        likely = np.zeros((problem.arrays.ops, problem.arrays.devices))
        likely[:, self.target] = self.wrong
        return likely


@pytest.fixture
def problem() -> Problem:
    return Problem(load("layered:ops=60,weights=true"), Cluster.parse("3xP100"))


def test_anything_with_the_three_members_is_a_proposer():
    assert isinstance(Opinion(), Proposer)
    assert not isinstance(lambda problem: [], Proposer)


def test_moves_go_where_the_proposer_wants_them(problem: Problem):
    """Without heat only better plans are kept, so only what is proposed can be found."""
    search = Search(problem, Stop(), seed=0)
    start = Plan.of(problem, problem.settle(np.zeros(len(problem.graph), dtype=np.int32)))
    search.propose(start)
    walker = Walker(search, levels(problem))
    rows = Rows.of(problem, [start], order=False, stream=False)
    only_moves = Changes(move=1.0, swap=0.0, stretch=0.0)
    asked = Asked(Opinion(target=2), Allowance(search))
    guide = Guide(asked.likely, share=1.0, every=50)
    best = walker.walk(rows, 400, Cooling(0.0, 0.0), only_moves, guide=guide)
    assert set(best.device[0].tolist()) == {0, 2}
    assert asked.proposer.asked[1] == 1  # a walk this short has one stretch
    free = walker.walk(rows, 400, Cooling(0.0, 0.0), only_moves)
    assert set(free.device[0].tolist()) == {0, 1, 2}


def test_a_plan_budget_leaves_the_clock_out(problem: Problem):
    """60 ops × 1.5e-7 s × 1,000 plans are 9 ms, of which a fifth are 1.8."""
    search = Search(problem, MaxEvaluations(1_000), seed=0)
    allowance = Allowance(search)
    ops = problem.arrays.ops
    room = 0.2 * 1_000 * ops * 1.5e-7
    assert allowance.covers(0.99 * room)
    assert not allowance.covers(1.01 * room)
    with allowance.spent(0.6 * room):
        pass
    allowance.took = 100.0  # which no clock may decide on
    assert allowance.covers(0.39 * room)
    assert not allowance.covers(0.41 * room)


def test_a_time_budget_is_measured(problem: Problem):
    search = Search(problem, MaxTime(100.0), seed=0)
    allowance = Allowance(search)
    assert allowance.covers(19.9)
    assert not allowance.covers(20.1)
    with allowance.spent(1.0):
        pass
    allowance.took = 4.0  # four times what it said
    assert allowance.covers(3.9)
    assert not allowance.covers(4.1)


def test_a_slow_proposer_is_not_asked(problem: Problem):
    slow, quick = Opinion(plan_seconds=1.0, move_seconds=1.0), Opinion()
    auto = Auto(first=20, exact=False, chains=1, proposers=(slow, quick))
    solve(problem, auto, MaxEvaluations(1_500))
    assert slow.asked == [0, 0]
    assert quick.asked[0] == 1
    assert quick.asked[1] >= 2


def test_the_same_seed_gives_the_same_plan(problem: Problem):
    auto = Auto(first=20, exact=False, proposers=(Opinion(),))
    one, two = (solve(problem, auto, MaxEvaluations(1_500), seed=3) for _ in range(2))
    assert one.plan == two.plan


def test_moves_must_be_probabilities(problem: Problem):
    auto = Auto(first=20, exact=False, proposers=(Opinion(wrong=0.5),))
    with pytest.raises(PlanError, match=r"moves that are no probabilities: .* sum to 1"):
        solve(problem, auto, MaxEvaluations(1_500))


def test_streamed_plans_are_shown_as_they_are_judged():
    """A walk's room may be smaller than what it needs, and is raised when it is judged."""
    problem = Problem(load("transformer:blocks=2,tokens=64"), Cluster.parse("P100+cpu"))
    device = problem.settle(np.zeros(len(problem.graph), dtype=np.int32))
    device[problem.arrays.weight] = 1
    shown: list[Plan] = []

    class Looks(Opinion):
        def move_probabilities(self, problem, plan):
            shown.append(plan)
            return super().move_probabilities(problem, plan)

    search = Search(problem, Stop(), seed=0)
    rooms = np.array([[0, -1]], dtype=np.int64)
    Asked(Looks(), Allowance(search)).likely(Rows(device[None], None, rooms))
    search.propose(shown[0])  # which raises if the room is too small
    assert shown[0].staging is not None
    assert shown[0].staging[0] > 0
