"""Judges the plans of an environment by lanes on a GPU; the best of them exactly.

Pass a `GpuSimulation` as the `measure` of an `Environment`. Policies learn from float32 times. The
best plan of each batch has been evaluated by the exact kernel, and so has every plan of which the
lanes cannot say whether it fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from placewright.errors import ConfigError
from placewright.outcome import Outcome
from placewright.simulator.gpu_lanes import GpuLanes
from placewright.training.environment import best_plan, simulate_plans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.simulator.lane_batch import LaneVerdict

_EXACT_PLANS = 16  # of the best, evaluated exactly at a time: as many as the CPU's lanes take


class GpuSimulation:
    """Judges plans × ops of one problem in batches on a GPU.

    Plans of a batch share one order of ops, and have no fused ops. The overflow of a plan that
    certainly does not fit is the least that it can be; all other figures of memory are exact.

    Args:
        device: As for `GpuLanes`.

    Raises:
        ProblemError: The problem is not one that lanes can evaluate.
        ConfigError: There is no such GPU.
    """

    def __init__(self, problem: Problem, device: str = "cuda") -> None:
        self.problem, self.device = problem, device
        self._lanes = GpuLanes(problem, device=device)
        self._order: bytes | None = None
        self.exact_plans = 0
        """Plans that were evaluated exactly."""

    def __call__(
        self,
        problem: Problem,
        placements: NDArray[np.int32],
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
    ) -> Outcome:
        """The outcome of plans × ops.

        Raises:
            ConfigError: The plans have several orders, or fused ops.
            PlanError: A plan breaks a constraint.
        """
        order = self._shared_order(problem, priority, fusion)
        columns = torch.from_numpy(np.ascontiguousarray(placements)).to(self._lanes.device)
        verdict = self._lanes.evaluate(columns.to(torch.uint8).T.contiguous())
        outcome, is_known = _outcome(verdict)
        is_exact = np.zeros(len(placements), dtype=bool)
        self._judge_exactly(placements, order, outcome, is_exact, np.flatnonzero(~is_known))
        # The best plans, until the best of all is an exact one.
        while len(placements) and not is_exact[best_plan(outcome)]:
            ranking = np.lexsort((outcome.seconds, outcome.overflow))
            best = ranking[~is_exact[ranking]][:_EXACT_PLANS]
            self._judge_exactly(placements, order, outcome, is_exact, best)
        return outcome

    def _judge_exactly(
        self,
        placements: NDArray[np.int32],
        order: NDArray[np.float64] | None,
        outcome: Outcome,
        is_exact: NDArray[np.bool_],
        chosen: NDArray[np.int64],
    ) -> None:
        """Put the exact figures of some plans into an outcome."""
        if not len(chosen):
            return
        priority = None if order is None else np.tile(order, (len(chosen), 1))
        exact = simulate_plans(self.problem, placements[chosen], priority)
        outcome.seconds[chosen], outcome.overflow[chosen] = exact.seconds, exact.overflow
        outcome.overflow_share[chosen], is_exact[chosen] = exact.overflow_share, True
        self.exact_plans += len(chosen)

    def _shared_order(
        self,
        problem: Problem,
        priority: NDArray[np.float64] | None,
        fusion: NDArray[np.int32] | None,
    ) -> NDArray[np.float64] | None:
        if problem is not self.problem:
            raise ConfigError("a GpuSimulation judges plans of its own problem: make one for each")
        if fusion is not None:
            raise ConfigError(
                "lanes on a GPU cannot evaluate plans with fused ops: train with the CPU's "
                "simulator"
            )
        if priority is not None and (priority != priority[:1]).any():
            raise ConfigError(
                "lanes on a GPU evaluate plans of one order, and these have several: train with "
                "the CPU's simulator"
            )
        order = None if priority is None or not len(priority) else np.ascontiguousarray(priority[0])
        key = None if order is None else order.tobytes()
        if key != self._order:
            self._lanes = GpuLanes(self.problem, priority=order, device=self.device)
            self._order = key
        return order


def _outcome(verdict: LaneVerdict) -> tuple[Outcome, NDArray[np.bool_]]:
    """The outcome by the lanes, and of which plans it can be used: whether they fit is known."""
    least = verdict.least_excess
    share = least.double() / verdict.capacity.clamp(min=1)[:, None]
    overflow = least.sum(dim=0)
    is_known = (verdict.fits | (overflow > 0)) & ~verdict.is_tied
    outcome = Outcome(
        verdict.step_time.double().cpu().numpy(),
        overflow.cpu().numpy(),
        share.sum(dim=0).cpu().numpy(),
    )
    return outcome, is_known.cpu().numpy()
