"""Selection by measured step time, and its lines and JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.cli.model_loading import training_mode
from placewright.cli.paths import is_this_machine
from placewright.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.cli.problem_options import ProblemOptions
    from placewright.profiling.selection import MeasuredCandidate, MeasuredChoice
    from placewright.runtime import Meter
    from placewright.store import Store


def with_measured_costs(problem_options: ProblemOptions) -> ProblemOptions:
    """The options with ops measured here, if nothing else is requested: plans are, too."""
    here = problem_options.on is not None and is_this_machine(problem_options.on)
    if here and problem_options.costs is None:
        return replace(problem_options, costs=Path("here"))
    return problem_options


def model_meter(problem_options: ProblemOptions) -> Meter:
    """What measures plans of the model."""
    from placewright.runtime import Meter

    model = problem_options.model
    mode = training_mode(model, problem_options.training, problem_options.optimizer)
    return Meter(model, *mode)


def measured_selection(problem_options: ProblemOptions, count: int) -> MeasuredChoice:
    """The choice among the best plans by measured time."""
    from placewright.profiling.selection import MeasuredChoice

    return MeasuredChoice(model_meter(problem_options), count)


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


def measured_data(ranking: Sequence[MeasuredCandidate]) -> list[dict[str, object]]:
    """Measured plans as plain data."""
    return [
        {
            "found_by": candidate.candidate.found_by,
            "simulated": candidate.candidate.key[1],
            "seconds": None if candidate.measurement.failure else candidate.measurement.seconds,
            "spread": candidate.measurement.spread,
            "failure": candidate.measurement.failure,
        }
        for candidate in ranking
    ]


def measured_lines(ranking: Sequence[MeasuredCandidate], method: str, choice: str) -> list[str]:
    """Measured plans, a line each.

    Args:
        choice: Which of them is taken.
    """
    lines = [f"measured on this machine; {choice} is taken, its figures are simulated"]
    for ranked in ranking:
        measurement = ranked.measurement
        spread = format_percent(measurement.spread, decimal_below=0)
        timing = f"{format_seconds(measurement.seconds)} measured, spread {spread}"
        name = ranked.candidate.found_by or method
        simulated = f"{format_seconds(ranked.candidate.key[1])} simulated"
        lines.append(f"  {name:<16} {measurement.failure or timing}, {simulated}")
    return [*lines, ""]
