"""Imitation: a policy and teachers' plans in, a policy that makes such plans out.

Before it learns from rewards GO is taught to turn a first plan into a strong one, pass after pass,
and that plan with parts of it moved about back into itself: the last is what a search asks it for
(`move_probabilities`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.policies.go.initial_plans import nearest_to
from placewright.policies.go.levels import (
    LEVELS,
    MODULES,
    PARTS,
    UNITS,
)
from placewright.training.go.issue_order import clock

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from placewright.policies.go.observation import Seen
    from placewright.policies.go.policy import Go, Graph
    from placewright.training.go.demonstrations import Lesson


@dataclass(frozen=True)
class Imitation:
    """How a policy is taught.

    Args:
        smoothing: The share of a target that is spread over all devices in the passes.
        units: The share of steps that teach single units too, in a pass and in a damaged plan; they
            cost many times what modules and parts do.
        loose: How many decisions of a pass may be left to that chance, on average.
        damaged: Damaged copies of the strong plan in a step.
        damage: The share of the units that is moved about, from and to.
        clip: The most that all gradients together may measure.
        near: How many times the best plan's step time is about as good.
    """

    smoothing: float = 0.1
    units: float = 0.25
    loose: float = 2.0
    damaged: int = 3
    damage: tuple[float, float] = (0.005, 0.3)
    clip: float = 1.0
    near: float = 1.03

    def step(
        self,
        policy: Go,
        optimizer: torch.optim.Optimizer,
        lesson: Lesson,
        rng: np.random.Generator,
    ) -> dict[str, float]:
        """One step on one problem.

        Returns:
            Losses in nats, and the share of units that the passes put where the teacher has them.
        """
        import torch

        loss, said = self.loss(policy, lesson, rng)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), self.clip))
        if np.isfinite(norm):
            optimizer.step()
        return {**said, "gradient": norm}

    def loss(
        self, policy: Go, lesson: Lesson, rng: np.random.Generator
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """What it has yet to learn from a problem."""
        seen, graph = policy.see(lesson.problem), policy.graph(lesson.problem)
        weight = seen.seconds.min(axis=1) + seen.seconds.min(axis=1).mean() * 0.1
        plan = seen.starts[int(rng.integers(len(seen.starts)))]
        strong = self._target(lesson, seen, plan, weight)
        said: dict[str, float] = {}
        total: Any = 0.0
        fine = rng.random() < self.units
        coarse = [level for level in policy.shape.passes if seen.grouped(level) is not None]
        for at, level in enumerate(policy.shape.passes if fine or not coarse else coarse):
            part, group = policy.by_groups(graph, level), seen.members(level)
            now, target = (seen.rounded(group, one) for one in (plan, strong))
            logits = policy.logits(part, now[None], LEVELS.index(level))
            choice = part[0].legal.sum(axis=1) > 1
            spread = min(self.smoothing, self.loose / max(int(choice.sum()), 1))
            total = total + _missed(logits, target[None], choice, spread)
            hit = logits.argmax(dim=2)[0].cpu().numpy() == target
            said[f"pass {at}"] = float(hit[choice].mean()) if choice.any() else 1.0
            drawn = _drawn(logits, rng)
            plan = np.where((drawn != now)[group], drawn[group], plan)
        if self.damaged and fine:
            mended, said["mended"] = self._mended(policy, lesson, graph, strong, weight, rng)
            total = total + mended
        said["loss"] = float(total.detach())
        return total, said

    def _mended(
        self,
        policy: Go,
        lesson: Lesson,
        graph: Graph,
        strong: NDArray[np.int32],
        weight: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> tuple[torch.Tensor, float]:
        """What it has yet to learn of damaged plans, and the share of damage that it mends."""
        from placewright.policies.go.policy import SEARCH

        seen = graph[0]
        free = seen.legal.sum(axis=1) > 1
        others = [
            nearest_to(device[seen.leader], strong, seen.classes, weight)
            for device in lesson.device
        ]
        others = [plan for plan in others if (plan != strong).any()]
        broken = np.stack([self._break(seen, strong, others, rng) for _ in range(self.damaged)])
        logits = policy.logits(graph, broken, SEARCH)
        target = np.repeat(strong[None], self.damaged, axis=0)
        mended = _missed(logits, target, free, 0.0, broken != target)
        moved = (broken != target) & free
        hit = (logits.argmax(dim=2).cpu().numpy() == target)[moved]
        return mended, float(hit.mean()) if len(hit) else 1.0

    def _target(
        self, lesson: Lesson, seen: Seen, plan: NDArray[Any], weight: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        """Of the plans that are about as good as the best, the one nearest to a plan.

        What is far away differs by chance as much as by merit, and chance cannot be learned.
        """
        good = (lesson.over <= lesson.over[0]) & (lesson.value <= lesson.value[0] * self.near)
        named = [
            nearest_to(lesson.device[at][seen.leader], plan, seen.classes, weight)
            for at in np.flatnonzero(good)
        ]
        return min(named, key=lambda one: float(weight[one != plan].sum()))

    def _break(
        self,
        seen: Seen,
        strong: NDArray[np.int32],
        others: list[NDArray[np.int32]],
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """The strong plan with groups of units where a weaker plan or chance has them."""
        share = np.exp(rng.uniform(*np.log(self.damage)))
        level = self._cut(seen, rng)
        groups = int(level.max()) + 1
        pick = rng.random(groups) < share
        pick[int(rng.integers(groups))] = True
        units = pick[level]
        if others and rng.random() < 0.5:
            instead = others[int(rng.integers(len(others)))]
        else:
            luck = rng.random((groups, seen.legal.shape[1]))[level]
            instead = np.where(seen.legal, luck, -1.0).argmax(axis=1)
        return np.where(units, instead, strong).astype(np.int64)

    @staticmethod
    def _cut(seen: Seen, rng: np.random.Generator) -> NDArray[np.int64]:
        """Units: groups that are moved as one: units alone, modules, or parts."""
        levels = [level for level in (MODULES, PARTS) if seen.grouped(level) is not None]
        return seen.members([UNITS, *levels][int(rng.integers(len(levels) + 1))])


def _missed(
    logits: torch.Tensor,
    target: NDArray[np.integer],
    free: NDArray[np.bool_],
    smoothing: float,
    heavy: NDArray[np.bool_] | None = None,
) -> torch.Tensor:
    """The mean cross-entropy over units that have a choice.

    Args:
        heavy: Units that count, all together, as much as all others.
    """
    import torch

    where = logits.device
    sure = torch.log_softmax(logits, dim=2)
    index = torch.as_tensor(np.asarray(target, dtype=np.int64), device=where)
    miss = -sure.gather(2, index[..., None])[..., 0]
    if smoothing:
        legal = logits > -1e8
        even = -(sure.masked_fill(~legal, 0.0)).sum(dim=2) / legal.sum(dim=2)
        miss = (1 - smoothing) * miss + smoothing * even
    weight = np.broadcast_to(free.astype(np.float32), target.shape)
    if heavy is not None:
        both = (heavy & free).sum(axis=1, keepdims=True).clip(1)
        rest = (~heavy & free).sum(axis=1, keepdims=True).clip(1)
        weight = weight * np.where(heavy, rest / both, 1.0)
    scale = torch.as_tensor(np.array(weight, dtype=np.float32), device=where)
    missed: torch.Tensor = (miss * scale).sum() / scale.sum().clamp(min=1.0)
    return missed


def _drawn(logits: torch.Tensor, rng: np.random.Generator) -> NDArray[np.int64]:
    """Units: the likeliest plan, with none, some or all of its units drawn instead."""
    import torch

    share = rng.choice([0.0, np.exp(rng.uniform(np.log(0.01), 0.0))])
    free = rng.random(logits.shape[1]) < share
    luck = rng.gumbel(size=logits.shape[1:]) * free[:, None]
    with torch.no_grad():
        shaken = logits[0] + torch.as_tensor(luck, dtype=logits.dtype, device=logits.device)
        return shaken.argmax(dim=1).cpu().numpy()


def taught(
    policy: Go,
    lessons: list[Lesson],
    steps: int,
    seed: int = 0,
    rate: float = 1e-3,
    how: Imitation | None = None,
) -> list[dict[str, float]]:
    """Teach a policy so many steps on problems drawn at random; what each step said."""
    import torch

    how = how or Imitation()
    policy.clock = clock
    rng = np.random.default_rng([seed, 7])
    optimizer = torch.optim.Adam(policy.parameters(), lr=rate)
    rows = []
    for at in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - 0.9 * at / max(steps, 1))
        lesson = lessons[int(rng.integers(len(lessons)))]
        rows.append(how.step(policy, optimizer, lesson, rng))
    return rows
