"""The pair policy: its estimates are the list scheduler's, its gradient is the slope, it learns."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import problems

from placewright import Cluster, MaxEvaluations, Plan, Problem, judge, solve, solvers, zoo
from placewright.errors import ConfigError, FileError
from placewright.policies import grouping as groups
from placewright.policies.shipped import shipped_policy
from placewright.policies.transfer.features import FEATURES
from placewright.policies.transfer.linear import LinearConfig, LinearPolicy
from placewright.scheduling.batched_schedules import BatchedSchedule, ScheduleOrder
from placewright.scheduling.list_scheduler import ListSchedule
from placewright.scheduling.ranks import upward_ranks
from placewright.training.linear_trainer import LinearTrainer, gradients
from placewright.training.policy_solver import PolicySolver
from placewright.zoo import families


def fresh(seed=0, **shape) -> LinearPolicy:
    return LinearPolicy(
        LinearConfig(**shape), np.random.default_rng(seed).normal(size=len(FEATURES))
    )


@pytest.fixture(scope="module")
def branches() -> Problem:
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_every_plan_keeps_the_constraints_of_any_problem(problem):
    policy = fresh(rule="op")
    episodes = policy.act(problem, 3, seed=0)
    verdict = judge(problem, episodes.placements, episodes.priority)  # raises where one is broken
    assert len(verdict.value) == 3
    assert np.isfinite(episodes.log_prob).all()


@pytest.mark.parametrize(
    "name", ["branches:modules=1", "layered:ops=60", "transformer:blocks=1,tokens=64"]
)
@pytest.mark.parametrize("seed", range(3))
def test_estimates_are_those_of_the_list_scheduler(name, seed):
    """The same ops on the same devices in the same order: starts, ends and bytes in use agree."""
    problem = Problem(zoo.load(name), Cluster.parse("2xP100+K80+cpu"))
    a = problem.arrays
    grouping = groups.group_ops(problem, "op", 1000)
    course = ScheduleOrder.of(problem, grouping, groups.legal_devices(problem, grouping))
    rng = np.random.default_rng(seed)
    choice = np.array([rng.choice(np.flatnonzero(row)) for row in course.legal])
    lists, listing = BatchedSchedule(course, 2), ListSchedule(problem)
    for turn in course.ranked_ops:
        ready = listing.ready(turn.op)
        found = lists.arrival_times(turn.inputs, turn.sources)[0]
        np.testing.assert_allclose(found, [ready, ready])
        if turn.group >= 0:
            lists.place_group(turn.group, np.repeat(choice[turn.group], 2))
        listing.add(turn.op, int(lists.placement[0, turn.op]))
        lists.add_op(turn)
        np.testing.assert_allclose(lists.used_bytes[0], listing.used)
    np.testing.assert_allclose(lists.start[1], listing.start)
    np.testing.assert_allclose(lists.end[0], listing.end)
    np.testing.assert_allclose(lists.device_free[1], listing.free)
    order = [turn.op for turn in course.ranked_ops]
    np.testing.assert_allclose(course.rank, upward_ranks(problem.arrays))
    assert order == [op for op in np.argsort(-course.rank, kind="stable") if a.scheduled[op]]


def test_the_gradient_is_the_slope_of_log_probability_and_entropy(branches):
    policy = fresh(rule="coarse", most=12)
    luck = policy.gumbel(branches, 3, np.random.default_rng(1))
    walk = policy.roll_out(branches, gumbel=luck, keep_features=True)
    of_log, of_entropy = gradients(policy, branches, walk)
    step = 1e-5

    def seen(weights):
        other = LinearPolicy(policy.config, weights)
        logits = np.where(other.legal(branches)[:, None], walk.features @ weights, -1e9)
        sure = logits - np.log(np.exp(logits - logits.max()).sum(-1, keepdims=True)) - logits.max()
        chosen = np.take_along_axis(sure, walk.device.T[:, :, None].astype(int), 2)
        return chosen.sum(axis=(0, 2)), -(np.exp(sure) * np.maximum(sure, -1e3)).sum(axis=(0, 2))

    for at in range(len(FEATURES)):
        moved = step * (np.arange(len(FEATURES)) == at)
        up, down = seen(policy.weights + moved), seen(policy.weights - moved)
        np.testing.assert_allclose(of_log[:, at], (up[0] - down[0]) / (2 * step), atol=1e-3)
        np.testing.assert_allclose(of_entropy[:, at], (up[1] - down[1]) / (2 * step), atol=1e-3)


def test_torch_finds_the_same_gradient(branches):
    pytest.importorskip("torch")
    policy = fresh(rule="coarse", most=12)
    episodes = policy.act(branches, 4, seed=2)
    walk = policy.roll_out(branches, forced_options=episodes.actions["device"], keep_features=True)
    (weights,) = policy.parameters()
    policy.score(branches, episodes).log_prob.sum().backward()
    expected = gradients(policy, branches, walk)[0].sum(axis=0)
    np.testing.assert_allclose(weights.grad.numpy(), expected, rtol=1e-3, atol=1e-3)


def test_a_few_hundred_plans_reach_earliest_task_first_on_a_graph_and_cluster_never_seen():
    def problem(graph, cluster):
        return Problem(zoo.load(f"cifar10:graph={graph}"), Cluster.parse(cluster))

    train = [problem(0, "2xK80"), problem(1, "3xP100+cpu")]
    policy = LinearTrainer(episodes=8).run(train, max_evaluations=320, seed=0)
    ratios = []
    for graph, cluster in ((2, "2xK80"), (3, "4xK80+cpu")):
        unseen = problem(graph, cluster)
        etf = solve(unseen, solvers.METF()).objective_value
        episodes = policy.act(unseen, 1, 0, greedy=True)
        ratios.append(judge(unseen, episodes.placements, episodes.priority).value[0] / etf)
    assert np.mean(ratios) < 1.0


def test_the_same_seed_trains_the_same_policy(branches):
    one, same, other = (LinearTrainer().run([branches], 64, seed).weights for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()


def test_a_policy_is_one_readable_file(branches, tmp_path):
    policy, path = fresh(3), tmp_path / "pair.json"
    policy.save(path)
    again = LinearPolicy.load(path)
    assert (again.weights == policy.weights).all()
    assert again.config == policy.config
    path.write_text(path.read_text().replace('"load"', '"lead"'))
    with pytest.raises(FileError, match="is no pair policy of this release"):
        LinearPolicy.load(path)


@pytest.mark.parametrize("cluster", ["2xK80", "3xP100+cpu", "8xP100"])
def test_the_policy_that_ships_beats_the_list_schedulers_on_an_unseen_graph(cluster):
    graph = zoo.load(f"cifar10:graph={families.TEST_GRAPHS[0]}")
    problem = Problem(graph, Cluster.parse(cluster))
    found = solve(problem, PolicySolver("pair", samples=7), seed=0)
    assert found.fits
    assert found.evaluations == 16  # 8 plans, each in two orders
    lists = min(solve(problem, each).objective_value for each in (solvers.METF(), solvers.HEFT()))
    assert found.objective_value < lists


def test_where_memory_is_tight_it_is_shown_less_until_plans_fit():
    """Each device has 55 % of what the whole network needs."""
    graph = zoo.load(f"cifar10:graph={families.TEST_GRAPHS[0]}")
    problem = Problem(graph, Cluster.parse("2xK80"))
    a = problem.arrays
    single = judge(problem, np.zeros(a.ops, dtype=np.int32)).peak.max()
    tight = problem.with_arrays(capacity=np.full(2, int(single * 0.55)))
    policy = shipped_policy("pair")
    assert (judge(tight, policy.act(tight, 4, 0).placements).overflow > 0).any()
    found = solve(tight, PolicySolver("pair", samples=3), seed=0)
    assert found.fits
    assert found.evaluations > 8  # it was tried again


def test_it_stops_when_told_and_repeats_itself(branches):
    one, same = (
        solve(branches, PolicySolver("pair"), MaxEvaluations(30), seed=4) for _ in range(2)
    )
    assert one.evaluations == 30
    assert (one.plan.placement == same.plan.placement).all()


def test_an_unknown_policy_is_refused(branches):
    with pytest.raises(ConfigError, match="no policy named 'pear' ships"):
        shipped_policy("pear")


def without_torch(method):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from placewright import Cluster, Problem, solve, zoo\n"
        "from placewright.errors import MissingDependency\n"
        "from placewright.training.policy_solver import PLACED\n"
        "problem = Problem(zoo.load('branches:modules=1'), Cluster.parse('2xP100'))\n"
        "try:\n"
        f"    print('fits', solve(problem, PLACED['{method}']()).fits)\n"
        "except MissingDependency as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_placing_needs_no_torch_and_a_method_that_does_says_so():
    assert without_torch("pair") == "fits True"
    assert "placewright[torch]" in without_torch("placeto")


def test_what_it_thinks_of_a_plan_is_what_it_would_have_drawn_it_with(diamond_problem):
    policy = shipped_policy("pair")
    episodes = policy.act(diamond_problem, 1, seed=3)
    plan = Plan.of(diamond_problem, episodes.placements[0])
    likely = policy.move_probabilities(diamond_problem, plan)
    assert likely.sum(axis=1) == pytest.approx(np.ones(len(plan)))
    chosen = likely[np.arange(len(plan)), plan.placement]
    assert np.log(chosen).sum() == pytest.approx(float(episodes.log_prob[0].sum()), abs=1e-4)
