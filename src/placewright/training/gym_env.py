"""A Gymnasium environment that places the groups of a problem one after the other.

Importing this module registers `placewright/Placement-v0` with Gymnasium; so does naming the module
in `gymnasium.make("placewright.training.gym_env:placewright/Placement-v0", problem=problem)`. An
episode puts each group on a device in graph order; the last action's reward is that of the whole
plan, all others are 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np

from placewright.errors import MissingDependency
from placewright.policies.grouping import (
    group_edges,
    group_ops,
    legal_devices,
)
from placewright.training.environment import Environment
from placewright.training.rewards import GradedPenalty

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
except ImportError:
    raise MissingDependency("gymnasium", "gym") from None

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.training.rewards import Reward

ENV_ID = "placewright/Placement-v0"
_GROUP_FEATURES = 4  # features of the group itself


class PlacementMDP:
    """The problem and its observations, shared by the single and the vector environment.

    An observation has numbers from 0 to 1: the group's share of all work, bytes and memory, and its
    position in the graph; for each device whether it is legal, the share of the group's sources
    there, the work placed there so far, and the memory used there.
    """

    def __init__(self, problem: Problem | str, groups: int, rule: str, reward: Reward) -> None:
        self.problem = _parse_problem(problem)
        self.environment, self.reward = Environment(self.problem), reward
        a, self.grouping = self.problem.arrays, group_ops(self.problem, rule, groups)
        group, self.groups, self.devices = self.grouping.group, len(self.grouping), a.devices
        self.legal = legal_devices(self.problem, self.grouping)
        seconds = np.where(a.allowed & a.scheduled[:, None], a.compute, 0.0)
        self.work = np.zeros((self.groups, a.devices))
        np.add.at(self.work, group, seconds)
        resident_bytes = np.bincount(group, weights=a.resident, minlength=self.groups)
        bytes_sent = np.bincount(group[a.producer], weights=a.sizes, minlength=self.groups)
        self.memory = resident_bytes[:, None] / np.maximum(a.capacity, 1)
        fastest = np.where(self.legal, self.work, np.inf).min(axis=1)
        self.group_features = np.stack(
            [
                _relative_size(fastest),
                _relative_size(bytes_sent),
                _relative_size(resident_bytes),
                np.arange(self.groups) / self.groups,
            ],
            axis=1,
        )
        self.total_work = max(float(fastest.sum()), 1e-300)
        self.source, self.target = group_edges(self.problem, self.grouping)
        self.observation_size = _GROUP_FEATURES + 4 * self.devices

    def observe(self, devices: NDArray[np.int32], next_group: int) -> NDArray[np.float32]:
        """Environments × features, before group `next_group` of each row is placed."""
        count, group = len(devices), min(next_group, self.groups - 1)
        observation = np.zeros((count, self.observation_size))
        observation[:, :_GROUP_FEATURES] = self.group_features[group]
        source_share = np.zeros((count, self.devices))
        placed_work = np.zeros((count, self.devices))
        used_memory = np.zeros((count, self.devices))
        env_index = np.arange(count)
        sources = self.source[(self.target == group) & (self.source < next_group)]
        for source in sources:
            source_share[env_index, devices[:, source]] += 1 / len(sources)
        for placed_group in range(next_group):
            placed_work[env_index, devices[:, placed_group]] += (
                self.work[placed_group, devices[:, placed_group]] / self.total_work
            )
            used_memory[env_index, devices[:, placed_group]] += self.memory[
                placed_group, devices[:, placed_group]
            ]
        device_features = [
            np.repeat(self.legal[group][None], count, 0),
            source_share,
            placed_work,
            used_memory,
        ]
        observation[:, _GROUP_FEATURES:] = np.concatenate(device_features, axis=1)
        return np.minimum(observation, 1.0).astype(np.float32)

    def mask(self, next_group: int) -> NDArray[np.int8]:
        """Which devices are legal for group `next_group`."""
        return self.legal[min(next_group, self.groups - 1)].astype(np.int8)

    def judge(self, devices: NDArray[np.int32]) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Rewards of whole rows, and their step times."""
        placements = self.problem.legalize(self.grouping.expand(devices))
        outcome = self.environment.judge(placements, "agent")
        info = {"step_time": outcome.seconds, "fits": outcome.feasible}
        return self.reward(outcome, self.environment.reference_seconds), info

    def legal_actions(self, action: NDArray[np.integer], next_group: int) -> NDArray[np.int32]:
        """Actions, with illegal ones replaced by the first legal device."""
        legal = self.legal[next_group]
        return np.where(legal[action], action, int(legal.argmax())).astype(np.int32)


class PlacementEnv(gymnasium.Env[Any, Any]):
    """One plan at a time; `info["action_mask"]` says which devices are legal.

    Args:
        problem: A problem, or the text `NETWORK on CLUSTER`, such as `branches on 2xP100+cpu`.
        groups, rule: How ops are grouped.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (as gymnasium has it)

    def __init__(
        self,
        problem: Problem | str = "branches on 2xP100+cpu",
        groups: int = 64,
        rule: str = "colocation",
        reward: Reward | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.mdp = PlacementMDP(problem, groups, rule, reward or GradedPenalty())
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (self.mdp.observation_size,), np.float32)
        self.action_space = spaces.Discrete(self.mdp.devices)
        self._devices, self._next_group = np.zeros((1, self.mdp.groups), dtype=np.int32), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._devices, self._next_group = np.zeros_like(self._devices), 0
        return self.mdp.observe(self._devices, 0)[0], {"action_mask": self.mdp.mask(0)}

    def step(
        self, action: Any
    ) -> tuple[NDArray[np.float32], SupportsFloat, bool, bool, dict[str, Any]]:
        mdp = self.mdp
        self._devices[:, self._next_group] = mdp.legal_actions(np.array([action]), self._next_group)
        self._next_group += 1
        terminated = self._next_group == mdp.groups
        info: dict[str, Any] = {"action_mask": mdp.mask(self._next_group)}
        reward = 0.0
        if terminated:
            rewards, episode_info = mdp.judge(self._devices)
            reward = float(rewards[0])
            info |= {name: values[0] for name, values in episode_info.items()}
        return mdp.observe(self._devices, self._next_group)[0], reward, terminated, False, info


class PlacementVectorEnv(VectorEnv[Any, Any, Any]):
    """Many plans in parallel, judged as one batch: all episodes are equally long."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        problem: Problem | str = "branches on 2xP100+cpu",
        groups: int = 64,
        rule: str = "colocation",
        reward: Reward | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.mdp, self.num_envs = (
            PlacementMDP(problem, groups, rule, reward or GradedPenalty()),
            num_envs,
        )
        self.render_mode = render_mode
        self.single_observation_space = spaces.Box(
            0.0, 1.0, (self.mdp.observation_size,), np.float32
        )
        self.single_action_space = spaces.Discrete(self.mdp.devices)
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self._devices, self._next_group = np.zeros((num_envs, self.mdp.groups), dtype=np.int32), 0

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._devices, self._next_group = np.zeros_like(self._devices), 0
        return self._observe()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        mdp, count = self.mdp, self.num_envs
        not_done = np.zeros(count, dtype=bool)
        if self._next_group == mdp.groups:  # the step after an episode's end starts the next one
            observation, info = self.reset()
            return observation, np.zeros(count), not_done, not_done.copy(), info
        self._devices[:, self._next_group] = mdp.legal_actions(
            np.asarray(actions), self._next_group
        )
        self._next_group += 1
        observation, info = self._observe()
        if self._next_group < mdp.groups:
            return observation, np.zeros(count), not_done, not_done.copy(), info
        rewards, episode_info = mdp.judge(self._devices)
        return observation, rewards, ~not_done, not_done, info | episode_info

    def _observe(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        mask = np.repeat(self.mdp.mask(self._next_group)[None], self.num_envs, axis=0)
        return self.mdp.observe(self._devices, self._next_group), {"action_mask": mask}


def register_env() -> None:
    """Register `placewright/Placement-v0` with Gymnasium."""
    if ENV_ID not in gymnasium.registry:
        module = PlacementEnv.__module__
        gymnasium.register(
            ENV_ID,
            entry_point=f"{module}:PlacementEnv",
            vector_entry_point=f"{module}:PlacementVectorEnv",
        )


def _relative_size(values: NDArray[Any]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = values / max(float(values.max(initial=0.0)), 1e-300)
    return shares


def _parse_problem(problem: Problem | str) -> Problem:
    if not isinstance(problem, str):
        return problem
    from placewright import zoo
    from placewright.cluster import Cluster
    from placewright.errors import ConfigError
    from placewright.problem import Problem as ProblemClass

    network, separator, cluster = problem.partition(" on ")
    if not separator:
        raise ConfigError(f"problem {problem!r}: expected such as 'branches on 2xP100+cpu'")
    return ProblemClass(zoo.load(network.strip()), Cluster.parse(cluster.strip()))


register_env()
