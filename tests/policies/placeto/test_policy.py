"""Placeto: the plans of its steps, several problems at once, start times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import problems

from placewright import Cluster, Problem, judge, zoo
from placewright.errors import ConfigError, ProblemError

torch = pytest.importorskip("torch")
from placewright.policies.placeto import policy as placeto  # noqa: E402
from placewright.policies.transfer import gnn  # noqa: E402
from placewright.training.clock import SimulatorClock  # noqa: E402


@pytest.fixture(scope="module")
def branches() -> Problem:
    return Problem(zoo.load("branches:modules=2"), Cluster.parse("2xP100"))


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


@pytest.mark.parametrize("seed", range(3))
def test_a_fresh_policy_with_means_chooses_freely_however_many_groups_there_are(seed):
    """With sums, the initial policy has no entropy on this graph: nothing can be learned."""
    problem = Problem(zoo.load("ptb:graph=3"), Cluster.parse("2xK80+cpu"))
    shares = []
    for means in (True, False):
        policy = placeto.PlacetoConfig(hidden=16, rounds=4, means=means).build(problem, seed)
        (head,) = policy.score(problem, policy.act(problem, 2, seed)).heads
        shares.append(float((head.entropy.mean() / head.max_entropy.mean()).detach()))
    assert shares[0] > 0.9
    assert shares[1] < 0.01


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("config", [placeto.PlacetoConfig, gnn.GnnConfig])
def test_on_a_gpu_it_thinks_as_on_the_cpu(branches, config):
    policy = config(max_groups=12).build(branches)
    episodes = policy.act(branches, 4, seed=0)
    expected = policy.score(branches, episodes).log_prob.detach()
    policy.to("cuda")
    found = policy.score(branches, episodes).log_prob.detach().cpu()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert policy.act(branches, 2, seed=0).placements.shape[1] == len(branches.graph)


@pytest.fixture(scope="module")
def several() -> list[Problem]:
    cluster = Cluster.parse("2xP100")
    names = ("branches:modules=1", "branches:modules=2", "layered:ops=12")
    return [Problem(zoo.load(name), cluster) for name in names]


def sized(**changed) -> placeto.PlacetoConfig:
    return placeto.PlacetoConfig(**{"max_groups": 7, "hidden": 8, "rounds": 2, **changed})


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_problems_side_by_side_are_placed_and_scored_as_each_alone(several, noise):
    policy = sized().build(several[0])
    together = policy.act_all(several, 3, [4, 5, 6], noise=noise)
    scored = policy.score_all(several, together)
    for problem, seed, found, scores in zip(several, (4, 5, 6), together, scored, strict=True):
        alone = policy.act(problem, 3, seed, noise=noise)
        assert (found.placements == alone.placements).all()
        np.testing.assert_allclose(found.log_prob, alone.log_prob, atol=1e-5)
        again = policy.score(problem, alone).log_prob
        torch.testing.assert_close(scores.log_prob, again, atol=1e-5, rtol=1e-4)
    assert len({episodes.log_prob.shape[1] for episodes in together}) > 1  # sizes do differ


def test_a_share_of_the_decisions_is_learned_from_and_all_are_drawn(several):
    problem = several[1]
    whole, part = sized().build(problem), sized(learn_fraction=0.3).build(problem)
    one, other = whole.act(problem, 40, seed=0), part.act(problem, 40, seed=0)
    assert (one.placements == other.placements).all()
    counted = other.actions["counted"]
    assert 0.2 < counted.mean() < 0.4
    expected = whole.score(problem, one)
    found = part.score(problem, other)
    kept = torch.as_tensor(counted)
    torch.testing.assert_close(found.log_prob[kept], expected.log_prob[kept])
    assert (found.log_prob[~kept] == 0).all()
    np.testing.assert_allclose(other.log_prob, found.log_prob.detach(), atol=1e-5)
    # Entropy is that of all decisions, reckoned from some.
    some, every = (float(each.heads[0].normalised_entropy.detach()) for each in (found, expected))
    assert some == pytest.approx(every, rel=0.1)
    assert "counted" not in part.select(other, 0).actions  # an episode to imitate counts whole


def test_start_times_are_those_of_the_plan_as_it_stands(several):
    problem = several[1]
    policy = sized(times=True).build(problem)
    with pytest.raises(ConfigError, match="reads when groups start and has no clock"):
        policy.act(problem, 1, seed=0)
    clock = SimulatorClock()
    policy.use_clock(clock)
    episodes = policy.act(problem, 2, seed=0)
    when, drawn = episodes.actions["when"], episodes.actions["device"]
    grouping = policy.grouping(problem)
    steps = len(grouping)
    assert when.shape == (2, steps, steps)
    a = problem.arrays
    for step in (0, steps - 1):
        row = np.where(np.arange(steps) < step, drawn[1], episodes.actions["start"][1])
        seconds = clock.op_starts(problem, problem.legalize(grouping.expand(row[None])))[0]
        first = [seconds[own[a.scheduled[own]]].min(initial=np.inf) for own in grouping.members()]
        least = np.where(np.isfinite(first), first, 0.0)
        np.testing.assert_allclose(when[1, step], least / least.max(), rtol=1e-6)
    before = policy.score(problem, episodes).log_prob.detach()
    np.testing.assert_allclose(before, episodes.log_prob, atol=1e-5)
    later = replace(episodes, actions={**episodes.actions, "when": when[:, ::-1].copy()})
    assert (policy.score(problem, later).log_prob.detach() - before).abs().max() > 1e-5
