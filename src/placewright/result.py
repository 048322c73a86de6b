"""A result: the best plan of a search, its quality, and the cost of finding it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from placewright.html_tables import html_card, html_table
from placewright.units import UNLIMITED, format_bytes, format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.layers import LayerGroup
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


@dataclass(frozen=True, eq=False, repr=False)
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
        edited: Whether the plan was edited in its file, so that the figures are not its own.
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
    problem: Problem | None = None
    timeline: Timeline | None = None
    interrupted: bool = False
    edited: bool = False
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

    @cached_property
    def layers(self) -> tuple[LayerGroup, ...]:
        """Where the model's layers are; () if the graph has no modules, or the problem is unknown.

        Layers that the plan places alike are one group.
        """
        if self.problem is None:
            return ()
        from placewright.layers import layer_groups  # here: it loads numpy

        return layer_groups(self.problem, self.plan)

    @property
    def throughput(self) -> dict[str, float]:
        """`samples` and `tokens` per second, where the graph says how many a step processes."""
        if self.problem is None or not self.objective_value > 0:
            return {}
        graph = self.problem.graph
        counts = {"samples": graph.samples, "tokens": graph.tokens}
        return {
            noun: count / self.objective_value
            for noun, count in counts.items()
            if count is not None
        }

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
        plans = "plan" if self.evaluations == 1 else "plans"
        effort = f"{self.evaluations:,} {plans} evaluated in {format_seconds(self.seconds)}"
        interrupted = "interrupted: this is the best plan so far" if self.interrupted else ""
        rates = ", ".join(format_rate(rate, noun) for noun, rate in self.throughput.items())
        bound = bound if self.fits and self.bound > 0 else ""
        layers = map(str, self.layers)
        lines = (bound, rates if self.fits else "", *layers, effort, interrupted)
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
            f"{name} {format_seconds(value)} by {self.solver}" if self.fits else fits,
            filter(None, lines),
            html_table(columns, rows),
        )

    def __str__(self) -> str:
        objective_name = "step time" if self.objective == "step" else "period"
        value = format_seconds(self.objective_value)
        effort = f"{self.solver}, {self.evaluations:,} evaluations"
        if self.fits:
            bound = f"lower bound {format_seconds(self.bound)} ({self.bound_name})"
            gap = format_percent(self.gap)
            lines = [f"{objective_name} {value}, {bound}, gap {gap}; {effort}"]
            rates = [format_rate(rate, noun) for noun, rate in self.throughput.items()]
            lines += [f"  {', '.join(rates)}"] if rates else []
        else:
            over = format_bytes(self.overflow)
            lines = [
                f"does not fit: out of memory by {over}; {objective_name} {value} if it did; "
                f"{effort}"
            ]
        lines += [f"  {group}" for group in self.layers]
        lines += [
            f"  {use.name:<10} {use.ops:>7,} ops  busy {format_seconds(use.busy):>10}  "
            f"peak {format_bytes(use.peak)} of {format_bytes(use.limit)}"
            for use in self.devices
        ]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        headline = str(self).split("\n", 1)[0]
        return f"<Result: {'; '.join([headline, *map(str, self.layers)])}>"
