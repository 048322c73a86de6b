"""GO's decisions from logits: sampled, or replayed with their log-probabilities.

An episode decides in slots, one for each pass and task. Where few decisions are sampled they are
all of one slot, and the episode leaves the other slots unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import one_hot

from placewright.policies.policy import HeadScores
from placewright.policies.seq2seq import MASKED_LOGIT, log_prob_and_entropy, uniform_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.policies.go.observation import GoObservation

SLOT = "slot"
"""The action that names the slot of an episode's samples."""
_ALL_SLOTS = -1
_MAX_LOG_ODDS = 50.0  # nats; a unit with no other legal device stays


class Sampler:
    """Random numbers for episodes; the same seed gives the same ones on the same kind of machine.

    Args:
        slot_probabilities: The probability of each slot, if an episode samples in one alone.
        max_decisions: The largest number of groups of units that an episode samples; 0 for all.
        correlated: Whether neighbouring units share random numbers.
    """

    def __init__(
        self,
        count: int,
        seed: int,
        torch_device: torch.device,
        noise: float = 0.0,
        greedy: bool = False,
        slot_probabilities: NDArray[np.float64] | None = None,
        max_decisions: int = 0,
        correlated: bool = False,
    ) -> None:
        self.torch_device, self.noise, self.greedy = torch_device, noise, greedy
        self.max_decisions, self.correlated = max_decisions, correlated
        self._generator = torch.Generator(torch_device).manual_seed(seed)
        self._rng = np.random.default_rng(seed)
        self.slot = np.full(count, _ALL_SLOTS)
        """Episodes: the slot of each."""
        if max_decisions and not greedy and slot_probabilities is not None:
            self.slot = self._rng.choice(len(slot_probabilities), size=count, p=slot_probabilities)

    def gumbel(
        self, observation: GoObservation, logits: torch.Tensor, move_probability: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Episodes × units × choices: noise on the logits; and which units are sampled at all.

        Args:
            move_probability: Episodes × units: the probability that each moves. Half of the weight
                with which units are sampled is proportional to it.
        """
        count, units, choices = logits.shape
        is_drawn = torch.ones(count, units, dtype=torch.bool, device=self.torch_device)
        if self.greedy:
            return torch.zeros(count, units, choices, device=self.torch_device), is_drawn
        uniform = torch.rand(
            count, units, choices, generator=self._generator, device=self.torch_device
        )
        if (self.correlated or self.max_decisions) and count:
            run = self._run_of_units(observation, count)
            if self.correlated:
                uniform = uniform.gather(1, run[:, :, None].expand(-1, -1, choices))
            if self.max_decisions:
                groups = np.asarray(run.amax(dim=1).cpu()) + 1
                share = (
                    np.exp(self._rng.uniform(0.0, np.log(self.max_decisions), size=count)) / groups
                )
                rolls = torch.rand(
                    count, units, generator=self._generator, device=self.torch_device
                )
                weight = 0.5 + 0.5 * move_probability / move_probability.mean(
                    dim=1, keepdim=True
                ).clamp(min=1e-9)
                weight = torch.zeros_like(weight).scatter_reduce(
                    1, run, weight, "mean", include_self=False
                )
                rolls = (rolls / weight.clamp(min=1e-3)).gather(1, run)
                lowest = rolls.amin(dim=1, keepdim=True)  # at least one is sampled
                limit = torch.as_tensor(share, device=self.torch_device, dtype=rolls.dtype)
                is_drawn = (rolls < limit[:, None]) | (rolls == lowest)
        uniform = uniform.clamp(1e-20, 1 - 1e-7)
        return -(-uniform.log()).log() * is_drawn[:, :, None], is_drawn

    def _run_of_units(self, observation: GoObservation, count: int) -> torch.Tensor:
        """Episodes × units: runs of neighbouring units, of a random length per episode."""
        levels = observation.unit_runs if self.correlated else observation.unit_runs[:1]
        pick = self._rng.integers(len(levels), size=count)
        return torch.as_tensor(
            np.stack([levels[level] for level in pick]), device=self.torch_device
        )

    def logit_noise(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Normal noise, as a share of the size of each unit's logits."""
        if not self.noise:
            return None
        noise = torch.randn(logits.shape, generator=self._generator, device=self.torch_device)
        legal = logits > MASKED_LOGIT / 2
        mean_square = (logits.square() * legal).sum(dim=2, keepdim=True) / legal.sum(
            dim=2, keepdim=True
        )
        return noise * self.noise * mean_square.sqrt()


@dataclass(frozen=True, eq=False)
class DecisionQuery:
    """The decisions of one slot.

    Args:
        observation: The units or groups that are decided on.
        logits: Those of the episodes that decide here, `rows`.
        current: All episodes × units: the choice that other episodes keep.
        stay_logits: Like logits: added where nothing is sampled.
    """

    name: str
    observation: GoObservation
    logits: torch.Tensor
    rows: torch.Tensor
    current: torch.Tensor
    stay_logits: torch.Tensor

    def scatter_rows(self, values: torch.Tensor) -> torch.Tensor:
        """Values of the deciding episodes among all of them; 0 for the others."""
        all_rows = values.new_zeros((*self.current.shape, *values.shape[2:]))
        return all_rows.index_copy(0, self.rows, values)


class DecisionSampler:
    """Samples decisions and keeps what `score` needs to replay them."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._actions: dict[str, torch.Tensor] = {}
        self._log_probs: list[torch.Tensor] = []

    def rows(self, slot: int) -> torch.Tensor:
        """The episodes that decide in a slot."""
        return _deciding_rows(self.sampler.slot, slot, self.sampler.torch_device)

    def __call__(self, query: DecisionQuery) -> torch.Tensor:
        """All episodes × units."""
        name, logits = query.name, query.logits
        is_current = one_hot(query.current[query.rows], logits.shape[2]).bool()
        move_logit = logits.masked_fill(is_current, MASKED_LOGIT).logsumexp(dim=2)
        stay_log_odds = logits.masked_fill(~is_current, MASKED_LOGIT).logsumexp(dim=2) - move_logit
        gumbel, is_drawn = self.sampler.gumbel(
            query.observation, logits, torch.sigmoid(-stay_log_odds)
        )
        logit_shift = self.sampler.logit_noise(logits)
        if self.sampler.max_decisions and not self.sampler.greedy:
            # Unchanged plans teach nothing: a sampled unit moves with probability one half.
            stay_penalty = -stay_log_odds.clamp(0.0, _MAX_LOG_ODDS)[:, :, None] * is_current
            self._actions[f"{name}/restless"] = query.scatter_rows(stay_penalty)
            logits = logits + stay_penalty
        if logit_shift is not None:
            self._actions[f"{name}/added"] = query.scatter_rows(logit_shift)
            logits = logits + logit_shift
        is_kept = torch.ones_like(is_drawn) if self.sampler.greedy else ~is_drawn
        row_choice = (logits + gumbel + query.stay_logits * is_kept[:, :, None]).argmax(dim=2)
        choice = query.current.index_copy(0, query.rows, row_choice)
        self._actions[name] = choice
        self._actions[f"{name}/free"] = query.scatter_rows(is_drawn)
        self._log_probs.append(
            query.scatter_rows(log_prob_and_entropy(logits, row_choice)[0] * is_drawn)
        )
        return choice

    def outputs(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        """The actions by name, and the log-probabilities slot after slot."""
        actions = {name: value.cpu().numpy() for name, value in self._actions.items()}
        return {**actions, SLOT: self.sampler.slot}, torch.cat(
            self._log_probs, 1
        ).float().cpu().numpy()


class DecisionReplay:
    """Replays decisions and scores them under the policy as it is now, with gradients."""

    def __init__(self, actions: Mapping[str, NDArray[Any]], torch_device: torch.device) -> None:
        self.actions, self.torch_device = actions, torch_device
        self._heads: list[HeadScores] = []

    def rows(self, slot: int) -> torch.Tensor:
        """The episodes that decided in a slot."""
        return _deciding_rows(self.actions[SLOT], slot, self.torch_device)

    def __call__(self, query: DecisionQuery) -> torch.Tensor:
        name, logits, rows = query.name, query.logits, query.rows
        choice = torch.as_tensor(self.actions[name], dtype=torch.long, device=self.torch_device)
        is_drawn = torch.as_tensor(self.actions[f"{name}/free"], device=self.torch_device)
        for shift_name in ("restless", "added"):
            if f"{name}/{shift_name}" in self.actions:
                shift = torch.as_tensor(
                    self.actions[f"{name}/{shift_name}"], device=self.torch_device
                )
                logits = logits + shift[rows]
        log_prob, entropy = log_prob_and_entropy(logits, choice[rows])
        max_entropy = uniform_entropy(
            torch.as_tensor(query.observation.legal, device=self.torch_device)
        )
        if not name.startswith("device"):
            max_entropy = torch.full_like(max_entropy, float(np.log(logits.shape[2])))
        row_mask = is_drawn[rows]
        self._heads.append(
            HeadScores(
                name,
                query.scatter_rows(log_prob * row_mask),
                query.scatter_rows(entropy * row_mask),
                max_entropy,
                is_drawn,
            )
        )
        return choice

    def heads(self) -> tuple[HeadScores, ...]:
        return tuple(self._heads)


def _deciding_rows(slot: NDArray[np.int64], index: int, torch_device: torch.device) -> torch.Tensor:
    return torch.as_tensor(
        np.flatnonzero((slot == index) | (slot == _ALL_SLOTS)), device=torch_device
    )
