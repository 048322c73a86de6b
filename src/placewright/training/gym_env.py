"""A Gymnasium environment: groups of a problem one after the other in, a reward at the end out.

Importing this module makes `placewright/Placement-v0` known to Gymnasium; so does naming it with
the module, `gymnasium.make("placewright.training.gym_env:placewright/Placement-v0", problem=problem)`.
An episode puts each group on a device in graph order; the last action's reward is that of the whole
plan, all others are 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np

from placewright.errors import MissingDependency
from placewright.policies.grouping import (
    edges,
    grouped,
    legal_devices,
)
from placewright.training.environment import Environment
from placewright.training.rewards import Graded

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

NAME = "placewright/Placement-v0"
_OWN = 4  # numbers that describe a group itself


class Game:
    """What one environment and many at once have in common: the problem and what is seen of it.

    An observation is, in numbers from 0 to 1: the group's share of all work, bytes and memory, and
    its place in the graph; for each device the share of the group's work that it could run, where
    its sources are, the work placed there so far, and the memory used there.
    """

    def __init__(self, problem: Problem | str, groups: int, rule: str, reward: Reward) -> None:
        self.problem = _problem(problem)
        self.environment, self.reward = Environment(self.problem), reward
        a, self.grouping = self.problem.arrays, grouped(self.problem, rule, groups)
        group, self.groups, self.devices = self.grouping.group, len(self.grouping), a.devices
        self.legal = legal_devices(self.problem, self.grouping)
        seconds = np.where(a.allowed & a.turn[:, None], a.compute, 0.0)
        self.work = np.zeros((self.groups, a.devices))
        np.add.at(self.work, group, seconds)
        held = np.bincount(group, weights=a.resident, minlength=self.groups)
        sent = np.bincount(group[a.producer], weights=a.sizes, minlength=self.groups)
        self.memory = held[:, None] / np.maximum(a.capacity, 1)
        least = np.where(self.legal, self.work, np.inf).min(axis=1)
        self.own = np.stack(
            [_share(least), _share(sent), _share(held), np.arange(self.groups) / self.groups],
            axis=1,
        )
        self.total = max(float(least.sum()), 1e-300)
        self.source, self.target = edges(self.problem, self.grouping)
        self.width = _OWN + 4 * self.devices

    def observe(self, rows: NDArray[np.int32], at: int) -> NDArray[np.float32]:
        """Environments × numbers, before group `at` of each row is placed."""
        count, here = len(rows), min(at, self.groups - 1)
        seen = np.zeros((count, self.width))
        seen[:, :_OWN] = self.own[here]
        near = np.zeros((count, self.devices))
        load = np.zeros((count, self.devices))
        used = np.zeros((count, self.devices))
        every = np.arange(count)
        sources = self.source[(self.target == here) & (self.source < at)]
        for source in sources:
            near[every, rows[:, source]] += 1 / len(sources)
        for done in range(at):
            load[every, rows[:, done]] += self.work[done, rows[:, done]] / self.total
            used[every, rows[:, done]] += self.memory[done, rows[:, done]]
        parts = [np.repeat(self.legal[here][None], count, 0), near, load, used]
        seen[:, _OWN:] = np.concatenate(parts, axis=1)
        return np.minimum(seen, 1.0).astype(np.float32)

    def mask(self, at: int) -> NDArray[np.int8]:
        """Which devices group `at` may be on."""
        return self.legal[min(at, self.groups - 1)].astype(np.int8)

    def judge(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Rewards of whole rows, and what there is to say of them."""
        device = self.problem.settle(self.grouping.expand(rows))
        judged = self.environment.judge(device, "agent")
        said = {"step_time": judged.seconds, "fits": judged.valid}
        return self.reward(judged, self.environment.reference), said

    def lawful(self, action: NDArray[np.integer], at: int) -> NDArray[np.int32]:
        """Actions with those that the mask forbids replaced by the first device it allows."""
        legal = self.legal[at]
        return np.where(legal[action], action, int(legal.argmax())).astype(np.int32)


class Placement(gymnasium.Env[Any, Any]):
    """One plan at a time; `info["action_mask"]` says which devices are allowed.

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
        self.game = Game(problem, groups, rule, reward or Graded())
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (self.game.width,), np.float32)
        self.action_space = spaces.Discrete(self.game.devices)
        self._row, self._at = np.zeros((1, self.game.groups), dtype=np.int32), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._row, self._at = np.zeros_like(self._row), 0
        return self.game.observe(self._row, 0)[0], {"action_mask": self.game.mask(0)}

    def step(
        self, action: Any
    ) -> tuple[NDArray[np.float32], SupportsFloat, bool, bool, dict[str, Any]]:
        game = self.game
        self._row[:, self._at] = game.lawful(np.array([action]), self._at)
        self._at += 1
        over = self._at == game.groups
        info: dict[str, Any] = {"action_mask": game.mask(self._at)}
        reward = 0.0
        if over:
            rewards, said = game.judge(self._row)
            reward = float(rewards[0])
            info |= {name: values[0] for name, values in said.items()}
        return game.observe(self._row, self._at)[0], reward, over, False, info


class Placements(VectorEnv[Any, Any, Any]):
    """Many plans side by side, judged as one batch: all episodes are equally long."""

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
        self.game, self.num_envs = Game(problem, groups, rule, reward or Graded()), num_envs
        self.render_mode = render_mode
        self.single_observation_space = spaces.Box(0.0, 1.0, (self.game.width,), np.float32)
        self.single_action_space = spaces.Discrete(self.game.devices)
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self._rows, self._at = np.zeros((num_envs, self.game.groups), dtype=np.int32), 0

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._rows, self._at = np.zeros_like(self._rows), 0
        return self._seen()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        game, count = self.game, self.num_envs
        no = np.zeros(count, dtype=bool)
        if self._at == game.groups:  # the step after an episode's end begins the next one
            observation, info = self.reset()
            return observation, np.zeros(count), no, no.copy(), info
        self._rows[:, self._at] = game.lawful(np.asarray(actions), self._at)
        self._at += 1
        observation, info = self._seen()
        if self._at < game.groups:
            return observation, np.zeros(count), no, no.copy(), info
        rewards, said = game.judge(self._rows)
        return observation, rewards, ~no, no, info | said

    def _seen(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        mask = np.repeat(self.game.mask(self._at)[None], self.num_envs, axis=0)
        return self.game.observe(self._rows, self._at), {"action_mask": mask}


def register() -> None:
    """Make `placewright/Placement-v0` known to Gymnasium."""
    if NAME not in gymnasium.registry:
        here = Placement.__module__
        gymnasium.register(
            NAME, entry_point=f"{here}:Placement", vector_entry_point=f"{here}:Placements"
        )


def _share(values: NDArray[Any]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = values / max(float(values.max(initial=0.0)), 1e-300)
    return shares


def _problem(problem: Problem | str) -> Problem:
    if not isinstance(problem, str):
        return problem
    from placewright import zoo
    from placewright.cluster import Cluster
    from placewright.errors import ConfigError
    from placewright.problem import Problem as Made

    network, on, cluster = problem.partition(" on ")
    if not on:
        raise ConfigError(f"problem {problem!r}: expected such as 'branches on 2xP100+cpu'")
    return Made(zoo.load(network.strip()), Cluster.parse(cluster.strip()))


register()
