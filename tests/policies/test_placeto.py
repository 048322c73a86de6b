"""Placeto: what it reads, the plans of its steps, graphs and clusters it was not made for."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import problems
from yardstick import lengths

from placewright import Cluster, Graph, Op, Problem, Table, judge, solve, solvers, zoo
from placewright.errors import ProblemError
from placewright.policies.shipped import WEIGHTS_FOLDER, linear_weights, shipped_policy
from placewright.scheduling.reachability import ancestors

torch = pytest.importorskip("torch")
from placewright.policies.placeto import policy as placeto  # noqa: E402
from placewright.policies.transfer import gnn  # noqa: E402
from placewright.training.policy_solver import PolicySolver  # noqa: E402
from placewright.zoo import families  # noqa: E402


@pytest.fixture(scope="module")
def branches() -> Problem:
    return Problem(zoo.load("branches:modules=2"), Cluster.parse("2xP100"))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_ancestors_are_what_powers_of_the_adjacency_reach_circles_included(data):
    count = data.draw(st.integers(1, 9))
    pairs = data.draw(st.sets(st.tuples(*[st.integers(0, count - 1)] * 2)))
    distinct = sorted((a, b) for a, b in pairs if a != b)
    edges = np.array(distinct, dtype=np.int64).reshape(-1, 2)
    step = np.zeros((count, count), dtype=int)
    step[edges[:, 1], edges[:, 0]] = 1
    expected = sum(np.linalg.matrix_power(step, power) for power in range(1, count + 1)) > 0
    np.fill_diagonal(expected, False)
    assert (ancestors(count, edges[:, 0], edges[:, 1]) == expected).all()


@settings(max_examples=25, deadline=None)
@given(problem=problems())
@pytest.mark.parametrize(
    "config",
    [
        placeto.PlacetoConfig(max_groups=5, rounds=1, steps=True, start="random"),
        gnn.GnnConfig(max_groups=5, rounds=1, shipped=False),
    ],
)
def test_every_plan_keeps_the_constraints_of_any_problem(config, problem):
    policy = config.build(problem)
    episodes = policy.act(problem, 2, seed=0)
    judge(problem, episodes.placements, episodes.priority)  # raises where one is broken
    found = policy.score(problem, episodes).log_prob.detach().numpy()
    np.testing.assert_allclose(found, episodes.log_prob, atol=1e-4)


def test_a_device_that_takes_no_time_leaves_numbers_that_can_be_told_apart():
    cluster = Cluster.parse("3xP100")
    names = tuple(device.name for device in cluster.devices)
    graph = Graph("one", (Op("only", outputs=(8,)),))
    problem = Problem(graph, cluster, Table(("only",), names, np.array([[3.0, 3.0, 0.0]])))
    policy = gnn.GnnConfig(rounds=1, shipped=False).build(problem)
    episodes = policy.act(problem, 50, seed=0)
    told = policy._cached_rollout(problem, episodes.actions["device"]).features
    assert np.abs(told).max() < 1e4
    found = policy.score(problem, episodes).log_prob.detach().numpy()
    np.testing.assert_allclose(found, episodes.log_prob, atol=1e-4)


@pytest.mark.parametrize("start", ["first", "fixed", "random"])
def test_an_episode_per_step_has_the_start_and_one_more_group_revised_each_time(branches, start):
    policy = placeto.PlacetoConfig(max_groups=6, steps=True, start=start).build(branches)
    episodes = policy.act(branches, 3, seed=1)
    grouping = policy.grouping(branches)
    steps = len(grouping)
    assert episodes.episode_of.tolist() == [at for at in range(3) for _ in range(steps + 1)]
    begun, drawn = episodes.actions["start"], episodes.actions["device"]
    plans = episodes.placements.reshape(3, steps + 1, -1)
    for step in range(steps + 1):
        rows = np.where(np.arange(steps) < step, drawn, begun)
        assert (plans[:, step] == branches.legalize(grouping.expand(rows))).all()
    assert (begun == 0).all() == (start == "first")
    assert (begun == begun[0]).all() == (start != "random")


def test_the_last_plan_alone_is_the_end_of_the_same_episode(branches):
    per_step, last = (
        placeto.PlacetoConfig(max_groups=6, steps=steps).build(branches) for steps in (True, False)
    )
    one, other = per_step.act(branches, 4, seed=3), last.act(branches, 4, seed=3)
    steps = len(last.grouping(branches))
    assert (one.placements.reshape(4, steps + 1, -1)[:, -1] == other.placements).all()
    np.testing.assert_allclose(one.log_prob, other.log_prob)


def test_scoring_in_parts_changes_neither_scores_nor_gradients(branches, monkeypatch):
    policy = placeto.PlacetoConfig(max_groups=6, hidden=8, rounds=2).build(branches)
    episodes = policy.act(branches, 3, seed=0)

    def scored():
        policy.zero_grad()
        scores = policy.score(branches, episodes)
        scores.log_prob.sum().backward()
        return scores.log_prob.detach(), [each.grad.clone() for each in policy.parameters()]

    whole, slopes = scored()
    monkeypatch.setattr(placeto, "_MAX_ELEMENTS", 1)  # one step at a time, computed again
    parts, again = scored()
    torch.testing.assert_close(whole, parts)
    for one, other in zip(slopes, again, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_papers_network_has_the_sizes_of_the_authors_code(branches):
    """d = 4 + 2 without the start time; reader, messages, pooling and policy in multiples of d²."""
    d, policy = 6, placeto.PlacetoConfig().build(branches)
    weights = sum(each.numel() for each in policy.parameters() if each.dim() == 2)
    assert weights == (3 + 2 * 4 + 3 * 4 * 4 + 8 * 16 + 16 * 8) * d * d + 8 * d * 2


@pytest.mark.parametrize("rounds", [0, 2])
def test_who_reads_from_whom_is_heard_by_messages_alone(branches, rounds):
    policy = placeto.PlacetoConfig(max_groups=6, rounds=rounds).build(branches)
    episodes = policy.act(branches, 2, seed=0)
    before = policy.score(branches, episodes).log_prob
    seen = policy._observe(branches)
    cut = replace(
        seen,
        predecessors=torch.zeros_like(seen.predecessors),
        successors=torch.zeros_like(seen.successors),
    )
    policy._observations[branches] = cut
    after = policy.score(branches, episodes).log_prob
    assert bool((before == after).all()) == (rounds == 0)


def test_one_policy_places_graphs_of_any_size_but_no_other_number_of_devices(branches):
    policy = placeto.PlacetoConfig(max_groups=6).build(branches)
    larger = replace(branches, graph=zoo.load("layered:ops=40"))
    assert len(policy.grouping(larger)) <= 6
    policy.act(larger, 2, seed=0)
    with pytest.raises(ProblemError, match="was made for 2 devices: the problem has 4"):
        policy.act(replace(branches, cluster=Cluster.parse("4xP100")), 1, seed=0)


def test_for_any_devices_it_begins_as_the_pair_policy_that_ships(branches):
    """The graph network's say is small at first, so what it likes best is the same plan."""
    pair = shipped_policy("pair")
    policy = gnn.GnnConfig(max_groups=2000).build(branches)
    with torch.no_grad():
        policy.out.weight.zero_()
    np.testing.assert_allclose(policy.linear.detach().numpy(), linear_weights(), rtol=1e-6)
    for cluster in ("2xP100", "3xK80+cpu", "8xP100"):
        problem = replace(branches, cluster=Cluster.parse(cluster))
        mine, its = (each.act(problem, 1, 0, greedy=True) for each in (policy, pair))
        assert (mine.placements == its.placements).all()


def test_the_graph_network_hears_the_graph(branches):
    """Two groups with the same attributes and other neighbours get other vectors."""
    policy = gnn.GnnConfig(rounds=2, shipped=False).build(branches)
    seen = policy._features_of(branches)
    with torch.no_grad():
        vectors = policy._group_vectors(seen).numpy()
    assert vectors.shape == (len(policy.grouping(branches)), 16)
    assert len(np.unique(vectors.round(6), axis=0)) > len(vectors) / 2


@pytest.mark.parametrize("cluster", ["2xK80", "5xK80"])
def test_the_policy_that_ships_beats_the_list_schedulers_on_an_unseen_graph(cluster):
    graph = zoo.load(f"cifar10:graph={families.TEST_GRAPHS[0]}")
    problem = Problem(graph, Cluster.parse(cluster))
    found = solve(problem, PolicySolver("placeto", samples=3), seed=0)
    assert found.fits
    lists = min(solve(problem, each).objective_value for each in (solvers.METF(), solvers.HEFT()))
    assert found.objective_value < lists


@pytest.mark.parametrize("name", ["pair", "placeto"])
def test_a_method_that_ships_places_300_groups_in_little_time(name):
    problem = Problem(
        zoo.load(f"cifar10:graph={families.TEST_GRAPHS[0]}"), Cluster.parse("3xP100+cpu")
    )
    assert lengths(lambda: solve(problem, PolicySolver(name), seed=0), limit=24) < 24  # 6: 0.6 s
    assert solve(problem, PolicySolver(name), seed=0).fits
    assert len(shipped_policy(name).grouping(problem)) > 300


def test_the_one_that_ships_answers_well_on_a_cluster_it_never_saw_and_says_who_made_it():
    faster = []
    for name in ("cifar10", "ptb", "nmt"):
        graph = zoo.load(f"{name}:graph={families.TEST_GRAPHS[0]}")
        problem = Problem(graph, Cluster.parse("7xP100+cpu"), discipline="ready")
        values = []
        for each in ("pair", "placeto"):
            answer = shipped_policy(each).act(problem, 1, 0, greedy=True)
            values.append(judge(problem, answer.placements, answer.priority).value[0])
        faster.append(values[1] / values[0])
    assert np.exp(np.mean(np.log(faster))) < 0.97
    data = json.loads((WEIGHTS_FOLDER / "placeto.json").read_text())
    assert data["made_by"].startswith("python benchmarks/train_policies.py placeto")


def test_where_many_decisions_are_fixed_those_drawn_alone_are_scored(branches):
    policy = gnn.GnnConfig(drawn=0.3, shipped=False).build(branches)
    episodes = policy.act(branches, 8, seed=0)
    free = episodes.actions["free"]
    assert 0.15 < free.mean() < 0.45
    assert (episodes.log_prob[~free] == 0).all()
    assert (episodes.log_prob[free] < 0).any()
    greedy = policy.act(branches, 1, 0, greedy=True)
    assert greedy.actions["free"].all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("module", [placeto, gnn])
def test_on_a_gpu_it_thinks_as_on_the_cpu(branches, module):
    policy = module.Shape(most=12).build(branches)
    episodes = policy.act(branches, 4, seed=0)
    expected = policy.score(branches, episodes).log_prob.detach()
    policy.to("cuda")
    found = policy.score(branches, episodes).log_prob.detach().cpu()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert policy.act(branches, 2, seed=0).device.shape[1] == len(branches.graph)
