"""Linear policy: places group after group by a weighted sum of list-schedule estimates.

A constructive policy over (group, device) pairs. The features of a pair are a list scheduler's
estimates: when the group could start and end there, its transfers, and the load and memory with it.
It has a dozen weights, so it learns from few plans; none depends on the number of devices or
groups, so one policy works for all clusters. Placing needs no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from placewright.errors import ConfigError, FileError
from placewright.files import validation
from placewright.files.header import body, make_header
from placewright.files.storage import read_data, write_data
from placewright.policies import grouping as op_groups
from placewright.policies.policy import (
    Episodes,
    HeadScores,
    PolicyConfig,
    PolicyDefaults,
    Scores,
    one_plan_per_episode,
)
from placewright.policies.transfer.features import FEATURES, PairFeatures
from placewright.policies.transfer.rollout import Rollout, roll_out
from placewright.scheduling.batched_schedules import ScheduleOrder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.transforms import Grouping

NAME = "pair"


@dataclass(frozen=True)
class LinearConfig(PolicyConfig):
    """Settings of the linear policy.

    Args:
        grouping: How ops are grouped (`grouping.GROUPINGS`); `op` is one group per unit.
        max_groups: Groups are merged until there are no more than this.
    """

    grouping: str = "op"
    max_groups: int = 2000
    OPTIONS: ClassVar = {"groups": "max_groups", "grouping": "grouping"}

    def build(self, problem: Problem, seed: int = 0) -> LinearPolicy:
        """A fresh policy: small random weights; the same seed gives the same ones."""
        rng = np.random.default_rng(seed)
        return LinearPolicy(self, rng.normal(scale=0.01, size=len(FEATURES)))


class LinearPolicy(PolicyDefaults):
    """Places groups by falling rank, each by a softmax over devices of weighted estimates."""

    name = NAME

    def __init__(self, config: LinearConfig, weights: NDArray[np.float64] | None = None) -> None:
        self.config = config
        self.weights = np.zeros(len(FEATURES)) if weights is None else np.array(weights, float)
        self._features_cache: WeakKeyDictionary[Problem, PairFeatures] = WeakKeyDictionary()
        self._parameter: torch.nn.Parameter | None = None

    def to_config(self) -> dict[str, Any]:
        return {"settings": asdict(self.config), "features": list(FEATURES)}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> LinearPolicy:
        if tuple(data["features"]) != FEATURES:
            raise ValueError(f"it knows features {', '.join(data['features'])}")
        return cls(LinearConfig.from_data(data))

    def save(
        self, path: Path, made_by: str = "", training: Mapping[str, Any] | None = None
    ) -> None:
        """Write it to one JSON file, its weights by name, which needs no torch.

        Args:
            made_by: The command that trained it, for readers of the file.
            training: The seed, commit and data that it was trained with, for the same readers.

        Raises:
            FileError: It cannot be written there.
        """
        weights = {name: float(weight) for name, weight in zip(FEATURES, self.weights, strict=True)}
        config = {"settings": asdict(self.config), "weights": weights}
        notes: dict[str, Any] = {"made_by": made_by} if made_by else {}
        notes |= {"training": dict(training)} if training else {}
        write_data({**make_header("policy"), "policy": NAME, "config": config, **notes}, path)

    @classmethod
    def load(cls, path: Path) -> LinearPolicy:
        """The policy that `save` wrote.

        Raises:
            FileError: The file is missing, damaged, or another release's.
        """
        data = body(read_data(path), "policy")
        try:
            weights = data["config"]["weights"]
            return cls(
                LinearConfig.from_data(data["config"]),
                np.array([validation.number(weights[name], name) for name in FEATURES]),
            )
        except (ArithmeticError, KeyError, TypeError, ValueError, ConfigError) as error:
            raise FileError(f"{path}: is no pair policy of this release: {error!r}") from None

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self._features_of(problem).order.grouping

    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        rng = np.random.default_rng(seed)
        gumbel = self.gumbel(problem, count, rng)
        logit_noise = rng.normal(scale=noise, size=gumbel.shape) if noise > 0 else None
        if greedy:
            gumbel[:] = 0.0
        rollout = self.roll_out(problem, gumbel=gumbel, logit_noise=logit_noise)
        actions: dict[str, NDArray[Any]] = {"device": rollout.device}
        if logit_noise is not None:
            actions["added"] = rollout.logit_shift
        return Episodes(
            actions,
            self.placement(problem, rollout),
            one_plan_per_episode(count),
            rollout.log_prob,
            rollout.start,
        )

    def gumbel(self, problem: Problem, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Decisions × episodes × devices: Gumbel noise that samples `count` episodes."""
        decisions = len(self._features_of(problem).order.decision_groups)
        return rng.gumbel(size=(decisions, count, problem.arrays.devices))

    def legal(self, problem: Problem) -> NDArray[np.bool_]:
        """Decisions × devices: where each group is legal."""
        order = self._features_of(problem).order
        return order.legal[order.decision_groups]

    def placement(self, problem: Problem, rollout: Rollout) -> NDArray[np.int32]:
        """Episodes × ops: the plans of a rollout."""
        features = self._features_of(problem)
        group_devices = np.empty_like(rollout.device)
        group_devices[:, features.order.decision_groups] = rollout.device
        return problem.legalize(features.order.grouping.expand(group_devices))

    def roll_out(self, problem: Problem, **options: Any) -> Rollout:
        """A batch of episodes; see `rollout.roll_out`."""
        return roll_out(self._features_of(problem), self._logits, **options)

    def _logits(self, group: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        logits: NDArray[np.float64] = features @ self.weights
        return logits

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        """See `Policy.score`; this needs torch."""
        import torch

        from placewright.policies.seq2seq import MASKED_LOGIT, log_prob_and_entropy, uniform_entropy

        device = episodes.actions["device"]
        rollout = self.roll_out(problem, forced_options=device, keep_features=True)
        order = self._features_of(problem).order
        (weights,) = self.parameters()
        logits = torch.as_tensor(rollout.features, dtype=weights.dtype).transpose(0, 1) @ weights
        if "added" in episodes.actions:
            logits = logits + torch.as_tensor(episodes.actions["added"])
        legal = torch.as_tensor(order.legal[order.decision_groups])
        log_prob, entropy = log_prob_and_entropy(
            logits.masked_fill(~legal, MASKED_LOGIT), torch.as_tensor(device, dtype=torch.long)
        )
        return Scores((HeadScores("devices", log_prob, entropy, uniform_entropy(legal)),))

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.float64]:
        """Ops × devices: the probability of each device for each op, with all groups decided before
        as in the plan. An op that the policy does not decide stays with probability 1."""
        order = self._features_of(problem).order
        group, ops = order.grouping.group, np.flatnonzero(problem.arrays.scheduled)[::-1]
        group_device = np.zeros(len(order.grouping), dtype=np.int64)
        group_device[group] = plan.placement
        group_device[group[ops]] = plan.placement[ops]  # the first op's, if a group is split
        rollout = self.roll_out(
            problem, forced_options=group_device[None, order.decision_groups], keep_features=True
        )
        logits = np.where(
            order.legal[order.decision_groups], rollout.features[:, 0] @ self.weights, -np.inf
        )
        probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows = np.eye(problem.arrays.devices)[group_device]
        rows[order.decision_groups] = probabilities / probabilities.sum(axis=1, keepdims=True)
        return np.asarray(rows[group], dtype=np.float64)

    def select(self, episodes: Episodes, index: int) -> Episodes:
        actions = {"device": episodes.actions["device"][index : index + 1].copy()}
        placements, log_prob = (
            episodes.placements[index : index + 1],
            episodes.log_prob[index : index + 1],
        )
        return Episodes(actions, placements.copy(), one_plan_per_episode(1), log_prob.copy())

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """One torch parameter that shares its memory with `weights`."""
        import torch

        if self._parameter is None:
            self._parameter = torch.nn.Parameter(torch.from_numpy(self.weights))
        yield self._parameter

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        yield "weights", next(self.parameters())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"weights": next(self.parameters()).detach()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"weights"} or state["weights"].shape != self.weights.shape:
            raise ValueError(f"expected {len(FEATURES)} weights")
        self.weights[:] = np.asarray(state["weights"], dtype=float)

    def train(self, mode: bool = True) -> LinearPolicy:
        return self

    def to(self, device: str) -> LinearPolicy:
        """The policy itself: it always computes on the CPU."""
        return self

    def _features_of(self, problem: Problem) -> PairFeatures:
        if problem not in self._features_cache:
            grouping = op_groups.group_ops(problem, self.config.grouping, self.config.max_groups)
            legal = op_groups.legal_devices(problem, grouping)
            self._features_cache[problem] = PairFeatures.of(
                ScheduleOrder.of(problem, grouping, legal)
            )
        return self._features_cache[problem]
