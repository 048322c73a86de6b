"""Results as JSON in seconds and bytes, and as files."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from placewright.cli.render.text import bytes_sent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from placewright.explanations import Explanation
    from placewright.layers import LayerGroup
    from placewright.problem import Problem
    from placewright.reporting import LearningCurve
    from placewright.result import Result
    from placewright.simulator import InFlight
    from placewright.solvers import Comparison

Data = dict[str, Any]


def print_json(data: Data) -> None:
    """Print one object as strict JSON: a number that is not finite is null."""
    print(json.dumps(_strict_json(data), indent=2, allow_nan=False))


def problem_data(problem: Problem) -> Data:
    """The problem, for every command that evaluates plans."""
    return {
        "model": problem.graph.name,
        "cluster": problem.cluster.name,
        "ops": len(problem.graph),
        "objective": problem.objective,
        "discipline": problem.discipline,
    }


def single_device_data(comparison: Comparison) -> Data:
    """The best single device."""
    single = comparison.single_device
    return {
        "device": comparison.single_device_name,
        "step_time": single.step_time,
        "period": single.period,
        "fits": single.fits,
        "overflow": single.overflow,
    }


def result_data(problem: Problem, result: Result) -> Data:
    """One method's result, without the plan."""
    memory = {device.name: device.memory for device in problem.cluster.devices}
    return {
        "method": result.solver,
        "found_by": result.found_by,
        "step_time": result.step_time,
        "period": result.period,
        "objective": result.objective,
        "bound": result.bound,
        "bound_name": result.bound_name,
        "gap": result.gap if result.fits else None,
        "fits": result.fits,
        "overflow": result.overflow,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "seed": result.seed,
        "notes": list(result.notes),
        "devices": [
            {
                "name": use.name,
                "ops": use.ops,
                "busy": use.busy,
                "peak": use.peak,
                "limit": use.limit,
                "reserve": use.reserve,
                "memory": memory[use.name],
            }
            for use in result.devices
        ],
    }


def in_flight_data(in_flight: InFlight) -> Data:
    """Several steps in flight at once."""
    return {
        "steps": in_flight.steps,
        "seconds": in_flight.seconds,
        "interval": in_flight.interval,
        "peak": in_flight.peak.tolist(),
        "overflow": in_flight.overflow,
    }


def answer_data(comparison: Comparison) -> Data:
    """What `place` and `simulate` print: the problem, the result and the best single device."""
    tensors, weights = bytes_sent(comparison)
    return {
        **problem_data(comparison.problem),
        **result_data(comparison.problem, comparison.best),
        "best_single": single_device_data(comparison),
        "layers": [layer_data(group) for group in comparison.best.layers],
        "throughput": comparison.best.throughput if comparison.best.fits else {},
        "sent": tensors,
        "streamed": weights,
        "interrupted": comparison.interrupted,
    }


def layer_data(group: LayerGroup) -> Data:
    """Layers that a plan places alike."""
    return {
        "layers": group.layers,
        "modules": list(group.modules),
        "devices": list(group.devices),
        "mixed": group.mixed,
        "weights": group.weight_bytes,
        "streamed": group.streamed_bytes,
        "streamed_from": list(group.sources),
    }


def save_result(result: Result, path: Path | None) -> list[str]:
    """Write a result to a file, if one is named; a line that says so.

    Raises:
        FileError: It cannot be written.
    """
    if path is None:
        return []
    from placewright import files

    files.save(result, path)
    return [f"plan written to {path}"]


def save_timeline(comparison: Comparison, path: Path | None) -> list[str]:
    """Write the best result's timeline as a trace, if a file is named; a line that says so.

    Raises:
        FileError: It cannot be written.
    """
    if path is None:
        return []
    from placewright.reporting import save_trace
    from placewright.solvers.results import timeline_of

    problem = comparison.best.problem or comparison.problem
    save_trace(problem, timeline_of(problem, comparison.best), path)
    return [f"trace written to {path}: open it at ui.perfetto.dev"]


def save_report(
    comparison: Comparison,
    path: Path | None,
    explanation: Explanation | None = None,
    notes: Sequence[str] = (),
    learning_curve: LearningCurve | None = None,
) -> list[str]:
    """Write a page, if a file is named; a line that says so.

    Raises:
        FileError: It cannot be written.
    """
    if path is None:
        return []
    from placewright.reporting import report

    report(comparison, path, explanation=explanation, notes=notes, learning_curve=learning_curve)
    return [f"report written to {path}: open it in a browser"]


def _strict_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
