"""Proposers: their calls, their budget, and annealing with their moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem
from placewright.errors import PlanError
from placewright.plan_batch import PlanBatch
from placewright.solvers import Auto, MaxEvaluations, MaxTime, Search, Stop, solve
from placewright.solvers.proposer import (
    BudgetedProposer,
    Proposer,
    ProposerBudget,
)
from placewright.solvers.searches.annealing import grouping_levels
from placewright.solvers.searches.annealing_chains import (
    AnnealingChains,
    Cooling,
    MoveGuide,
    MoveShares,
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
        yield Plan.of(problem, problem.legalize(np.full(len(problem.graph), self.target)))

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
    start = Plan.of(problem, problem.legalize(np.zeros(len(problem.graph), dtype=np.int32)))
    search.judge_plan(start)
    annealer = AnnealingChains(search, grouping_levels(problem))
    rows = PlanBatch.of(problem, [start], with_priorities=False, with_staging=False)
    only_moves = MoveShares(move=1.0, swap=0.0, move_run=0.0)
    asked = BudgetedProposer(Opinion(target=2), ProposerBudget(search))
    guide = MoveGuide(asked.move_probabilities, share=1.0, interval=50)
    best = annealer.run(rows, 400, Cooling(0.0, 0.0), only_moves, guide=guide)
    assert set(best.placement[0].tolist()) == {0, 2}
    assert asked.proposer.asked[1] == 1  # a run this short calls it once
    free = annealer.run(rows, 400, Cooling(0.0, 0.0), only_moves)
    assert set(free.placement[0].tolist()) == {0, 1, 2}


def test_a_plan_budget_leaves_the_clock_out(problem: Problem):
    """60 ops × 1.5e-7 s × 1,000 plans are 9 ms, of which a fifth are 1.8."""
    search = Search(problem, MaxEvaluations(1_000), seed=0)
    allowance = ProposerBudget(search)
    ops = problem.arrays.ops
    room = 0.2 * 1_000 * ops * 1.5e-7
    assert allowance.allows(0.99 * room)
    assert not allowance.allows(1.01 * room)
    with allowance.measure(0.6 * room):
        pass
    allowance.seconds_used = 100.0  # which no clock may decide on
    assert allowance.allows(0.39 * room)
    assert not allowance.allows(0.41 * room)


def test_a_time_budget_is_measured(problem: Problem):
    search = Search(problem, MaxTime(100.0), seed=0)
    allowance = ProposerBudget(search)
    assert allowance.allows(19.9)
    assert not allowance.allows(20.1)
    with allowance.measure(1.0):
        pass
    allowance.seconds_used = 4.0  # four times what it said
    assert allowance.allows(3.9)
    assert not allowance.allows(4.1)


def test_a_slow_proposer_is_not_asked(problem: Problem):
    slow, quick = Opinion(plan_seconds=1.0, move_seconds=1.0), Opinion()
    auto = Auto(first_evaluations=20, exact=False, chains=1, proposers=(slow, quick))
    solve(problem, auto, MaxEvaluations(1_500))
    assert slow.asked == [0, 0]
    assert quick.asked[0] == 1
    assert quick.asked[1] >= 2


def test_the_same_seed_gives_the_same_plan(problem: Problem):
    auto = Auto(first_evaluations=20, exact=False, proposers=(Opinion(),))
    one, two = (solve(problem, auto, MaxEvaluations(1_500), seed=3) for _ in range(2))
    assert one.plan == two.plan


class Nothing:
    """Proposes no plans and rates no moves: the null of every comparison."""

    name = "nothing"
    plan_seconds = move_seconds = 0.0

    def propose(self, problem, count, seed):
        return ()

    def move_probabilities(self, problem, plan):
        return None


@pytest.mark.parametrize("limit", [None, "2GiB"])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_proposer_that_proposes_nothing_changes_nothing(limit: str | None, seed: int):
    """Else seeds are not paired: an arm with any proposer would have other luck than `auto`."""
    limits = {} if limit is None else {"gpu0": limit}
    problem = Problem(load("transformer:blocks=12,tokens=64"), Cluster.parse("2xP100+cpu"))
    problem = Problem(problem.graph, problem.cluster, limits=limits)
    without, null = (
        solve(problem, Auto(exact=False, proposers=proposers), MaxEvaluations(2_500), seed=seed)
        for proposers in ((), (Nothing(),))
    )
    assert null.plan == without.plan
    assert [step[::2] for step in null.history] == [step[::2] for step in without.history]
    assert null.evaluations == without.evaluations


def test_moves_must_be_probabilities(problem: Problem):
    auto = Auto(first_evaluations=20, exact=False, proposers=(Opinion(wrong=0.5),))
    with pytest.raises(PlanError, match=r"moves that are not probabilities: .* sum to 1"):
        solve(problem, auto, MaxEvaluations(1_500))


def test_streamed_plans_are_shown_as_they_are_judged():
    """A staging buffer of annealing may be too small, and is raised when it is evaluated."""
    problem = Problem(load("transformer:blocks=2,tokens=64"), Cluster.parse("P100+cpu"))
    device = problem.legalize(np.zeros(len(problem.graph), dtype=np.int32))
    device[problem.arrays.is_weight] = 1
    shown: list[Plan] = []

    class Looks(Opinion):
        def move_probabilities(self, problem, plan):
            shown.append(plan)
            return super().move_probabilities(problem, plan)

    search = Search(problem, Stop(), seed=0)
    staging_rows = np.array([[0, -1]], dtype=np.int64)
    BudgetedProposer(Looks(), ProposerBudget(search)).move_probabilities(
        PlanBatch(device[None], None, staging_rows)
    )
    search.judge_plan(shown[0])  # which raises if the buffer is too small
    assert shown[0].staging is not None
    assert shown[0].staging[0] > 0
