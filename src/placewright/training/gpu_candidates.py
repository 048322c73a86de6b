"""The best plans of a few updates by a GPU's lanes, kept there until they are judged exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.training.gpu_objectives import LaneOutcome

_KINDS = 3  # plans that certainly fit, of which it is open, and that certainly do not


@dataclass(frozen=True, eq=False)
class CandidatePlans:
    """Distinct plans on the host, in the order in which they were found.

    Args:
        places: Plans × groups.
        seconds: By the lanes; not a number for plans that certainly do not fit.
        found_at: Plans sampled until the end of the update that found each.
    """

    places: NDArray[np.int32]
    seconds: NDArray[np.float64]
    found_at: NDArray[np.int64]


class Candidates:
    """The best distinct plans since the last `take`, a number of each kind.

    Plans that certainly fit and those of which it is open are ranked by time, others by overflow.
    """

    def __init__(self, groups: int, count: int, device: torch.device) -> None:
        self.count = count
        self._places = torch.zeros((_KINDS, count, groups), dtype=torch.uint8, device=device)
        self._rank = torch.full((_KINDS, count), torch.inf, dtype=torch.float64, device=device)
        self._found_at = torch.zeros((_KINDS, count), dtype=torch.long, device=device)
        later = torch.ones((2 * count, 2 * count), dtype=torch.bool, device=device)
        self._is_earlier = later.tril(-1)

    def add(self, places: torch.Tensor, outcome: LaneOutcome, plans: int) -> None:
        """Look at groups × plans.

        Args:
            plans: Plans sampled so far, these with them.
        """
        kinds = torch.stack([outcome.fits, outcome.is_open, outcome.is_unfit])
        seconds = outcome.seconds
        rank = torch.stack([seconds, seconds, outcome.overflow]).masked_fill(~kinds, torch.inf)
        best, index = rank.topk(min(self.count, rank.shape[1]), dim=1, largest=False)
        found = torch.full_like(index, plans)
        all_places = torch.cat([self._places, places[:, index].permute(1, 2, 0)], dim=1)
        all_ranks = torch.cat([self._rank, best], dim=1)
        same = (all_places[:, :, None] == all_places[:, None]).all(dim=3)
        size = same.shape[1]
        is_plan = torch.isfinite(all_ranks)[:, None]  # the others are empty places
        is_copy = (same & self._is_earlier[:size, :size] & is_plan).any(dim=2)
        all_ranks = all_ranks.masked_fill(is_copy, torch.inf)
        self._rank, chosen = all_ranks.topk(self.count, dim=1, largest=False)
        self._found_at = torch.cat([self._found_at, found], dim=1).gather(1, chosen)
        columns = chosen[..., None].expand(-1, -1, all_places.shape[2])
        self._places = all_places.gather(1, columns)

    def take(self) -> CandidatePlans:
        """The plans, which are then forgotten; this waits for the GPU."""
        places, rank, found_at = (
            tensor.cpu().numpy() for tensor in (self._places, self._rank, self._found_at)
        )
        self._rank = torch.full_like(self._rank, torch.inf)
        seconds = rank.copy()
        seconds[2] = np.nan
        kinds, index = np.nonzero(np.isfinite(rank))
        order = np.argsort(found_at[kinds, index], kind="stable")
        kinds, index = kinds[order], index[order]
        return CandidatePlans(
            places[kinds, index].astype(np.int32), seconds[kinds, index], found_at[kinds, index]
        )
