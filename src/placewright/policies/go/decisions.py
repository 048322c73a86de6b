"""GO's decisions: logits in, choices out, drawn or as they were; and how sure each was.

An episode decides in slots, one for each pass and task. Where few decisions are drawn they are all
of one slot, and the episode leaves the others as it found them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import one_hot

from placewright.policies.policy import Head
from placewright.policies.seq2seq import NEVER, chosen, even_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.policies.go.observation import Seen

SLOT = "slot"
"""The action that says where an episode drew."""
_ALL = -1
_SURE = 50.0  # nats; what has no other device stays for certain


class Luck:
    """Random numbers for episodes; the same seed gives the same ones on the same kind of machine.

    Args:
        slots: How likely an episode draws in each of them, if not all are drawn.
        most: Groups of units that an episode draws at most, from one on; 0 for all of them.
        together: Whether units share their luck with neighbours.
    """

    def __init__(
        self,
        count: int,
        seed: int,
        where: torch.device,
        noise: float = 0.0,
        greedy: bool = False,
        slots: NDArray[np.float64] | None = None,
        most: int = 0,
        together: bool = False,
    ) -> None:
        self.where, self.noise, self.greedy = where, noise, greedy
        self.most, self.together = most, together
        self._generator = torch.Generator(where).manual_seed(seed)
        self._rng = np.random.default_rng(seed)
        self.slot = np.full(count, _ALL)
        """Episodes: where each draws."""
        if most and not greedy and slots is not None:
            self.slot = self._rng.choice(len(slots), size=count, p=slots)

    def gumbel(
        self, seen: Seen, logits: torch.Tensor, moving: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Episodes × units × choices: what is added to logits; and units that are drawn at all.

        Args:
            moving: Episodes × units: how likely each moves. Half of those drawn are drawn by it.
        """
        count, units, choices = logits.shape
        free = torch.ones(count, units, dtype=torch.bool, device=self.where)
        if self.greedy:
            return torch.zeros(count, units, choices, device=self.where), free
        uniform = torch.rand(count, units, choices, generator=self._generator, device=self.where)
        if (self.together or self.most) and count:
            member = self._members(seen, count)
            if self.together:
                uniform = uniform.gather(1, member[:, :, None].expand(-1, -1, choices))
            if self.most:
                groups = np.asarray(member.amax(dim=1).cpu()) + 1
                share = np.exp(self._rng.uniform(0.0, np.log(self.most), size=count)) / groups
                rolled = torch.rand(count, units, generator=self._generator, device=self.where)
                often = 0.5 + 0.5 * moving / moving.mean(dim=1, keepdim=True).clamp(min=1e-9)
                often = torch.zeros_like(often).scatter_reduce(
                    1, member, often, "mean", include_self=False
                )
                rolled = (rolled / often.clamp(min=1e-3)).gather(1, member)
                least = rolled.amin(dim=1, keepdim=True)  # one is drawn in any case
                limit = torch.as_tensor(share, device=self.where, dtype=rolled.dtype)
                free = (rolled < limit[:, None]) | (rolled == least)
        uniform = uniform.clamp(1e-20, 1 - 1e-7)
        return -(-uniform.log()).log() * free[:, :, None], free

    def _members(self, seen: Seen, count: int) -> torch.Tensor:
        """Episodes × units: the groups that units are in, of a size that each episode draws."""
        levels = seen.stretches if self.together else seen.stretches[:1]
        pick = self._rng.integers(len(levels), size=count)
        return torch.as_tensor(np.stack([levels[at] for at in pick]), device=self.where)

    def shake(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Normal numbers, as a share of the size of each unit's logits."""
        if not self.noise:
            return None
        drawn = torch.randn(logits.shape, generator=self._generator, device=self.where)
        legal = logits > NEVER / 2
        size = (logits.square() * legal).sum(dim=2, keepdim=True) / legal.sum(dim=2, keepdim=True)
        return drawn * self.noise * size.sqrt()


@dataclass(frozen=True, eq=False)
class Asked:
    """What is to be decided in a slot.

    Args:
        seen: The units or groups that it is about.
        logits: Of the episodes that decide, `rows`.
        now: All episodes × units: what is kept by the others.
        stay: Like logits: what is added where nothing is drawn.
    """

    name: str
    seen: Seen
    logits: torch.Tensor
    rows: torch.Tensor
    now: torch.Tensor
    stay: torch.Tensor

    def among(self, values: torch.Tensor) -> torch.Tensor:
        """Values of the episodes that decide among all of them; nothing for the others."""
        all_of_them = values.new_zeros((*self.now.shape, *values.shape[2:]))
        return all_of_them.index_copy(0, self.rows, values)


class Drawn:
    """Draws decisions and keeps what `score` needs to see them again."""

    def __init__(self, luck: Luck) -> None:
        self.luck = luck
        self._actions: dict[str, torch.Tensor] = {}
        self._sure: list[torch.Tensor] = []

    def rows(self, at: int) -> torch.Tensor:
        """The episodes that decide in a slot."""
        return _rows(self.luck.slot, at, self.luck.where)

    def __call__(self, asked: Asked) -> torch.Tensor:
        """All episodes × units."""
        name, logits = asked.name, asked.logits
        here = one_hot(asked.now[asked.rows], logits.shape[2]).bool()
        away = logits.masked_fill(here, NEVER).logsumexp(dim=2)
        sure = logits.masked_fill(~here, NEVER).logsumexp(dim=2) - away
        gumbel, free = self.luck.gumbel(asked.seen, logits, torch.sigmoid(-sure))
        added = self.luck.shake(logits)
        if self.luck.most and not self.luck.greedy:
            # Plans that stay as they were teach nothing: what is drawn moves half of the time.
            restless = -sure.clamp(0.0, _SURE)[:, :, None] * here
            self._actions[f"{name}/restless"] = asked.among(restless)
            logits = logits + restless
        if added is not None:
            self._actions[f"{name}/added"] = asked.among(added)
            logits = logits + added
        calm = torch.ones_like(free) if self.luck.greedy else ~free
        picked = (logits + gumbel + asked.stay * calm[:, :, None]).argmax(dim=2)
        choice = asked.now.index_copy(0, asked.rows, picked)
        self._actions[name] = choice
        self._actions[f"{name}/free"] = asked.among(free)
        self._sure.append(asked.among(chosen(logits, picked)[0] * free))
        return choice

    def done(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        """The actions by name, and the log-probabilities slot after slot."""
        actions = {name: value.cpu().numpy() for name, value in self._actions.items()}
        return {**actions, SLOT: self.luck.slot}, torch.cat(self._sure, 1).float().cpu().numpy()


class Forced:
    """Takes decisions as they were taken and says how likely they are now, with gradients."""

    def __init__(self, actions: Mapping[str, NDArray[Any]], where: torch.device) -> None:
        self.actions, self.where = actions, where
        self._heads: list[Head] = []

    def rows(self, at: int) -> torch.Tensor:
        """The episodes that decided in a slot."""
        return _rows(self.actions[SLOT], at, self.where)

    def __call__(self, asked: Asked) -> torch.Tensor:
        name, logits, rows = asked.name, asked.logits, asked.rows
        choice = torch.as_tensor(self.actions[name], dtype=torch.long, device=self.where)
        free = torch.as_tensor(self.actions[f"{name}/free"], device=self.where)
        for more in ("restless", "added"):
            if f"{name}/{more}" in self.actions:
                shift = torch.as_tensor(self.actions[f"{name}/{more}"], device=self.where)
                logits = logits + shift[rows]
        log_prob, entropy = chosen(logits, choice[rows])
        most = even_entropy(torch.as_tensor(asked.seen.legal, device=self.where))
        if not name.startswith("device"):
            most = torch.full_like(most, float(np.log(logits.shape[2])))
        drawn = free[rows]
        self._heads.append(
            Head(
                name,
                asked.among(log_prob * drawn),
                asked.among(entropy * drawn),
                most,
                free,
            )
        )
        return choice

    def heads(self) -> tuple[Head, ...]:
        return tuple(self._heads)


def _rows(slot: NDArray[np.int64], at: int, where: torch.device) -> torch.Tensor:
    return torch.as_tensor(np.flatnonzero((slot == at) | (slot == _ALL)), device=where)
