"""Placeto on several problems at once, from a share of its decisions, and told start times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo
from placewright.errors import ConfigError

torch = pytest.importorskip("torch")
from placewright.policies.placeto import policy as placeto  # noqa: E402
from placewright.training import Environment, Trainer, find_recipe  # noqa: E402
from placewright.training.start_plans import start_times  # noqa: E402


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
    with pytest.raises(ConfigError, match="wants to know when groups start"):
        policy.act(problem, 1, seed=0)
    policy.starts = start_times
    episodes = policy.act(problem, 2, seed=0)
    when, drawn = episodes.actions["when"], episodes.actions["device"]
    grouping = policy.grouping(problem)
    steps = len(grouping)
    assert when.shape == (2, steps, steps)
    a = problem.arrays
    for step in (0, steps - 1):
        row = np.where(np.arange(steps) < step, drawn[1], episodes.actions["start"][1])
        seconds = start_times(problem, problem.legalize(grouping.expand(row[None])))[0]
        first = [seconds[own[a.scheduled[own]]].min(initial=np.inf) for own in grouping.members()]
        least = np.where(np.isfinite(first), first, 0.0)
        np.testing.assert_allclose(when[1, step], least / least.max(), rtol=1e-6)
    before = policy.score(problem, episodes).log_prob.detach()
    np.testing.assert_allclose(before, episodes.log_prob, atol=1e-5)
    later = replace(episodes, actions={**episodes.actions, "when": when[:, ::-1].copy()})
    assert (policy.score(problem, later).log_prob.detach() - before).abs().max() > 1e-5


def test_equal_placements_start_alike_and_others_do_not(several):
    problem = several[1]
    rows = np.zeros((3, len(problem.graph)), dtype=np.int32)
    rows[1, len(problem.graph) // 2 :] = 1
    found = start_times(problem, problem.legalize(rows))
    assert found.shape == rows.shape
    assert (found[0] == found[2]).all()
    assert (found[0] != found[1]).any()


def test_a_trainer_counts_the_plans_that_it_simulates_inside_episodes(several):
    made = find_recipe("placeto", groups=4, hidden=4)
    told = replace(made, policy_config=replace(made.policy_config, times=True), episodes=2)
    trainer = Trainer([Environment(several[1])], told, seed=0, max_evaluations=1000, device="cpu")
    trainer.update()
    groups = len(trainer.policy.grouping(several[1]))
    # Two episodes and the likeliest plan, each simulated before every step and judged in the end.
    assert trainer.evaluations == 3 * groups + 3


def test_an_update_on_several_graphs_has_the_mean_of_their_gradients(several):
    from placewright.training.algorithms import Regularization, Reinforce
    from placewright.training.multi_graph import (
        MultiGraphEpisodes,
        MultiGraphPolicy,
        act_all,
    )

    policy = sized().build(several[0])
    drawn = act_all(policy, several, 2, [1, 2, 3])
    luck = [np.random.default_rng(at).normal(size=(2, 1)) for at in range(3)]

    def slopes(policy_, episodes, advantage):
        still = torch.optim.SGD(policy.parameters(), lr=0.0)
        pressure = Regularization(max_grad_norm=0.0)
        Reinforce().update(policy_, several[0], episodes, advantage, still, pressure)
        return [each.grad.clone() for each in policy.parameters()]

    joined = slopes(
        MultiGraphPolicy(policy, several), MultiGraphEpisodes.of(drawn), np.concatenate(luck)
    )
    apart = []
    for problem, episodes, advantage in zip(several, drawn, luck, strict=True):
        apart.append(
            slopes(
                MultiGraphPolicy(policy, [problem]), MultiGraphEpisodes.of([episodes]), advantage
            )
        )
    for mine, *others in zip(joined, *apart, strict=True):
        torch.testing.assert_close(mine, sum(others) / 3, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("name", ["placeto", "pair"])
def test_several_graphs_an_update_take_turns_and_have_a_row_each(several, name):
    made = replace(find_recipe(name, groups=6), episodes=3, problems=2)
    trainer = Trainer(
        [Environment(each) for each in several], made, seed=0, max_evaluations=80, device="cpu"
    )
    trainer.update()
    assert [each.evaluations > 0 for each in trainer.environments] == [True, True, False]
    trainer.update()
    assert [row.update for row in trainer.log] == [1, 1, 2, 2]
    assert trainer.environments[2].evaluations > 0
    assert trainer.log[2].best == trainer.environments[2].best_key[1]
    trainer.run()
    assert trainer.finished
    assert trainer.evaluations <= 80


def test_the_mean_of_the_last_weights_is_what_a_policy_settles_on(several):
    from placewright.training.averaging import WeightAverage

    made = replace(find_recipe("placeto", groups=4, hidden=4), episodes=3)
    trainer = Trainer([Environment(several[0])], made, seed=0, max_evaluations=40, device="cpu")
    averaged, seen = WeightAverage(0.5), []

    def watch(trainer):
        if trainer.evaluations > 20:
            seen.append(next(trainer.policy.parameters()).detach().clone())
        return averaged(trainer)

    trainer.run(watch)
    averaged.apply_to(trainer)
    assert averaged.count == len(seen) > 2
    mean = sum(seen) / len(seen)
    torch.testing.assert_close(next(trainer.policy.parameters()).detach(), mean)
    fresh = WeightAverage()
    fresh.apply_to(trainer)  # nothing was seen: nothing changes
    torch.testing.assert_close(next(trainer.policy.parameters()).detach(), mean)
