"""Selection by measured step time, and its lines and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.cli.resolve import training_mode
from placewright.costs import Table
from placewright.solvers import Auto
from placewright.units import format_seconds

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.profiling.selection import CautiousChoice, MeasuredChoice
    from placewright.solvers import Solver


def measured_selection(model: str, training: bool, optimizer: str | None, k: int) -> MeasuredChoice:
    """The choice among the best k plans by measured time."""
    from placewright.profiling.selection import MeasuredChoice
    from placewright.runtime import Meter

    return MeasuredChoice(Meter(model, *training_mode(model, training, optimizer)), k)


def cautious_selection(problem: Problem, solver: Solver) -> CautiousChoice | None:
    """How one of `auto`'s plans is chosen unmeasured, of a problem with times of a machine."""
    if not isinstance(solver, Auto) or not isinstance(problem.costs, Table):
        return None
    if not problem.costs.machine:
        return None
    from placewright.profiling.selection import CautiousChoice

    return CautiousChoice()


def measured_data(selection: MeasuredChoice) -> list[dict[str, object]]:
    """What was measured, best first, as plain data."""
    return [
        {
            "found_by": candidate.candidate.found_by,
            "simulated": candidate.candidate.key[1],
            "seconds": None if candidate.measurement.failure else candidate.measurement.seconds,
            "spread": candidate.measurement.spread,
            "failure": candidate.measurement.failure,
        }
        for candidate in selection.ranking
    ]


def measured_lines(selection: MeasuredChoice, method: str) -> list[str]:
    """What was measured, best first, a line each; the first was taken."""
    lines = [
        "measured on this machine, the quickest that fits is taken; what is below is simulated"
    ]
    for candidate in selection.ranking:
        timing = candidate.measurement.failure or (
            f"{format_seconds(candidate.measurement.seconds)} measured, spread {candidate.measurement.spread:.0%}"
        )
        name = candidate.candidate.found_by or method
        lines.append(
            f"  {name:<16} {timing}, {format_seconds(candidate.candidate.key[1])} simulated"
        )
    return [*lines, ""]
