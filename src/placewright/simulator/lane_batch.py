"""What lanes on a GPU evaluate: a batch of plans, and their verdict, all on that GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@dataclass(frozen=True, eq=False)
class LaneVerdict:
    """What plans take, one column per plan, on the device that evaluated them.

    Args:
        step_time: Plans: seconds, in float32.
        is_tied: Plans: whether transfers handed over at one instant may be served in another order,
            so that the time may be wrong by more than rounding.
        low: Devices × plans: bytes that the memory peak has at least.
        high: Devices × plans: bytes that it has at most.
        capacity: Devices: bytes that a plan may use.
    """

    step_time: torch.Tensor
    is_tied: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    capacity: torch.Tensor

    @property
    def fits(self) -> torch.Tensor:
        """Plans: whether each certainly fits."""
        return (self.high <= self.capacity[:, None]).all(dim=0)

    @property
    def least_excess(self) -> torch.Tensor:
        """Devices × plans: bytes over the capacity, at least."""
        return (self.low - self.capacity[:, None]).clamp(min=0)

    @property
    def most_excess(self) -> torch.Tensor:
        """Devices × plans: bytes over the capacity, at most."""
        return (self.high - self.capacity[:, None]).clamp(min=0)


@dataclass(frozen=True, eq=False)
class LaneBatch:
    """Storage of plans and of what they take, which is filled and evaluated again and again.

    Args:
        places: Groups × plans (or ops × plans): uint8 numbers of devices.
        verdict: That of the last evaluation.
        launch: Evaluates the plans.
    """

    places: torch.Tensor
    verdict: LaneVerdict
    launch: Callable[[], None]

    def evaluate(self) -> LaneVerdict:
        """Evaluate the plans as they are now, without waiting for it."""
        self.launch()
        return self.verdict
