"""Plans measured on this machine: what was asked in, the choice, lines and JSON out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.cli.resolve import step_of
from placewright.costs import Table
from placewright.solvers import Auto
from placewright.units import format_seconds

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.profiling.selection import Remeasured, Wary
    from placewright.solvers import Solver


def asked_measurement(model: str, training: bool, optimizer: str | None, k: int) -> Remeasured:
    """The choice among the best k plans by measured time."""
    from placewright.profiling.selection import Remeasured
    from placewright.runtime import Meter

    return Remeasured(Meter(model, *step_of(model, training, optimizer)), k)


def trusted(problem: Problem, solver: Solver) -> Wary | None:
    """How one of `auto`'s plans is chosen unmeasured, of a problem with times of a machine."""
    if not isinstance(solver, Auto) or not isinstance(problem.costs, Table):
        return None
    if not problem.costs.machine:
        return None
    from placewright.profiling.selection import Wary

    return Wary()


def measured_data(choice: Remeasured) -> list[dict[str, object]]:
    """What was measured, best first, as plain data."""
    return [
        {
            "found_by": one.found.found_by,
            "simulated": one.found.key[1],
            "seconds": None if one.measured.failure else one.measured.seconds,
            "spread": one.measured.spread,
            "failure": one.measured.failure,
        }
        for one in choice.ranked
    ]


def measured_lines(choice: Remeasured, method: str) -> list[str]:
    """What was measured, best first, a line each; the first was taken."""
    lines = [
        "measured on this machine, the quickest that fits is taken; what is below is simulated"
    ]
    for one in choice.ranked:
        took = one.measured.failure or (
            f"{format_seconds(one.measured.seconds)} measured, spread {one.measured.spread:.0%}"
        )
        name = one.found.found_by or method
        lines.append(f"  {name:<16} {took}, {format_seconds(one.found.key[1])} simulated")
    return [*lines, ""]
