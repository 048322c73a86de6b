"""GO's decisions: logits in, choices out, drawn or as they were; and how sure each was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.policies.policy import Head
from placewright.policies.seq2seq import NEVER, chosen, even_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.policies.go_graph import Seen

_FEW = 4.0  # groups of units that an episode draws anew at least, on average


class Luck:
    """Random numbers for episodes; the same seed gives the same ones on the same kind of machine.

    Args:
        share: Of the decisions, that are drawn at most; and whether units share their luck.
    """

    def __init__(
        self,
        seen: Seen,
        count: int,
        seed: int,
        where: torch.device,
        noise: float,
        greedy: bool,
        share: tuple[float, bool],
    ) -> None:
        self.seen, self.count, self.where = seen, count, where
        self.noise, self.greedy = noise, greedy
        self.most, self.together = share
        self._generator = torch.Generator(where).manual_seed(seed)
        self._rng = np.random.default_rng(seed)

    def gumbel(self, choices: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Episodes × units × choices: what is added to logits; and units that are drawn at all."""
        units = len(self.seen)
        free = torch.ones(self.count, units, dtype=torch.bool, device=self.where)
        if self.greedy:
            return torch.zeros(self.count, units, choices, device=self.where), free
        uniform = torch.rand(
            self.count, units, choices, generator=self._generator, device=self.where
        )
        if self.together or self.most < 1.0:
            member = self._members()
            if self.together:
                index = member[:, :, None].expand(-1, -1, choices)
                uniform = uniform.gather(1, index)
            if self.most < 1.0:
                groups = np.asarray(member.amax(dim=1).cpu()) + 1
                low = np.log(np.minimum(_FEW / groups, self.most))
                share = np.exp(self._rng.uniform(low, np.log(self.most)))
                rolled = torch.rand(self.count, units, generator=self._generator, device=self.where)
                limit = torch.as_tensor(share, device=self.where, dtype=rolled.dtype)
                free = rolled.gather(1, member) < limit[:, None]
        uniform = uniform.clamp(1e-20, 1 - 1e-7)
        return -(-uniform.log()).log() * free[:, :, None], free

    def _members(self) -> torch.Tensor:
        """Episodes × units: the groups that units are in, of a size that each episode draws."""
        levels = self.seen.clusters if self.together else self.seen.clusters[:1]
        pick = self._rng.integers(len(levels), size=self.count)
        return torch.as_tensor(np.stack([levels[at] for at in pick]), device=self.where)

    def shake(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Normal numbers, as a share of the size of each unit's logits."""
        if not self.noise:
            return None
        drawn = torch.randn(logits.shape, generator=self._generator, device=self.where)
        return drawn * self.noise * logits.square().mean(dim=2, keepdim=True).sqrt()


class Drawn:
    """Draws decisions and keeps what `score` needs to see them again."""

    def __init__(self, luck: Luck) -> None:
        self.luck = luck
        self._choices: list[tuple[str, int]] = []
        self._kept: dict[str, torch.Tensor] = {}
        self._sure: dict[str, torch.Tensor] = {}

    def __call__(
        self, task: str, at: int, logits: torch.Tensor, legal: torch.Tensor
    ) -> torch.Tensor:
        name = f"{task}/{at}"
        gumbel, free = self.luck.gumbel(logits.shape[2])
        added = self.luck.shake(logits)
        if added is not None:
            self._kept[f"{name}/added"] = added
            logits = logits + added
        logits = logits.masked_fill(~legal, NEVER)
        choice = (logits + gumbel).argmax(dim=2)
        self._choices.append((task, at))
        self._kept[name], self._kept[f"{name}/free"] = choice, free
        self._sure[name] = chosen(logits, choice)[0] * free
        return choice

    def done(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        """The actions by name, and the log-probabilities in the order of the heads."""
        actions = {}
        for task, at in self._choices:
            name = _key(self._choices, task, at)
            for more in ("", "/free", "/added"):
                value = self._kept.get(f"{task}/{at}{more}")
                if value is not None:
                    actions[name + more.replace("/", "_")] = value.cpu().numpy()
        order = ordered(self._choices)
        found = torch.cat([self._sure[f"{task}/{at}"] for task, at in order], dim=1)
        return actions, found.float().cpu().numpy()


class Forced:
    """Takes decisions as they were taken and says how likely they are now, with gradients."""

    def __init__(
        self, seen: Seen, actions: Mapping[str, NDArray[Any]], where: torch.device
    ) -> None:
        self.seen, self.actions, self.where = seen, actions, where
        passes = sum(name.startswith("device_pass") for name in actions if name[-1].isdigit())
        self._last = passes
        self._heads: dict[tuple[str, int], Head] = {}

    def __call__(
        self, task: str, at: int, logits: torch.Tensor, legal: torch.Tensor
    ) -> torch.Tensor:
        name = task if task != "device" or at == self._last else f"device_pass{at}"
        choice = torch.as_tensor(self.actions[name], dtype=torch.long, device=self.where)
        free = torch.as_tensor(self.actions[f"{name}_free"], device=self.where)
        if f"{name}_added" in self.actions:
            logits = logits + torch.as_tensor(self.actions[f"{name}_added"], device=self.where)
        log_prob, entropy = chosen(logits.masked_fill(~legal, NEVER), choice)
        # Entropy is that of all decisions, drawn or not: a floor under it is about the policy.
        head = Head(name, log_prob * free, entropy, even_entropy(legal))
        self._heads[task, at] = head
        return choice

    def heads(self) -> tuple[Head, ...]:
        return tuple(self._heads[key] for key in ordered(list(self._heads)))


def ordered(choices: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The order of the heads: earlier passes, other tasks, and the last pass's devices."""
    devices = [each for each in choices if each[0] == "device"]
    others = [each for each in choices if each[0] != "device"]
    return [*devices[:-1], *others, *devices[-1:]]


def _key(choices: list[tuple[str, int]], task: str, at: int) -> str:
    last = max(number for name, number in choices if name == task)
    return task if task != "device" or at == last else f"device_pass{at}"
