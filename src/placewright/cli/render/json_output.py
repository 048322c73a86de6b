"""Results as JSON in seconds and bytes, and as files."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.cli.answer import Evaluation, SingleDeviceResult
    from placewright.problem import Problem
    from placewright.reporting import Comparison
    from placewright.result import Result
    from placewright.simulator import InFlight

Data = dict[str, Any]


def print_json(data: Data) -> None:
    """One object on stdout, as strict JSON: what is not a finite number is null."""
    print(json.dumps(_strict_json(data), indent=2, allow_nan=False))


def problem_data(problem: Problem) -> Data:
    """What every command that judges plans says of the problem."""
    return {
        "model": problem.graph.name,
        "cluster": problem.cluster.name,
        "ops": len(problem.graph),
        "objective": problem.objective,
        "discipline": problem.discipline,
    }


def single_device_data(single_device: SingleDeviceResult) -> Data:
    """The best single device."""
    return {
        "device": single_device.device,
        "step_time": single_device.step_time,
        "period": single_device.period,
        "fits": single_device.fits,
        "overflow": single_device.overflow,
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
        "gap": result.gap,
        "fits": result.fits,
        "overflow": result.overflow,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "seed": result.seed,
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


def evaluation_data(evaluation: Evaluation) -> Data:
    """What `place` and `simulate` print: the problem, the result and what to hold it against."""
    tensors, weights = evaluation.bytes_sent
    return {
        **problem_data(evaluation.problem),
        **result_data(evaluation.problem, evaluation.result),
        "best_single": single_device_data(evaluation.single_device),
        "sent": tensors,
        "streamed": weights,
        "interrupted": evaluation.interrupted,
    }


def save_files(evaluation: Evaluation, output: Path | None, trace: Path | None) -> list[str]:
    """Write the files that are asked for, and say which.

    Raises:
        FileError: One cannot be written.
    """
    messages = []
    if output is not None:
        from placewright import files

        files.save(evaluation.result, output)
        messages.append(f"plan written to {output}")
    if trace is not None:
        from placewright.reporting import save_trace

        save_trace(evaluation.problem, evaluation.timeline, trace)
        messages.append(f"trace written to {trace}: open it at ui.perfetto.dev")
    return messages


def save_report(content: Comparison, path: Path) -> list[str]:
    """Write a page, and say so.

    Raises:
        FileError: It cannot be written.
    """
    from placewright.reporting import save_page

    save_page(content, path)
    return [f"report written to {path}: open it in a browser"]


def _strict_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
