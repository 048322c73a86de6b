"""Selection by measured step time, and its lines and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.cli.model_loading import training_mode
from placewright.units import format_percent, format_seconds

if TYPE_CHECKING:
    from placewright.cli.problem_options import ProblemOptions
    from placewright.profiling.selection import MeasuredChoice
    from placewright.store import Store


def measured_selection(problem_options: ProblemOptions, count: int) -> MeasuredChoice:
    """The choice among the best plans by measured time."""
    from placewright.profiling.selection import MeasuredChoice
    from placewright.runtime import Meter

    model = problem_options.model
    mode = training_mode(model, problem_options.training, problem_options.optimizer)
    return MeasuredChoice(Meter(model, *mode), count)


def store_measurements(store: Store, selection: MeasuredChoice, name: str) -> None:
    """Store what the plans took on this machine."""
    from placewright.runtime.machine import this_machine
    from placewright.store.measured_plans import store_measurement

    machine = this_machine().key
    for each in selection.ranking:
        measurement = each.measurement
        store_measurement(
            store, name, each.candidate.plan, machine, measurement.seconds, measurement.spread
        )


def measured_data(selection: MeasuredChoice) -> list[dict[str, object]]:
    """The measured plans, best first, as plain data."""
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
    """The measured plans, best first, a line each; the first is taken."""
    lines = [
        "measured on this machine; the fastest plan that fits is taken, its figures are simulated"
    ]
    for ranked in selection.ranking:
        measurement = ranked.measurement
        spread = format_percent(measurement.spread, decimal_below=0)
        timing = f"{format_seconds(measurement.seconds)} measured, spread {spread}"
        name = ranked.candidate.found_by or method
        simulated = f"{format_seconds(ranked.candidate.key[1])} simulated"
        lines.append(f"  {name:<16} {measurement.failure or timing}, {simulated}")
    return [*lines, ""]
