"""The policy interface: sample episodes for a problem, and score episodes with gradients.

An episode is one run of a policy: the actions it drew and the plans that they stand for. The
trainer uses policies through this interface alone; a policy knows neither simulator nor trainer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from placewright.errors import ConfigError
from placewright.policies.tensor_files import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    import torch
    from numpy.typing import NDArray

    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Episodes:
    """What a policy sampled, as arrays that need no torch.

    Args:
        actions: The samples, by the policy's own names; `score` reads nothing else.
        placements: Plans × ops: the plans to judge; they keep the problem's constraints.
        episode_of: Plans: the episode of each; ascending, and within it in the order of steps.
        log_prob: Episodes × decisions: the log-probability of each sample.
        priority: Plans × ops: the policy's issue order of each plan, if it has one.
        fusion: Plans × ops: the fused group of each op, or -1, if the policy decides on it.
    """

    actions: Mapping[str, NDArray[Any]]
    placements: NDArray[np.int32]
    episode_of: NDArray[np.int64]
    log_prob: NDArray[np.float32]
    priority: NDArray[np.float64] | None = None
    fusion: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.log_prob)


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of the decisions of one head of a policy.

    Args:
        log_prob: Episodes × decisions.
        entropy: Episodes × decisions, in nats.
        max_entropy: Decisions: the entropy of a uniform choice; 0 where there is no choice.
        mask: Episodes × decisions: which of them were sampled at all; None for all. The others
            have no entropy and no log-probability.
    """

    name: str
    log_prob: torch.Tensor
    entropy: torch.Tensor
    max_entropy: torch.Tensor
    mask: torch.Tensor | None = None

    @cached_property
    def normalised_entropy(self) -> torch.Tensor:
        """Entropy as a share of a uniform choice's, over all decisions that have a choice."""
        return self.entropy.mean(dim=0).sum() / self.episode_max_entropy.clamp(min=1e-9)

    @cached_property
    def episode_max_entropy(self) -> torch.Tensor:
        """The entropy of uniform choices, summed over an episode's decisions, on average."""
        if self.mask is None:
            return self.max_entropy.sum()
        return (self.max_entropy * self.mask).sum() / max(len(self.mask), 1)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of episodes under the policy as it is now.

    Args:
        value: Episodes: the expected return less the trainer's baseline, if there is a value head.
        log_prob_of_best: Episodes × decisions: the log-probability of another episode's choice in
            the state of each decision of these episodes; without noise.
    """

    heads: tuple[HeadScores, ...]
    value: torch.Tensor | None = None
    log_prob_of_best: torch.Tensor | None = None

    @cached_property
    def log_prob(self) -> torch.Tensor:
        """Episodes × decisions, head after head, as in `Episodes.log_prob`."""
        import torch

        return torch.cat([head.log_prob for head in self.heads], dim=1)

    @property
    def mean_decisions(self) -> float:
        """Decisions sampled per episode, on average."""
        unmasked = [head.log_prob.shape[1] for head in self.heads if head.mask is None]
        masked = [float(head.mask.sum()) for head in self.heads if head.mask is not None]
        return sum(unmasked) + sum(masked) / max(len(self.log_prob), 1)


class Clock(Protocol):
    """Simulated op times, for policies that read them; `training.clock` has one."""

    def op_starts(self, problem: Problem, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Plans × ops: seconds at which each op starts."""
        ...

    def op_times(
        self, problem: Problem, placements: NDArray[np.int32], priority: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Plans × ops, twice: when an executor that takes any ready op starts and ends each op."""
        ...


class Policy(Protocol):
    """A learned way to make plans; all but the linear policy are torch modules.

    `PolicyDefaults` has the methods that few policies need.
    """

    @property
    def name(self) -> str:
        """Its name on the command line and in files."""
        ...

    @property
    def judges_steps(self) -> bool:
        """Whether the plan after every step of an episode is judged, and not the last one alone."""
        ...

    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        """Sample `count` episodes; the same seed gives the same ones.

        Args:
            noise: Noise on the logits, as a share of their own size; it is part of the actions, so
                that `score` sees the policy that acted.
            greedy: Take the likeliest action each time instead of a sample.
        """
        ...

    def act_all(
        self,
        problems: Sequence[Problem],
        count: int,
        seeds: Sequence[int],
        *,
        noise: float = 0.0,
        greedy: bool = False,
    ) -> list[Episodes]:
        """Sample `count` episodes of each problem; each is as `act` would sample it."""
        ...

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        """Score sampled actions under the policy as it is now, with gradients.

        Args:
            best: One episode; a policy whose decisions depend on those before may say in
                `log_prob_of_best` how likely it is to choose as this one did, in any state.
        """
        ...

    def select(self, episodes: Episodes, index: int) -> Episodes:
        """The episode at that index, alone and without noise, to be scored again later."""
        ...

    def take(self, episodes: Episodes, first: int, last: int) -> Episodes:
        """The episodes from one index up to another, with all that `score` reads."""
        ...

    def join_episodes(self, parts: Sequence[Episodes]) -> Episodes:
        """The episodes of several samples of one problem as one."""
        ...

    @property
    def tied_episodes(self) -> int:
        """How many episodes that follow each other are sampled as one; 1 where each is alone."""
        ...

    def initial_decisions(
        self, problem: Problem, count: int
    ) -> dict[str, NDArray[np.int64]] | None:
        """Where episodes start, if `act` takes that as `initial`."""
        ...

    def start_groups(self, episodes: Episodes) -> NDArray[np.int64] | None:
        """Episodes: a number for each initial state; None where all episodes start alike."""
        ...

    def use_clock(self, clock: Clock) -> None:
        """Read simulated op times from this clock, if the policy reads any."""
        ...

    def to_config(self) -> dict[str, Any]:
        """Plain JSON from which `policies.load` makes an equal policy, without its weights."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def state_dict(self) -> dict[str, torch.Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...


class PolicyDefaults:
    """Methods of `Policy` that few policies need: plans per step, initial states, a clock."""

    @property
    def judges_steps(self) -> bool:
        return False

    def act_all(
        self: Policy,
        problems: Sequence[Problem],
        count: int,
        seeds: Sequence[int],
        *,
        noise: float = 0.0,
        greedy: bool = False,
    ) -> list[Episodes]:
        return [
            self.act(problem, count, seed, noise=noise, greedy=greedy)
            for problem, seed in zip(problems, seeds, strict=True)
        ]

    def take(self, episodes: Episodes, first: int, last: int) -> Episodes:
        chosen = slice(first, last)
        actions = {name: values[chosen].copy() for name, values in episodes.actions.items()}
        return take_plans(episodes, first, last, actions)

    def join_episodes(self, parts: Sequence[Episodes]) -> Episodes:
        actions = {
            name: np.concatenate([part.actions[name] for part in parts])
            for name in parts[0].actions
        }
        return join_plans(parts, actions)

    @property
    def tied_episodes(self) -> int:
        return 1

    def initial_decisions(
        self, problem: Problem, count: int
    ) -> dict[str, NDArray[np.int64]] | None:
        return None

    def start_groups(self, episodes: Episodes) -> NDArray[np.int64] | None:
        return None

    def use_clock(self, clock: Clock) -> None:
        pass


MAX_SETTING = 2**20
"""The largest size, such as a number of groups, in a policy's file."""
MAX_LAYERS = 256
"""The most layers or rounds of messages in a policy's file."""
_LAYER_COUNTS = ("heads", "layers", "rounds")
_MAY_BE_ZERO = ("drawn", "layers", "neighbours", "outputs", "rounds")

_MISSING_OPTIONS = {
    "groups": "places every op by itself: it takes no groups",
    "hidden": "has no hidden states: leave the size out",
    "grouping": "learns its groups: it takes no grouping rule",
    "start_times": "knows no start times: leave out --start-times",
}


class PolicyConfig:
    """Settings of a policy; every configuration is a frozen dataclass with this base.

    `OPTIONS` names the field of each option that a user can set: `groups`, `hidden`, `grouping`,
    `start_times`.
    """

    OPTIONS: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The settings in a policy's file.

        A file is data from anywhere, and layers are made before weights are compared, so all
        settings are checked first.

        Raises:
            KeyError, TypeError, ValueError: A setting is missing, unknown or out of range.
        """
        settings = settings_of(data)
        for field in fields(cls):  # type: ignore[arg-type]
            if field.name in settings:
                _check_setting(field.name, settings[field.name], field.default)
                if isinstance(settings[field.name], list):
                    settings[field.name] = tuple(settings[field.name])
        return cls(**settings)

    def build(self, problem: Problem, seed: int = 0) -> Policy:
        """A fresh policy for a problem; the same seed gives the same weights."""
        raise NotImplementedError

    def with_option(self, option: str, value: Any) -> Self:
        """The same settings with another value of an option.

        Raises:
            ConfigError: The policy has no such option; the text goes on after a recipe's name.
        """
        if option not in self.OPTIONS:
            raise ConfigError(_MISSING_OPTIONS[option])
        return replace(self, **{self.OPTIONS[option]: value})  # type: ignore[type-var]

    def for_many_graphs(self) -> Self:
        """The same settings for a policy that is trained on several graphs.

        Raises:
            ConfigError: The policy is made for one graph; the text goes on after a recipe's name.
        """
        return self


def _check_setting(name: str, value: object, default: object) -> None:
    """Raise TypeError or ValueError unless a file's setting has the type and range of the field."""
    expected = type(default)
    if expected is float:
        if type(value) not in (int, float) or not math.isfinite(float(value)):  # type: ignore[arg-type]
            raise ValueError(f"{name} is {value!r}: expected a finite number")
    elif expected is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise TypeError(f"{name} is {value!r}: expected a list of texts")
        if len(value) > MAX_LAYERS:
            raise ValueError(f"{name} has {len(value)} items: expected at most {MAX_LAYERS}")
    elif type(value) is not expected:
        raise TypeError(f"{name} is {value!r}: expected a value of type {expected.__name__}")
    elif expected is int:
        least = 0 if default == 0 or name in _MAY_BE_ZERO else 1
        most = MAX_LAYERS if name in _LAYER_COUNTS else MAX_SETTING
        if not least <= value <= most:  # type: ignore[operator]
            raise ValueError(f"{name} is {value!r}: expected {least} to {most:,}")


def one_plan_per_episode(count: int) -> NDArray[np.int64]:
    """The episode of each plan, where each episode has one."""
    return np.arange(count, dtype=np.int64)


def last_plans(episodes: Episodes) -> NDArray[np.int64]:
    """The index of the last plan of each episode."""
    return np.flatnonzero(np.append(np.diff(episodes.episode_of) > 0, True))


def take_plans(
    episodes: Episodes, first: int, last: int, actions: Mapping[str, NDArray[Any]]
) -> Episodes:
    """Episodes from one index up to another, whose actions are these."""
    begin, end = np.searchsorted(episodes.episode_of, [first, last])
    return Episodes(
        actions,
        episodes.placements[begin:end].copy(),
        episodes.episode_of[begin:end] - first,
        episodes.log_prob[first:last].copy(),
        None if episodes.priority is None else episodes.priority[begin:end].copy(),
        None if episodes.fusion is None else episodes.fusion[begin:end].copy(),
    )


def join_plans(parts: Sequence[Episodes], actions: Mapping[str, NDArray[Any]]) -> Episodes:
    """The episodes of several samples as one, whose actions are these."""
    offsets = np.cumsum([0, *(len(part) for part in parts[:-1])])
    priorities = [part.priority for part in parts if part.priority is not None]
    fusions = [part.fusion for part in parts if part.fusion is not None]
    return Episodes(
        actions,
        np.concatenate([part.placements for part in parts]),
        np.concatenate([part.episode_of + at for part, at in zip(parts, offsets, strict=True)]),
        np.concatenate([part.log_prob for part in parts]),
        np.concatenate(priorities) if priorities else None,
        np.concatenate(fusions) if fusions else None,
    )
