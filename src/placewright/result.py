"""A result: the best plan of a search, its quality, and the cost of finding it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.html_tables import html_card, html_table
from placewright.units import UNLIMITED, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.plan import Plan
    from placewright.problem import Objective, Problem
    from placewright.timeline import Timeline


PROVEN_GAP = 1e-9  # a plan whose gap to its bound is this small is optimal, up to rounding


@dataclass(frozen=True, eq=False)
class DeviceUse:
    """How a plan uses one device."""

    name: str
    ops: int
    busy: float
    peak: int
    limit: int
    reserve: int = 0


@dataclass(frozen=True, eq=False)
class Result:
    """The best plan found, evaluated.

    Args:
        bound: A lower bound in seconds on the problem's objective; if the plan fits, on that of
            all plans that fit.
        bound_name: The name of the bound's proof.
        overflow: Bytes over the memory limits, summed over devices.
        found_by: The part of the solver that found the plan, where it has several.
        history: (evaluations, seconds, best objective) each time the best improved.
        options: The command line's options, from which the problem can be built again; empty where
            a program built it.
        problem: The problem that was solved; a result from a file has none.
        timeline: The simulated step of the plan on that problem; likewise.
        interrupted: Whether the search was interrupted; the plan is the best until then.
        notes: What a reader of the result should know, in one sentence each.
    """

    solver: str
    plan: Plan
    objective: Objective
    step_time: float
    period: float
    bound: float
    bound_name: str
    overflow: int
    evaluations: int
    seconds: float
    seed: int
    devices: tuple[DeviceUse, ...]
    found_by: str = ""
    history: tuple[tuple[int, float, float], ...] = ()
    options: Mapping[str, str | bool | tuple[str, ...]] = field(default_factory=dict)
    problem: Problem | None = field(default=None, repr=False)
    timeline: Timeline | None = field(default=None, repr=False)
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def objective_value(self) -> float:
        """The step time or the period, as the objective says."""
        return self.step_time if self.objective == "step" else self.period

    @property
    def gap(self) -> float:
        """The distance from the bound, as a share of the bound."""
        if self.bound > 0:
            return self.objective_value / self.bound - 1
        return 0.0 if self.objective_value == 0 else math.inf

    @property
    def fits(self) -> bool:
        return self.overflow == 0

    @property
    def key(self) -> tuple[int, float]:
        """Plans are compared by overflow, then by the objective."""
        return self.overflow, self.objective_value

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        value = self.objective_value
        name = "step time" if self.objective == "step" else "period"
        fits = "" if self.fits else f"does not fit: out of memory by {format_bytes(self.overflow)}"
        bound = f"lower bound {format_seconds(self.bound)} ({self.bound_name})"
        if self.fits:
            bound += (
                ": this plan is provably optimal"
                if abs(self.gap) <= PROVEN_GAP
                else f": this plan is {format_percent(self.gap)} above"
            )
        effort = f"{self.evaluations:,} plans evaluated in {format_seconds(self.seconds)}"
        interrupted = "interrupted: this is the best plan so far" if self.interrupted else ""
        lines = (fits, bound if self.bound > 0 else "", effort, interrupted)
        rows = [
            (
                use.name,
                f"{use.ops:,}",
                format_seconds(use.busy),
                format_percent(use.busy / value if value else 0.0),
                format_bytes(use.peak),
                "no limit" if use.limit >= UNLIMITED else format_bytes(use.limit),
            )
            for use in self.devices
        ]
        columns = ("device", "ops", "busy", f"of {name}", "peak memory", "usable")
        return html_card(
            f"{name} {format_seconds(value)} by {self.solver}",
            filter(None, lines),
            html_table(columns, rows),
        )

    def __str__(self) -> str:
        objective_name = "step time" if self.objective == "step" else "period"
        fits = "fits" if self.fits else f"{self.overflow / 2**30:.2f} GiB over"
        summary = (
            f"{self.solver}: {objective_name} {self.objective_value * 1e3:.4g} ms, "
            f"bound {self.bound * 1e3:.4g} ms "
            f"({self.bound_name}), gap {self.gap:.1%}, {fits}, {self.evaluations:,} evaluations"
        )
        rows = [
            f"  {use.name:<10} {use.ops:>7,} ops  busy {use.busy * 1e3:10.4g} ms  "
            f"peak {use.peak / 2**30:8.3f} of {use.limit / 2**30:.3f} GiB"
            for use in self.devices
        ]
        return "\n".join([summary, *rows, *(f"  {note}" for note in self.notes)])
