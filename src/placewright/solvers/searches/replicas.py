"""Replicas of a population: plans of groups as one PyTorch tensor, changed and chosen in batches.

Groups × replicas, one column a plan, as lanes on a GPU read them. All random numbers come from one
generator of the tensor's own device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CROSSOVER_SHARE = 0.1  # of the proposals: a run of groups as another replica has it
_BOUNDARY_SHARE = 0.4  # of the moves: to the device of the group before the run, or after it


@dataclass(frozen=True, eq=False)
class Replicas:
    """Makes and chooses columns of devices.

    Args:
        positions: Orders × groups: where each group stands in each order that runs are taken from.
        devices: Devices of the cluster.
        generator: Draws all random numbers.
    """

    positions: torch.Tensor
    devices: int
    generator: torch.Generator

    @classmethod
    def of(cls, orders: NDArray[np.int64], devices: int, device: str, seed: int) -> Replicas:
        """For orders of groups (permutations), on `cpu` or a GPU."""
        positions = torch.from_numpy(orders.argsort(axis=1)).to(device)
        return cls(positions, devices, torch.Generator(device).manual_seed(seed))

    def propose(self, rows: torch.Tensor) -> torch.Tensor:
        """A neighbour of each column: one run of groups elsewhere, or as another column has it.

        The lengths of runs are log-uniform, so that single groups and halves of the graph are
        moved about as often as what lies between.
        """
        groups, count = rows.shape
        position = self.positions[self._integers(len(self.positions), count)].T
        longest = torch.tensor(float(groups), device=rows.device).log()
        length = (self._uniform(count) * longest).exp().long()
        first = (self._uniform(count) * (groups - length + 1).float()).long()
        in_run = (position >= first) & (position < first + length)
        # The groups next to the run; at an end of the order, the run's own first or last.
        before, after = (first - 1).clamp(min=0), (first + length).clamp(max=groups - 1)
        beside = torch.where(self._uniform(count) < 0.5, before, after)
        group_beside = (position == beside).int().argmax(dim=0)
        boundary = rows.gather(0, group_beside[None])[0]
        target = torch.where(
            self._uniform(count) < _BOUNDARY_SHARE,
            boundary,
            self._integers(self.devices, count).to(rows.dtype),
        )
        moved = torch.where(in_run, target, rows)
        mates = rows[:, self._integers(count, count)]
        crossed = torch.where(in_run, mates, rows)
        return torch.where(self._uniform(count) < _CROSSOVER_SHARE, crossed, moved)

    def accept(
        self, cost: torch.Tensor, proposed_cost: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Which proposals replace their replicas: Metropolis, by relative cost."""
        increase = (proposed_cost - cost) / cost.clamp(min=torch.finfo(cost.dtype).tiny)
        return self._uniform(len(cost)) < (-increase / temperature).clamp(max=0.0).exp()

    def resample(self, cost: torch.Tensor, hot: float, cold: float) -> torch.Tensor:
        """The replica that each one becomes as the temperature falls from hot to cold.

        Drawn by the weight exp(-(1/cold - 1/hot) E), E relative to the best.
        """
        excess = cost / cost.min().clamp(min=torch.finfo(cost.dtype).tiny) - 1.0
        weight = (-(1.0 / cold - 1.0 / hot) * excess.double()).exp()
        return torch.multinomial(weight, len(cost), replacement=True, generator=self.generator)

    def _uniform(self, count: int) -> torch.Tensor:
        return torch.rand(count, generator=self.generator, device=self.positions.device)

    def _integers(self, limit: int, count: int) -> torch.Tensor:
        return torch.randint(
            limit, (count,), generator=self.generator, device=self.positions.device
        )
