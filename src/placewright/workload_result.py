"""The result of planning a workload: its best plan, and the result of each call under it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.errors import PlanError, nearest
from placewright.workload_plan import unused_staging

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.plan import Plan
    from placewright.problem import Objective
    from placewright.result import Result
    from placewright.workload import Workload
    from placewright.workload_plan import WorkloadPlan


@dataclass(frozen=True, eq=False)
class WorkloadResult:
    """The best plan found for a workload, evaluated.

    Args:
        plan: Devices of the weights, and a plan for each call's own graph.
        calls: The result of each call. Its plan and its problem are those of `Workload.problems`:
            they have the weights and states of the other calls too.
        counts: How often each call is made.
        bound: A lower bound in seconds on the weighted sum; if the plan fits, for plans that fit.
        bound_name: The name of the bound's proof.
        found_by: The part of the search that found the plan.
        history: (evaluations, seconds, best weighted sum) each time the best improved.
        options: The command line's options, from which the workload can be built again.
        workload: What was solved; a result from a file has none.
        interrupted: Whether the search was interrupted; the plan is the best until then.
    """

    solver: str
    plan: WorkloadPlan
    calls: tuple[Result, ...]
    counts: tuple[float, ...]
    bound: float
    bound_name: str
    evaluations: int
    seconds: float
    seed: int
    found_by: str = ""
    history: tuple[tuple[int, float, float], ...] = ()
    options: Mapping[str, str | bool | tuple[str, ...]] = field(default_factory=dict)
    workload: Workload | None = field(default=None, repr=False)
    interrupted: bool = False

    @property
    def objective(self) -> Objective:
        return self.calls[0].objective

    @property
    def objective_value(self) -> float:
        """The sum of the calls' step times (or periods), each times its count."""
        return weighted_sum(self.counts, [call.objective_value for call in self.calls])

    @property
    def overflow(self) -> int:
        """Bytes over the memory limits: of each device in its worst call, summed over devices."""
        return worst_overflow(
            [[use.peak - use.limit for use in call.devices] for call in self.calls],
            self.plan.plans,
        )

    @property
    def fits(self) -> bool:
        return self.overflow == 0

    @property
    def peaks(self) -> dict[str, int]:
        """The most bytes of each device in any call, with the staging buffer that calls share."""
        peaks: dict[str, int] = {}
        for call, unused in zip(self.calls, unused_staging(self.plan.plans), strict=True):
            for use, size in zip(call.devices, unused, strict=True):
                peaks[use.name] = max(peaks.get(use.name, 0), use.peak + size)
        return peaks

    @property
    def gap(self) -> float:
        """The distance from the bound, as a share of the bound."""
        if self.bound > 0:
            return self.objective_value / self.bound - 1
        return 0.0 if self.objective_value == 0 else math.inf

    @property
    def key(self) -> tuple[int, float]:
        """Plans are compared by overflow, then by the objective."""
        return self.overflow, self.objective_value

    def __getitem__(self, call: str) -> Result:
        """The result of a call by its name."""
        names = self.plan.calls
        if call not in names:
            raise PlanError(f"the result has no call {call!r}: {nearest(call, names)}")
        return self.calls[names.index(call)]

    def __str__(self) -> str:
        name = "step times" if self.objective == "step" else "periods"
        fits = "fits" if self.fits else f"{self.overflow / 2**30:.2f} GiB over"
        lines = [
            f"{self.solver}: sum of {name} {self.objective_value * 1e3:.4g} ms, "
            f"bound {self.bound * 1e3:.4g} ms ({self.bound_name}), gap {self.gap:.1%}, {fits}, "
            f"{self.evaluations:,} evaluations"
        ]
        for call_name, count, call in zip(self.plan.calls, self.counts, self.calls, strict=True):
            lines.append(f"  {call_name}: {count:g} x {call.objective_value * 1e3:.4g} ms")
            lines += [
                f"    {use.name:<10} {use.ops:>7,} ops  busy {use.busy * 1e3:10.4g} ms  "
                f"peak {use.peak / 2**30:8.3f} of {use.limit / 2**30:.3f} GiB"
                for use in call.devices
            ]
        return "\n".join(lines)


def weighted_sum(counts: tuple[float, ...], values: list[float]) -> float:
    """The sum of the calls' values, each times its count."""
    return math.fsum(count * value for count, value in zip(counts, values, strict=True))


def worst_overflow(excess: list[list[int]], plans: Sequence[Plan]) -> int:
    """The bytes over of each device in its worst call, summed.

    Args:
        excess: The peak less the capacity, from calls × devices.
        plans: Of the calls, which share one staging buffer on each device.
    """
    totals = [
        [over + unused for over, unused in zip(row, extra, strict=True)]
        for row, extra in zip(excess, unused_staging(plans), strict=True)
    ]
    return sum(max(0, *column) for column in zip(*totals, strict=True))
