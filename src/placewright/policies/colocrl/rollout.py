"""Rollouts of ColocRL on one problem, for training on a GPU: samples, and gradients of its weights.

Episodes are those of `ColocRL.act` without noise on the logits, but drawn where the policy is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from placewright.policies.placer_kernels import find_kernels
from placewright.policies.seq2seq import uniform_entropy
from placewright.policies.seq2seq_rollout import PlacerRollout, PlacerRollouts

if TYPE_CHECKING:
    from placewright.policies.colocrl.policy import ColocRL
    from placewright.problem import Problem


class ColocRLRollouts:
    """Samples episodes of a policy on one problem, and differentiates them.

    Raises:
        ConfigError: The policy has settings that rollouts do not know.
    """

    def __init__(self, policy: ColocRL, problem: Problem) -> None:
        self.policy = policy
        self.observation = policy.observe(problem)
        device, hidden = policy.placer.go.device, policy.placer.go.shape[1]
        kernels, self.fallback_reason = find_kernels(device, hidden)
        """Why PyTorch computes what CUDA kernels could; empty if they do."""
        self.placer = PlacerRollouts(policy.placer, self.observation.legal, kernels)
        self.max_entropy = float(uniform_entropy(self.observation.legal).sum())
        """Nats of an episode of uniform choices."""

    @property
    def shape(self) -> tuple[int, int]:
        """Steps of an episode, and devices."""
        groups, devices = self.observation.legal.shape
        return groups, devices

    @torch.no_grad()
    def sample(self, gumbel: torch.Tensor) -> PlacerRollout:
        """Sample as many episodes as there is noise: groups × episodes × devices."""
        kinds = self.policy.kind(self.observation.kinds)
        return self.placer.sample(torch.cat([kinds, self.observation.features], dim=1), gumbel)

    @torch.no_grad()
    def gradients(self, rollout: PlacerRollout, logit_gradient: torch.Tensor) -> list[torch.Tensor]:
        """For each parameter of the policy, in their order: losses × its shape.

        Args:
            logit_gradient: Groups × losses × episodes × devices.
        """
        found, of_inputs = self.placer.gradients(rollout, logit_gradient)
        named = {f"placer.{name}": gradient for name, gradient in found.items()}
        of_kinds = of_inputs[:, :, : self.policy.config.types]
        named["kind.weight"] = torch.einsum("tri,tk->rik", of_kinds, self.observation.kinds)
        return [named[name] for name, _ in self.policy.named_parameters()]
