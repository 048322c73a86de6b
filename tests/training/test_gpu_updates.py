"""Updates that stay on a GPU, which the host stands in for, against those of the CPU."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from placewright import Cluster, Problem, judge, zoo
from placewright.errors import ConfigError, FileError
from placewright.outcome import Outcome

torch = pytest.importorskip("torch")

from placewright.policies import Episodes  # noqa: E402
from placewright.policies.policy import one_plan_per_episode  # noqa: E402
from placewright.simulator.gpu_lanes import GpuLanes  # noqa: E402
from placewright.training import (  # noqa: E402
    BatchNormalised,
    Constant,
    Environment,
    Linear,
    Recipe,
    Trainer,
    find_recipe,
)
from placewright.training.baselines import TopShare  # noqa: E402
from placewright.training.batched_reinforce import BatchedReinforce  # noqa: E402
from placewright.training.control_algorithms import NoUpdate  # noqa: E402
from placewright.training.environment import best_plan, simulate_plans  # noqa: E402
from placewright.training.gpu_candidates import Candidates  # noqa: E402
from placewright.training.gpu_objectives import (  # noqa: E402
    LaneOutcome,
    advantages,
    graded_rewards,
)
from placewright.training.gpu_updates import GpuUpdateConfig  # noqa: E402
from placewright.training.rewards import FixedPenalty, GradedPenalty  # noqa: E402
from placewright.training.run import TrainingRun  # noqa: E402

BATCH = 24
TOP = partial(TopShare, 0.25)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(zoo.load("layered:ops=60,weights=true"), Cluster.parse("3xP100"))


def rewards_alone(baseline=TOP) -> Recipe:
    return replace(
        find_recipe("colocrl", groups=10, hidden=16),
        algorithm=BatchedReinforce(),
        baseline=baseline,
        episodes=BATCH,
        learning_rate=Linear(1e-2, 1e-3),
        logit_noise=Constant(0.0),
        self_imitation=Constant(0.0),
        entropy_bonus=Linear(0.03, 0.0),
    )


def make_trainer(problem: Problem, recipe: Recipe, plans: int = 480, updates: int = 4) -> Trainer:
    config = GpuUpdateConfig(updates=updates)
    return Trainer([Environment(problem)], recipe, 1, plans, device="cpu", gpu_updates=config)


@pytest.mark.parametrize("baseline", [BatchNormalised, TOP])
def test_an_update_is_that_of_the_cpu_on_the_same_plans(problem, baseline):
    recipe = rewards_alone(baseline)
    trainer = make_trainer(problem, recipe)
    policy, updates = trainer.policy, trainer.gpu_updates
    reference = deepcopy(policy)
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-2)
    for update in range(3):
        updates.sample(update)
        devices = updates.batch.places.T.numpy().astype(np.int32)
        grouping = reference.grouping(problem)
        placements = problem.legalize(grouping.expand(devices))
        log_prob = updates._rollout.log_prob.T.numpy()
        episodes = Episodes({"device": devices}, placements, one_plan_per_episode(BATCH), log_prob)
        outcome = simulate_plans(problem, placements)
        returns = recipe.reward(outcome, trainer.environments[0].reference_seconds)[:, None]
        advantage = baseline().advantage(returns, np.ones(BATCH, dtype=bool), "")
        figures = BatchedReinforce().update(
            reference, problem, episodes, advantage, optimizer, recipe.regularization(0.0, None)
        )
        updates.judge()
        updates.learn(0.0)
        for (name, one), other in zip(
            policy.named_parameters(), reference.parameters(), strict=True
        ):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-3, atol=2e-5, msg=name)
            torch.testing.assert_close(one, other, rtol=0, atol=2e-4, msg=name)
        found = updates._gradient_figures
        expected = [figures[name] for name in ("gradient", "gradient/other", "gradient/cosine")]
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(updates._figures[0, 4], figures["entropy/devices"], rtol=1e-4)
        # Both go on from the same weights: Adam's first steps are as large for tiny gradients.
        reference.load_state_dict(policy.state_dict())


def test_rewards_and_advantages_are_those_of_numpy(problem):
    rng = np.random.default_rng(0)
    a = problem.arrays
    placements = problem.legalize(rng.integers(a.devices, size=(101, a.ops)))
    peak = judge(problem, placements).peak.max(axis=1)
    for limit in (peak.max(), np.quantile(peak, 0.5)):
        tight = problem.with_arrays(capacity=np.full(a.devices, int(limit)))
        places = torch.from_numpy(placements.T.astype(np.uint8).copy())
        verdict = GpuLanes(tight, device="cpu").evaluate(places)
        outcome = LaneOutcome.of(verdict)
        share = outcome.overflow_share.numpy()
        plain = Outcome(outcome.seconds.numpy(), outcome.overflow.numpy(), share)
        reward = GradedPenalty(overflow_step=0.5)
        found = graded_rewards(reward, outcome, 2.0)
        np.testing.assert_allclose(found, reward(plain, 2.0), rtol=1e-12)
        for baseline in (BatchNormalised(), TopShare(0.05), TopShare(0.3)):
            expected = baseline.advantage(found[:, None].numpy(), np.ones(101, dtype=bool), "")
            np.testing.assert_allclose(advantages(baseline, found), expected[:, 0], atol=1e-9)
        exact = simulate_plans(tight, placements)
        certain = ~outcome.is_open.numpy()
        unfit = outcome.is_unfit.numpy()
        np.testing.assert_array_equal(unfit[certain], (exact.overflow > 0)[certain])
        assert (outcome.overflow.numpy() <= exact.overflow).all()
    assert unfit.any()
    assert not certain.all()


def test_candidates_are_the_best_distinct_plans_of_each_kind():
    """Plans 0 and 2 are alike; plan 3 is open, plans 4 and 5 do not fit."""
    places = torch.tensor([[0, 1, 0, 2, 1, 2], [0, 0, 0, 1, 1, 2]], dtype=torch.uint8)
    seconds = torch.tensor([3.0, 2.0, 3.0, 1.0, 0.5, 0.1]).double()
    overflow = torch.tensor([0.0, 0.0, 0.0, 5.0, 7.0, 6.0]).double()
    fits = torch.tensor([True, True, True, False, False, False])
    unfit = torch.tensor([False, False, False, False, True, True])
    outcome = LaneOutcome(seconds, overflow, overflow, fits, unfit)
    candidates = Candidates(2, 2, torch.device("cpu"))
    candidates.add(places, outcome, 6)
    some = (each[:2] for each in (seconds, overflow, overflow, fits, unfit))
    candidates.add(places[:, :2], LaneOutcome(*some), 8)
    found = candidates.take()
    plans = sorted(tuple(row) for row in found.places.tolist())
    assert plans == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
    assert set(found.found_at.tolist()) == {6}
    assert sorted(found.seconds[np.isfinite(found.seconds)].tolist()) == [1.0, 2.0, 3.0]
    assert len(candidates.take().seconds) == 0


def test_a_run_reports_exact_plans_and_counts_all(problem):
    trainer = make_trainer(problem, rewards_alone())
    trainer.run()
    environment = trainer.environments[0]
    # 19 updates of 24 plans are 456; a 20th and an argmax plan would be 481
    assert trainer.updates == 19
    assert 456 < environment.evaluations <= 480
    verdict = judge(problem, environment.best_placement)
    assert environment.best_key == (int(verdict.overflow[0]), float(verdict.value[0]))
    counts = [count for count, _, _ in environment.history]
    assert counts == sorted(counts)
    assert [row.update for row in trainer.log] == list(range(1, 20))
    assert [row.plans for row in trainer.log[:2]] == [25, 50]  # each with an argmax plan
    last = trainer.log[-1]
    assert last.best == environment.best_key[1]
    assert last.greedy >= last.best
    assert last.mean < trainer.log[0].mean
    assert last.entropy < trainer.log[0].entropy
    assert trainer.log[0].gradient > 0
    assert trainer.gpu_updates.max_lane_error < 1e-5


def test_the_best_plan_is_the_best_of_all_samples(problem):
    trainer = make_trainer(problem, replace(rewards_alone(), algorithm=NoUpdate()), 200)
    plans = []
    updates = trainer.gpu_updates
    judge_plans = updates.judge

    def record(row: int = 0) -> None:
        plans.append(updates.batch.places.T.numpy().astype(np.int32))
        judge_plans(row)

    updates.judge = record
    trainer.run()
    grouping = trainer.policy.grouping(problem)
    outcome = simulate_plans(problem, problem.legalize(grouping.expand(np.concatenate(plans))))
    environment = trainer.environments[0]
    assert environment.best_key[1] <= outcome.seconds[best_plan(outcome)]
    assert len({row.entropy for row in trainer.log}) > 1  # new samples each time
    assert {row.gradient for row in trainer.log} == {0.0}


def test_plans_whose_fit_is_open_are_judged_exactly_and_those_that_fit_are_not_punished(problem):
    """The capacity is the largest exact peak: all plans fit, and some bounds are above it."""
    grouping = make_trainer(problem, rewards_alone()).gpu_updates.grouping
    lanes = GpuLanes(problem, grouping.group, device="cpu")
    places = lanes.draw(BATCH, torch.Generator().manual_seed(4))
    exact = judge(problem, problem.legalize(grouping.expand(places.T.numpy().astype(np.int32))))
    limit = int(exact.peak.max())
    assert int(lanes.evaluate(places).high.max()) > limit
    tight = problem.with_arrays(capacity=np.full(problem.arrays.devices, limit))
    updates = make_trainer(tight, rewards_alone()).gpu_updates
    updates.sample(0)
    updates.batch.places.copy_(places)
    updates.judge()
    is_open = updates._outcome.is_open
    assert bool(is_open.any())
    assert not updates._outcome.overflow.any()
    assert updates._judge_open_plans() == 0.0
    assert updates.open_plans == min(16, int(is_open.sum()))


def test_a_run_that_goes_on_ends_as_one_that_was_never_stopped(problem, tmp_path):
    whole = make_trainer(problem, rewards_alone())
    whole.run()
    first = make_trainer(problem, rewards_alone())
    first.run(lambda trainer: trainer.updates < 8)
    assert not first.finished
    TrainingRun(first, tmp_path, {}).save()
    second = make_trainer(problem, rewards_alone())
    run = TrainingRun(second, tmp_path, {})
    run.resume()
    assert run.train()
    for one, other in zip(whole.policy.parameters(), second.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert [row.mean for row in whole.log] == [row.mean for row in second.log]
    assert whole.environments[0].best_key == second.environments[0].best_key
    counts = [[count for count, _, _ in each.environments[0].history] for each in (whole, second)]
    assert counts[0] == counts[1]
    assert whole.evaluations == second.evaluations
    other = make_trainer(problem, rewards_alone(), updates=8)
    with pytest.raises(FileError, match="of another run: gpu_updates"):
        TrainingRun(other, tmp_path, {}).resume()


def test_an_update_that_is_not_finite_changes_nothing(problem):
    trainer = make_trainer(problem, rewards_alone())
    trainer.update()
    before = [parameter.detach().clone() for parameter in trainer.policy.parameters()]
    updates = trainer.gpu_updates
    updates.sample(1)
    updates.judge()
    updates._advantage[3] = torch.nan
    updates.learn(0.0)
    for one, other in zip(before, trainer.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not torch.isfinite(updates._gradient_figures[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logit_noise": Constant(1.0)}, "there is noise on the logits"),
        ({"self_imitation": Constant(1.0)}, "there is self-imitation"),
        ({"reward": FixedPenalty()}, "know the reward GradedPenalty, not FixedPenalty"),
        ({"drop_infeasible_after": 0.5}, "plans that do not fit are left out"),
    ],
)
def test_recipes_that_are_not_known_are_refused(problem, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_trainer(problem, replace(rewards_alone(), **settings))


def test_a_config_is_checked():
    with pytest.raises(ConfigError, match="no precision is named 'half': expected float32 or tf32"):
        GpuUpdateConfig(precision="half")
    with pytest.raises(ConfigError, match="expected 1 or more"):
        GpuUpdateConfig(updates=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_graphs_do_what_calls_do(problem):
    trainers = []
    for captures in (True, False):
        config = GpuUpdateConfig(updates=4, captures=captures)
        trainer = Trainer(
            [Environment(problem)], rewards_alone(), 1, 480, device="cuda", gpu_updates=config
        )
        trainer.run()
        trainers.append(trainer)
    assert trainers[0].gpu_updates.notes == []
    assert trainers[0].environments[0].best_key == trainers[1].environments[0].best_key
    means = [[row.mean for row in trainer.log] for trainer in trainers]
    np.testing.assert_allclose(means[0], means[1], rtol=1e-6)
