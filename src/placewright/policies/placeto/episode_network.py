"""Placeto's graph network over the steps of whole episodes of one problem.

Logits are those of `Placeto.logits` at each step, but for rounding (a test). Here a vector is
computed once for all steps that have it (`episode_layout.py`), and what depends on nothing but a
group, its status and its device once for all episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from placewright.policies.placeto.episode_layout import EpisodeLayout

if TYPE_CHECKING:
    from placewright.policies.placeto.graph_features import PlacetoObservation
    from placewright.policies.placeto.policy import Placeto

_STATUSES = 3  # of a group: to be visited, current, visited
_CHUNK_NUMBERS = 2**19  # of vectors at once; of more chunks they are computed again for gradients


class EpisodeNetwork:
    """The graph network of a policy on one problem."""

    def __init__(self, policy: Placeto, observation: PlacetoObservation) -> None:
        self.policy = policy
        self.layout = layout = EpisodeLayout.of(observation, policy.config.rounds)
        device, first = observation.legal.device, layout.first
        self.groups, self.devices = observation.legal.shape
        status = np.clip(1 + first.step - first.group, 0, _STATUSES - 1)
        self.first_group = torch.as_tensor(first.group, device=device)
        self.is_visited = torch.as_tensor(status == 2, device=device)[:, None]
        self.first_entry = self.devices * (
            _STATUSES * self.first_group + torch.as_tensor(status, device=device)
        )
        self.first_bounds = np.searchsorted(first.step, np.arange(self.groups + 1)).tolist()
        statuses = torch.eye(_STATUSES, device=device)[:, 1:]
        devices = torch.eye(self.devices, device=device)
        size = (self.groups, _STATUSES, self.devices)
        self.attributes = torch.cat(
            [
                observation.attributes[:, None, None].expand(*size, -1),
                statuses[None, :, None].expand(*size, -1),
                devices.expand(*size, -1),
            ],
            dim=3,
        ).flatten(0, 2)
        """Attributes of a group by status and device."""

    def tables(self) -> list[torch.Tensor]:
        """Vectors before any message, and the messages of each direction, by `attributes`."""
        embeddings = self.policy.read(self.attributes)
        return [embeddings, *(tell(embeddings) for tell in self.policy.tell)]

    def logits(self, start: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        """Episodes × steps × devices.

        Args:
            start, choice: Episodes × groups: devices at first, and those that were chosen.
        """
        tables, parts = self.tables(), []
        size = max(1, _CHUNK_NUMBERS // (len(self.layout.pairs) * tables[0].shape[1]))
        for first in range(0, len(start), size):
            chunk = slice(first, first + size)
            inputs = (start[chunk].T, choice[chunk].T, *tables)
            if torch.is_grad_enabled() and size < len(start):
                parts.append(checkpoint(self._logits, *inputs, use_reentrant=False))
            else:
                parts.append(self._logits(*inputs))
        return torch.cat(parts, dim=1).transpose(0, 1)

    def _logits(
        self,
        start: torch.Tensor,
        choice: torch.Tensor,
        embeddings: torch.Tensor,
        *message_tables: torch.Tensor,
    ) -> torch.Tensor:
        """Steps × episodes × devices, from devices of groups × episodes."""
        layout, policy, group = self.layout, self.policy, self.first_group
        entry = self.first_entry[:, None] + torch.where(
            self.is_visited, choice[group], start[group]
        )
        own = functional.embedding(entry, embeddings)
        ends = []
        for levels, table, tell, hear in zip(
            layout.levels, message_tables, policy.tell, policy.hear, strict=True
        ):
            messages = functional.embedding(entry, table)
            for number, level in enumerate(levels, 1):
                heard = hear(level.incoming(messages))
                x = torch.addcmul(own.index_select(0, level.own), level.hears, heard)
                if number < len(levels):
                    messages = tell(x)
            ends.append(x)
        pairs = torch.cat(
            [end.index_select(0, row) for end, row in zip(ends or [own], layout.last, strict=True)],
            dim=2,
        )
        pooled = [pairs.index_select(0, layout.current)]
        for pool, each, after in zip(layout.pools, policy.each, policy.pool, strict=True):
            if pool is None:
                nothing = 0.0 * each(pairs[:1, :1])  # its parameters have a gradient, of zeros
                pooled.append(after(nothing).expand_as(pooled[0]))
            else:
                pooled.append(after(pool.sums(each(pairs.index_select(0, pool.rows)))))
        logits: torch.Tensor = policy.out(torch.cat(pooled, dim=2))
        return logits


class EpisodeSteps:
    """Steps of episodes of one problem as they are sampled: logits of one step after the other."""

    def __init__(self, network: EpisodeNetwork, episodes: int) -> None:
        self.network, policy = network, network.policy
        self.embeddings, *self.message_tables = network.tables()
        hidden = self.embeddings.shape[1]
        layout, groups = network.layout, network.groups
        self.own = self.embeddings.new_zeros((groups, episodes, hidden))
        self.messages = [[torch.zeros_like(self.own) for _ in levels] for levels in layout.levels]
        self.ends = [torch.zeros_like(self.own) for _ in layout.levels] or [self.own]
        width = len(self.ends) * hidden
        self.pooled = [self.own.new_zeros((groups, episodes, width)) for _ in policy.pool]

    @torch.no_grad()
    def logits(self, step: int, device: torch.Tensor) -> torch.Tensor:
        """Episodes × devices at a step, the next one each time.

        Args:
            device: Groups × episodes: the placement at this step.
        """
        network, policy, layout = self.network, self.network.policy, self.network.layout
        rows = slice(*network.first_bounds[step : step + 2])
        group = network.first_group[rows]
        entry = network.first_entry[rows, None] + device[group]
        self.own[group] = self.embeddings[entry]
        for levels, table, messages, end, hears, tell, hear in zip(
            layout.levels,
            self.message_tables,
            self.messages,
            self.ends,
            layout.neighbours,
            policy.tell,
            policy.hear,
            strict=False,
        ):
            messages[0][group] = table[entry]
            for number, level in enumerate(levels):
                changed, incoming = level.by_step[step]
                heard = hear(incoming.multiply(messages[number]))
                x = torch.addcmul(self.own[changed], hears[changed], heard)
                if number + 1 < len(levels):
                    messages[number + 1][changed] = tell(x)
            end[changed] = x
        pooled = [torch.cat([end[step] for end in self.ends], dim=1)]
        for pool, values, each, after in zip(
            layout.pools, self.pooled, policy.each, policy.pool, strict=True
        ):
            if pool is None:
                pooled.append(after(torch.zeros_like(pooled[0][:1])).expand_as(pooled[0]))
                continue
            changed, total = pool.by_step[step]
            if len(changed):
                values[changed] = each(torch.cat([end[changed] for end in self.ends], dim=2))
            pooled.append(after(total.multiply(values)[0]))
        logits: torch.Tensor = policy.out(torch.cat(pooled, dim=1))
        return logits
