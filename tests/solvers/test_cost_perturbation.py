"""Plans under perturbed costs, and the choice among a search's best few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import plans, problems

from placewright import Cluster, Device, Graph, Link, Op, Plan, Problem, Search, Table, judge
from placewright.errors import ConfigError
from placewright.plan_batch import PlanBatch
from placewright.solvers import (
    Baselines,
    RandomSearch,
    RobustChoice,
    Stop,
    perturbed_problems,
    robustness,
    solve,
)
from placewright.solvers import cost_perturbation as module
from placewright.solvers.best_plans import (
    MAX_PLANS,
    BestPlans,
    Candidate,
    plan_fingerprint,
)

TOGETHER, SPLIT = [0, 0, 0, 0], [0, 0, 1, 0]


def test_factors_stay_within_the_spread_and_are_joint_where_they_should_be(
    diamond_problem: Problem,
) -> None:
    a = diamond_problem.arrays
    own, joint = [], []
    for changed in perturbed_problems(diamond_problem, trials=200, spread=0.3):
        factor = changed.arrays.compute / a.compute
        assert factor.min() >= 0.7**2
        assert factor.max() <= 1.3**2
        own.append(factor[:, 0])
        joint.append(factor.mean(axis=0))
        assert changed.arrays.capacity is a.capacity
        assert changed.graph is diamond_problem.graph
    # Two ops on one device share a factor of variance 0.3²/3, so they are correlated by about half.
    one, other = np.array(own)[:, 1], np.array(own)[:, 2]
    assert 0.35 < np.corrcoef(one, other)[0, 1] < 0.65
    assert abs(np.corrcoef(np.array(joint).T)[0, 1]) < 0.2  # two devices are not
    assert np.array(own).mean() == pytest.approx(1, abs=0.03)


def test_every_channel_has_a_factor_of_its_own(diamond_problem: Problem) -> None:
    assert len(diamond_problem.arrays.transfer) == 1  # both ways are equally fast
    there, back = [], []
    for changed in perturbed_problems(diamond_problem, trials=200):
        a = changed.arrays
        there.append(a.transfer[a.link_class[0, 1], 0])
        back.append(a.transfer[a.link_class[1, 0], 0])
    assert np.std(np.array(there) / np.array(back)) > 0.1  # with one tensor's factor in common


def test_a_cluster_with_too_many_channels_shares_factors_by_speed(
    diamond_problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CHANNEL_TIMES", 1)
    (changed,) = perturbed_problems(diamond_problem, trials=1)
    assert changed.arrays.link_class is diamond_problem.arrays.link_class
    assert changed.arrays.transfer.shape == diamond_problem.arrays.transfer.shape
    assert (changed.arrays.transfer != diamond_problem.arrays.transfer).all()


def test_the_first_trials_do_not_depend_on_their_number(diamond_problem: Problem) -> None:
    few = [
        changed.arrays.compute for changed in perturbed_problems(diamond_problem, trials=2, seed=5)
    ]
    many = [
        changed.arrays.compute for changed in perturbed_problems(diamond_problem, trials=4, seed=5)
    ]
    assert np.array_equal(few, many[:2])
    (other,) = perturbed_problems(diamond_problem, trials=1, seed=6)
    assert not np.array_equal(other.arrays.compute, few[0])


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_without_a_spread_every_trial_is_the_nominal_one(data: st.DataObject) -> None:
    problem = data.draw(problems())
    several = [data.draw(plans(problem)) for _ in range(3)]
    made = [Plan.of(problem, device, priority, staging=s) for device, priority, s in several]
    for plan, found in zip(made, robustness(problem, made, trials=3, spread=0.0), strict=True):
        rooms = None if plan.staging is None else plan.staging[None]
        order = None if plan.priority is None else plan.priority[None]
        verdict = judge(problem, plan.placement[None], order, rooms)
        same = found.nominal, found.median, found.p95, found.worst
        assert same == pytest.approx((float(verdict.value[0]),) * 4, abs=0)
        assert found.tail == pytest.approx(found.nominal)
        assert found.over == (3 if verdict.overflow[0] else 0)


def test_robustness_is_what_the_simulator_says_of_the_trials(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, SPLIT)
    (found,) = robustness(diamond_problem, [plan], trials=20, spread=0.2, seed=3)
    values = sorted(
        float(judge(changed, [SPLIT]).value[0])
        for changed in perturbed_problems(diamond_problem, trials=20, spread=0.2, seed=3)
    )
    assert (found.nominal, found.worst) == (16.0, values[-1])
    assert found.median == pytest.approx((values[9] + values[10]) / 2)
    assert found.tail == pytest.approx((values[18] + values[19]) / 2)  # a tenth of 20
    assert found.median < found.p95 <= found.worst


def test_plans_are_judged_on_the_same_trials_alone_or_together(diamond_problem: Problem) -> None:
    made = [
        Plan.of(diamond_problem, TOGETHER),
        Plan.of(diamond_problem, SPLIT, priority=[0, 2, 1, 3]),
        Plan.of(diamond_problem, SPLIT, fusion=[0, 0, -1, -1]),
    ]
    together = robustness(diamond_problem, made, trials=10)
    alone = [robustness(diamond_problem, [plan], trials=10)[0] for plan in made]
    assert together == alone
    assert together[2].nominal == 26.0  # `right` waits for the fused pair: 11 + 2 + 10 + 2 + 1


def brittle() -> Problem:
    """Two ops in a chain: a fast device reached over a wire, or a slower one that needs none."""
    fast, slow = Device("fast", memory=10), Device("slow", memory=10)
    wire = Link(1.0)
    graph = Graph("pair", (Op("a", outputs=(4,)), Op("b", outputs=(1,), inputs=((0, 0),))))
    costs = Table(("a", "b"), ("fast", "slow"), [[5.0, 1.0], [1.0, 5.2]])
    cluster = Cluster("pair", (fast, slow), {("fast", "slow"): wire, ("slow", "fast"): wire})
    return Problem(graph, cluster, costs)


def test_the_choice_is_the_plan_whose_bad_trials_are_least_bad() -> None:
    problem = brittle()
    search = Search(problem, Stop(), seed=0)
    search.judge([[1, 0], [1, 1], [0, 0], [0, 1]])
    # 1 + 4 + 1 over the wire, 5 + 1 or 1 + 5.2 on one device, 5 + 4 + 5.2 the wrong way
    assert [found.key[1] for found in search.top_plans] == [6.0, 6.0, 6.2, 14.2]
    ranked = RobustChoice(trials=60, spread=0.4).rank(search)
    tails = [each.robustness.tail for each in ranked]
    assert tails == sorted(tails)
    assert ranked[0].candidate.plan.placement.tolist() == [
        1,
        0,
    ]  # three factors even out more than two
    chosen = solve(problem, RandomSearch(50), select=RobustChoice(trials=60, spread=0.4))
    assert chosen.plan.placement.tolist() == [1, 0]
    assert chosen.step_time == 6.0


def test_a_plan_that_may_go_over_memory_loses() -> None:
    """Memory over time depends on when things arrive: here a copy may come before room is free."""
    graph = Graph(
        "meet",
        (
            Op("long", outputs=(4,)),
            Op("first", outputs=(4,)),
            Op("second", outputs=(1,), inputs=((1, 0),)),
            Op("last", outputs=(1,), inputs=((0, 0), (2, 0))),
        ),
    )
    small, big = Device("small", memory=7), Device("big", memory=100)
    wire = Link(4.0)
    cluster = Cluster("pair", (small, big), {("small", "big"): wire, ("big", "small"): wire})
    costs = Table(
        tuple(op.name for op in graph.ops), ("small", "big"), [[9, 6], [3, 3], [2.5, 8], [1, 9]]
    )
    problem = Problem(graph, cluster, costs)
    # `long` is sent at 6 s, just after `first` is let go at 5.5 s; if it is early, both are there.
    meeting, alone = Plan.of(problem, [1, 0, 0, 0]), Plan.of(problem, [1, 1, 1, 1])
    found, safe = robustness(problem, [meeting, alone], trials=50)
    assert 0 < found.over < 50
    assert safe.over == 0
    search = Search(problem, Stop(), seed=0)
    search.judge([meeting.placement, alone.placement])
    assert search.best == meeting
    assert RobustChoice(trials=50)(search).plan == alone


def test_where_nothing_fits_the_nearest_is_chosen(layers_problem: Problem) -> None:
    tight = layers_problem.with_arrays(capacity=np.array([0, 10]))
    best = solve(tight, Baselines())
    chosen = solve(tight, Baselines(), select=RobustChoice(trials=3))
    assert not chosen.fits
    assert chosen.overflow == best.overflow


def test_nonsense_is_refused(diamond_problem: Problem) -> None:
    with pytest.raises(ConfigError, match=r"0 trials: expected at least 1"):
        RobustChoice(trials=0)
    with pytest.raises(ConfigError, match=r"a spread of 1\.5: expected from 0 to below 1"):
        list(perturbed_problems(diamond_problem, spread=1.5))


def test_a_search_remembers_the_best_few_that_differ(diamond_problem: Problem) -> None:
    search = Search(diamond_problem, Stop(), seed=0)
    every = np.array([[n >> bit & 1 for bit in range(4)] for n in range(16)])
    search.judge(every[::-1], priority=[3, 2, 1, 0])
    verdict = search.judge(every)
    few = search.top_plans
    assert len(few) == MAX_PLANS
    assert [found.key for found in few] == sorted(found.key for found in few)
    assert few[0].key == search.key
    assert few[0].plan == search.best
    assert len({found.plan.placement.tobytes() for found in few}) == MAX_PLANS
    assert [found.key[1] for found in few] == sorted(verdict.value.tolist())[:MAX_PLANS]


def test_ties_go_to_the_first_found_also_where_a_plan_improves(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, TOGETHER)
    few = BestPlans()
    for key, name in [(5.0, "a"), (3.0, "b"), (3.0, "a"), (4.0, "b")]:
        few.add(Candidate((0, key), name, lambda: plan), name.encode())
    assert [(found.key[1], found.found_by) for found in few.best_first()] == [
        (3.0, "b"),
        (3.0, "a"),
    ]
    for at in range(2 * MAX_PLANS):
        few.add(Candidate((0, 9.0), str(at), lambda: plan), bytes([at]))
    assert [found.found_by for found in few.best_first()][2:] == [
        str(at) for at in range(MAX_PLANS - 2)
    ]


def test_marks_tell_placement_staging_and_fusion_apart() -> None:
    device = np.array([0, 1], dtype=np.int32)
    none, some = np.array([-1, -1]), np.array([-1, 5])
    fused = np.array([0, 0], dtype=np.int32)
    unstaged = plan_fingerprint(PlanBatch(device[None], staging=none[None]))
    assert plan_fingerprint(PlanBatch(device[None])) == unstaged
    others = {
        plan_fingerprint(PlanBatch(device[None], staging=some[None])),
        plan_fingerprint(PlanBatch(device[::-1][None])),
        plan_fingerprint(PlanBatch(device[None], fusion=fused[None])),
    }
    assert len({unstaged} | others) == 4


def test_arrays_are_replaced_for_one_problem_alone(diamond_problem: Problem) -> None:
    a = diamond_problem.arrays
    twice = diamond_problem.with_arrays(compute=2 * a.compute)
    assert judge(diamond_problem, [TOGETHER]).value.tolist() == [22.0]
    assert judge(twice, [TOGETHER]).value.tolist() == [44.0]
    assert diamond_problem.arrays is a
