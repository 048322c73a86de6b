"""Imitation: teaches GO to turn initial plans into demonstrated ones, by cross-entropy.

Before it learns from rewards GO learns to turn an initial plan into a strong one, pass after pass,
and to repair a strong plan of which parts were moved: a search asks it for that
(`move_probabilities`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.policies.go.initial_plans import align_devices
from placewright.policies.go.levels import (
    LEVELS,
    MODULES,
    PARTS,
    UNITS,
)
from placewright.training.algorithms import optimizer_step

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from placewright.policies.go.observation import GoObservation
    from placewright.policies.go.policy import EncodedGraph, Go
    from placewright.training.go.demonstrations import Demonstration


@dataclass(frozen=True)
class Imitation:
    """How demonstrations are imitated.

    Args:
        label_smoothing: The share of a target that is spread over all devices in the passes.
        unit_probability: The share of steps that include single units, in a pass and in damaged
            plans; they cost many times as much as modules and parts.
        max_smoothed_decisions: The smoothing of a pass is limited to this many decisions.
        damaged_copies: Damaged copies of the strong plan in a step.
        damage_range: The least and the largest share of the units that is moved.
        max_grad_norm: The largest norm of all gradients together.
        near_best_ratio: Plans within this ratio of the best plan's step time are targets too.
    """

    label_smoothing: float = 0.1
    unit_probability: float = 0.25
    max_smoothed_decisions: float = 2.0
    damaged_copies: int = 3
    damage_range: tuple[float, float] = (0.005, 0.3)
    max_grad_norm: float = 1.0
    near_best_ratio: float = 1.03

    def step(
        self,
        policy: Go,
        optimizer: torch.optim.Optimizer,
        demonstration: Demonstration,
        rng: np.random.Generator,
    ) -> dict[str, float]:
        """One optimizer step on one problem.

        Returns:
            Losses in nats, and the accuracy of each pass and of repairs (`repair`).
        """
        loss, stats = self.loss(policy, demonstration, rng)
        norm = optimizer_step(policy, optimizer, loss, self.max_grad_norm)
        return {**stats, "gradient": norm}

    def loss(
        self, policy: Go, demonstration: Demonstration, rng: np.random.Generator
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss on a problem, and its figures."""
        observation, graph = (
            policy.observe(demonstration.problem),
            policy.encode_graph(demonstration.problem),
        )
        weight = observation.seconds.min(axis=1) + observation.seconds.min(axis=1).mean() * 0.1
        plan = observation.initial_plans[int(rng.integers(len(observation.initial_plans)))]
        target_plan = self._target(demonstration, observation, plan, weight)
        stats: dict[str, float] = {}
        total: Any = 0.0
        with_units = rng.random() < self.unit_probability
        coarse_levels = [
            level for level in policy.config.passes if observation.at_level(level) is not None
        ]
        for pass_index, level in enumerate(
            policy.config.passes if with_units or not coarse_levels else coarse_levels
        ):
            level_graph, group = policy.coarsen(graph, level), observation.group_of_units(level)
            current, target = (
                observation.majority_devices(group, unit_plan) for unit_plan in (plan, target_plan)
            )
            logits = policy.logits(level_graph, current[None], LEVELS.index(level))
            has_choice = level_graph[0].legal.sum(axis=1) > 1
            smoothing = min(
                self.label_smoothing, self.max_smoothed_decisions / max(int(has_choice.sum()), 1)
            )
            total = total + _cross_entropy(logits, target[None], has_choice, smoothing)
            correct = logits.argmax(dim=2)[0].cpu().numpy() == target
            stats[f"pass {pass_index}"] = (
                float(correct[has_choice].mean()) if has_choice.any() else 1.0
            )
            sampled = _sample_plan(logits, rng)
            plan = np.where((sampled != current)[group], sampled[group], plan)
        if self.damaged_copies and with_units:
            repair_loss, stats["repair"] = self._repair_loss(
                policy, demonstration, graph, target_plan, weight, rng
            )
            total = total + repair_loss
        stats["loss"] = float(total.detach())
        return total, stats

    def _repair_loss(
        self,
        policy: Go,
        demonstration: Demonstration,
        graph: EncodedGraph,
        target_plan: NDArray[np.int32],
        weight: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> tuple[torch.Tensor, float]:
        """The loss on damaged plans, and the share of damaged units that are repaired."""
        from placewright.policies.go.policy import SEARCH_MODE

        observation = graph[0]
        free = observation.legal.sum(axis=1) > 1
        weaker_plans = [
            align_devices(
                placement[observation.leader], target_plan, observation.device_classes, weight
            )
            for placement in demonstration.placements
        ]
        weaker_plans = [plan for plan in weaker_plans if (plan != target_plan).any()]
        damaged = np.stack(
            [
                self._damage_plan(observation, target_plan, weaker_plans, rng)
                for _ in range(self.damaged_copies)
            ]
        )
        logits = policy.logits(graph, damaged, SEARCH_MODE)
        target = np.repeat(target_plan[None], self.damaged_copies, axis=0)
        loss = _cross_entropy(logits, target, free, 0.0, damaged != target)
        damaged_units = (damaged != target) & free
        correct = (logits.argmax(dim=2).cpu().numpy() == target)[damaged_units]
        return loss, float(correct.mean()) if len(correct) else 1.0

    def _target(
        self,
        demonstration: Demonstration,
        observation: GoObservation,
        plan: NDArray[Any],
        weight: NDArray[np.float64],
    ) -> NDArray[np.int32]:
        """Of the plans that are nearly as good as the best, the one nearest to a plan.

        Distant plans differ in ways that do not matter, which cannot be learned.
        """
        good = (demonstration.overflow <= demonstration.overflow[0]) & (
            demonstration.objective_values
            <= demonstration.objective_values[0] * self.near_best_ratio
        )
        aligned = [
            align_devices(
                demonstration.placements[index][observation.leader],
                plan,
                observation.device_classes,
                weight,
            )
            for index in np.flatnonzero(good)
        ]
        return min(aligned, key=lambda candidate: float(weight[candidate != plan].sum()))

    def _damage_plan(
        self,
        observation: GoObservation,
        target_plan: NDArray[np.int32],
        weaker_plans: list[NDArray[np.int32]],
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """The strong plan with groups of units moved as in a weaker plan, or at random."""
        damage_share = np.exp(rng.uniform(*np.log(self.damage_range)))
        group_of = self._damage_groups(observation, rng)
        groups = int(group_of.max()) + 1
        picked = rng.random(groups) < damage_share
        picked[int(rng.integers(groups))] = True
        units = picked[group_of]
        if weaker_plans and rng.random() < 0.5:
            replacement = weaker_plans[int(rng.integers(len(weaker_plans)))]
        else:
            scores = rng.random((groups, observation.legal.shape[1]))[group_of]
            replacement = np.where(observation.legal, scores, -1.0).argmax(axis=1)
        return np.where(units, replacement, target_plan).astype(np.int64)

    @staticmethod
    def _damage_groups(observation: GoObservation, rng: np.random.Generator) -> NDArray[np.int64]:
        """Units: groups that are moved as one: units, modules, or parts."""
        levels = [level for level in (MODULES, PARTS) if observation.at_level(level) is not None]
        return observation.group_of_units([UNITS, *levels][int(rng.integers(len(levels) + 1))])


def _cross_entropy(
    logits: torch.Tensor,
    target: NDArray[np.integer],
    free: NDArray[np.bool_],
    label_smoothing: float,
    emphasised: NDArray[np.bool_] | None = None,
) -> torch.Tensor:
    """The mean cross-entropy over units that have a choice.

    Args:
        emphasised: Units that have, together, the same weight as all others.
    """
    import torch

    torch_device = logits.device
    log_prob = torch.log_softmax(logits, dim=2)
    index = torch.as_tensor(np.asarray(target, dtype=np.int64), device=torch_device)
    unit_loss = -log_prob.gather(2, index[..., None])[..., 0]
    if label_smoothing:
        legal = logits > -1e8
        uniform_loss = -(log_prob.masked_fill(~legal, 0.0)).sum(dim=2) / legal.sum(dim=2)
        unit_loss = (1 - label_smoothing) * unit_loss + label_smoothing * uniform_loss
    weight = np.broadcast_to(free.astype(np.float32), target.shape)
    if emphasised is not None:
        emphasised_count = (emphasised & free).sum(axis=1, keepdims=True).clip(1)
        other_count = (~emphasised & free).sum(axis=1, keepdims=True).clip(1)
        weight = weight * np.where(emphasised, other_count / emphasised_count, 1.0)
    scale = torch.as_tensor(np.array(weight, dtype=np.float32), device=torch_device)
    loss: torch.Tensor = (unit_loss * scale).sum() / scale.sum().clamp(min=1.0)
    return loss


def _sample_plan(logits: torch.Tensor, rng: np.random.Generator) -> NDArray[np.int64]:
    """Units: the argmax plan, with none, some or all of its units sampled instead."""
    import torch

    sampled_share = rng.choice([0.0, np.exp(rng.uniform(np.log(0.01), 0.0))])
    sampled_units = rng.random(logits.shape[1]) < sampled_share
    gumbel = rng.gumbel(size=logits.shape[1:]) * sampled_units[:, None]
    with torch.no_grad():
        noisy_logits = logits[0] + torch.as_tensor(gumbel, dtype=logits.dtype, device=logits.device)
        return noisy_logits.argmax(dim=1).cpu().numpy()
