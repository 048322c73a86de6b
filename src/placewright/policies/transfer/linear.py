"""Pair: groups in, one after the other, each on the device whose list estimates weigh best, out.

A constructive policy over (group, device) pairs. What it knows of a pair is what a list scheduler
reckons: when the group could start and end there, what must be brought, the load and the memory
after. It has a dozen weights, so it learns from few plans; none depends on the number of devices or
groups, so one policy serves all clusters. Placing and training need no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from placewright.errors import FileError
from placewright.files.header import body, head
from placewright.files.storage import read_data, write_data
from placewright.policies import grouping as made
from placewright.policies.policy import Episodes, Head, Scores, one_plan_each
from placewright.policies.transfer.features import FEATURES, Pairs
from placewright.policies.transfer.rollout import Walk, walk
from placewright.scheduling.batched_schedules import Course

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
class Shape:
    """What is decided on.

    Args:
        rule: How ops are grouped (`groups.RULES`), or `op` for each op with what goes with it.
        most: Groups are merged until there are no more than this.
    """

    rule: str = "op"
    most: int = 2000

    def build(self, problem: Problem, seed: int = 0) -> Pair:
        """A fresh policy: small random weights; the same seed gives the same ones."""
        rng = np.random.default_rng(seed)
        return Pair(self, rng.normal(scale=0.01, size=len(FEATURES)))


class Pair:
    """Places groups by falling rank, each by a softmax over devices of weighted estimates."""

    name = NAME

    def __init__(self, shape: Shape, weights: NDArray[np.float64] | None = None) -> None:
        self.shape = shape
        self.weights = np.zeros(len(FEATURES)) if weights is None else np.array(weights, float)
        self._seen: WeakKeyDictionary[Problem, Pairs] = WeakKeyDictionary()
        self._parameter: torch.nn.Parameter | None = None

    def config(self) -> dict[str, Any]:
        return {"shape": asdict(self.shape), "features": list(FEATURES)}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Pair:
        if tuple(data["features"]) != FEATURES:
            raise ValueError(f"it knows features {', '.join(data['features'])}")
        return cls(Shape(**data["shape"]))

    def save(self, path: Path) -> None:
        """Write it to one JSON file, its weights by name, which needs no torch.

        Raises:
            FileError: It cannot be written there.
        """
        weights = {name: float(w) for name, w in zip(FEATURES, self.weights, strict=True)}
        config = {"shape": asdict(self.shape), "weights": weights}
        write_data({**head("policy"), "policy": NAME, "config": config}, path)

    @classmethod
    def load(cls, path: Path) -> Pair:
        """The policy that `save` wrote.

        Raises:
            FileError: The file is missing, damaged, or another release's.
        """
        data = body(read_data(path), "policy")
        try:
            weights = data["config"]["weights"]
            return cls(
                Shape(**data["config"]["shape"]),
                np.array([float(weights[name]) for name in FEATURES]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path}: is no pair policy of this release: {error!r}") from None

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self._see(problem).course.grouping

    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        rng = np.random.default_rng(seed)
        luck = self.luck(problem, count, rng)
        shake = rng.normal(scale=noise, size=luck.shape) if noise > 0 else None
        if greedy:
            luck[:] = 0.0
        walk = self.walk(problem, luck=luck, shake=shake)
        actions: dict[str, NDArray[Any]] = {"device": walk.device}
        if shake is not None:
            actions["added"] = walk.added
        return Episodes(
            actions, self.placement(problem, walk), one_plan_each(count), walk.log_prob, walk.start
        )

    def luck(self, problem: Problem, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Decisions × episodes × devices: the numbers that so many episodes are drawn with."""
        decisions = len(self._see(problem).course.decided)
        return rng.gumbel(size=(decisions, count, problem.arrays.devices))

    def legal(self, problem: Problem) -> NDArray[np.bool_]:
        """Decisions × devices: where each group may be."""
        course = self._see(problem).course
        return course.legal[course.decided]

    def placement(self, problem: Problem, walk: Walk) -> NDArray[np.int32]:
        """Episodes × ops: the plans of a walk."""
        seen = self._see(problem)
        row = np.empty_like(walk.device)
        row[:, seen.course.decided] = walk.device
        return problem.settle(seen.course.grouping.expand(row))

    def walk(self, problem: Problem, **how: Any) -> Walk:
        """Episodes side by side; see `walking.walk`."""
        return walk(self._see(problem), self._logits, **how)

    def _logits(self, group: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        logits: NDArray[np.float64] = features @ self.weights
        return logits

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        """Needs torch, for the shared trainer; `training.pairs` has gradients without it."""
        import torch

        from placewright.policies.seq2seq import NEVER, chosen, even_entropy

        device = episodes.actions["device"]
        walk = self.walk(problem, forced=device, keep=True)
        course = self._see(problem).course
        (weights,) = self.parameters()
        logits = torch.as_tensor(walk.features, dtype=weights.dtype).transpose(0, 1) @ weights
        if "added" in episodes.actions:
            logits = logits + torch.as_tensor(episodes.actions["added"])
        legal = torch.as_tensor(course.legal[course.decided])
        log_prob, entropy = chosen(
            logits.masked_fill(~legal, NEVER), torch.as_tensor(device, dtype=torch.long)
        )
        return Scores((Head("devices", log_prob, entropy, even_entropy(legal)),))

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.float64]:
        """Ops × devices: how likely each device is for each op, had all groups that it decides
        before been put where the plan has them; what it does not decide is sure to stay."""
        course = self._see(problem).course
        group, ops = course.grouping.group, np.flatnonzero(problem.arrays.turn)[::-1]
        where = np.zeros(len(course.grouping), dtype=np.int64)
        where[group] = plan.device
        where[group[ops]] = plan.device[ops]  # of a group that is apart, its first op speaks
        walk = self.walk(problem, forced=where[None, course.decided], keep=True)
        logits = np.where(course.legal[course.decided], walk.features[:, 0] @ self.weights, -np.inf)
        likely = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows = np.eye(problem.arrays.devices)[where]
        rows[course.decided] = likely / likely.sum(axis=1, keepdims=True)
        return np.asarray(rows[group], dtype=np.float64)

    def only(self, episodes: Episodes, at: int) -> Episodes:
        actions = {"device": episodes.actions["device"][at : at + 1].copy()}
        device, log_prob = episodes.device[at : at + 1], episodes.log_prob[at : at + 1]
        return Episodes(actions, device.copy(), one_plan_each(1), log_prob.copy())

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

    def train(self, mode: bool = True) -> Pair:
        return self

    def to(self, device: str) -> Pair:
        """It stays on the CPU, whatever is asked for."""
        return self

    def _see(self, problem: Problem) -> Pairs:
        if problem not in self._seen:
            grouping = made.grouped(problem, self.shape.rule, self.shape.most)
            legal = made.legal_devices(problem, grouping)
            self._seen[problem] = Pairs.of(Course.of(problem, grouping, legal))
        return self._seen[problem]
