"""The Gymnasium environment: it keeps Gymnasium's contract and judges as the simulator does."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Constraints, Problem, judge, zoo
from placewright.errors import ConfigError

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402

from placewright.training import gym_env  # noqa: E402


@pytest.fixture(scope="module")
def problem() -> Problem:
    graph = zoo.load("branches:modules=2")
    forbid = {graph.ops[-1].name: ("cpu", "gpu1")}
    return Problem(graph, Cluster.parse("2xP100+cpu"), constraints=Constraints(forbid=forbid))


def test_it_passes_gymnasiums_own_check(problem):
    environment = gymnasium.make(gym_env.ENV_ID, problem=problem, groups=8)
    check_env(environment.unwrapped, skip_render_check=True)


def test_an_episode_is_worth_what_its_plan_is(problem):
    environment = gymnasium.make(gym_env.ENV_ID, problem=problem, groups=8).unwrapped
    rng = np.random.default_rng(0)
    _, info = environment.reset(seed=0)
    over, taken = False, []
    while not over:
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        taken.append(action)
        observation, reward, over, _, info = environment.step(action)
        assert observation in environment.observation_space
        assert over or reward == 0.0
    game = environment.mdp
    assert len(taken) == game.groups
    device = problem.legalize(game.grouping.expand(np.array(taken, dtype=np.int32)))
    seconds = judge(problem, device).value[0]
    assert info["step_time"] == seconds
    assert reward == pytest.approx(-np.sqrt(seconds / game.environment.reference_seconds))
    assert game.environment.evaluations == 1


def test_masks_say_where_a_group_may_be(problem):
    environment = gymnasium.make(
        gym_env.ENV_ID, problem=problem, groups=400, rule="coarse"
    ).unwrapped
    _, info = environment.reset()
    masks = [info["action_mask"]]
    for _ in range(environment.mdp.groups - 1):
        masks.append(environment.step(0)[4]["action_mask"])
    assert np.array_equal(masks, environment.mdp.legal)
    assert (np.sum(masks, axis=1) == 1).any()  # the op that only gpu0 may have


def test_many_at_once_do_what_one_does_and_are_judged_together(problem):
    many = gymnasium.make_vec(gym_env.ENV_ID, num_envs=3, problem=problem, groups=8)
    ones = [gymnasium.make(gym_env.ENV_ID, problem=problem, groups=8).unwrapped for _ in range(3)]
    assert isinstance(many.unwrapped, gym_env.PlacementVectorEnv)
    observation, info = many.reset(seed=0)
    for at, one in enumerate(ones):
        assert (one.reset(seed=0)[0] == observation[at]).all()
    rng = np.random.default_rng(1)
    for _ in range(many.unwrapped.mdp.groups):
        action = rng.integers(0, 3, size=3)
        observation, reward, over, cut, info = many.step(action)
        for at, one in enumerate(ones):
            alone = one.step(action[at])
            assert (alone[0] == observation[at]).all()
            assert alone[1:4] == (reward[at], over[at], cut[at])
            assert (alone[4]["action_mask"] == info["action_mask"][at]).all()
    assert over.all()
    assert many.unwrapped.mdp.environment.evaluations == 3
    assert not many.step(np.zeros(3, dtype=int))[2].any()  # begins the next episode
    stacked = gymnasium.make_vec(
        gym_env.ENV_ID, num_envs=2, vectorization_mode="sync", problem=problem, groups=8
    )
    assert stacked.reset()[0].shape == (2, many.unwrapped.mdp.observation_size)


def test_a_problem_can_be_named():
    environment = gymnasium.make(
        f"placewright.training.gym_env:{gym_env.ENV_ID}", problem="chain on 2xP100"
    ).unwrapped
    assert environment.mdp.problem.cluster.name == "2xP100"
    with pytest.raises(ConfigError, match="expected such as"):
        gymnasium.make(gym_env.ENV_ID, problem="chain")
