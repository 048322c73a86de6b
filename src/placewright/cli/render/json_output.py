"""Answers in, JSON in seconds and bytes or files out."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.cli.answer import Answer, Single
    from placewright.problem import Problem
    from placewright.reporting import Content
    from placewright.result import Result
    from placewright.simulator import InFlight

Data = dict[str, Any]


def print_json(data: Data) -> None:
    """One object on stdout, as strict JSON: what is not a finite number is null."""
    print(json.dumps(_strict(data), indent=2, allow_nan=False))


def problem_data(problem: Problem) -> Data:
    """What every command that judges plans says of the problem."""
    return {
        "model": problem.graph.name,
        "cluster": problem.cluster.name,
        "ops": len(problem.graph),
        "objective": problem.objective,
        "discipline": problem.discipline,
    }


def single_data(single: Single) -> Data:
    """The best single device."""
    return {
        "device": single.device,
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


def flight_data(flight: InFlight) -> Data:
    """Several steps in flight at once."""
    return {
        "steps": flight.steps,
        "seconds": flight.seconds,
        "interval": flight.interval,
        "peak": flight.peak.tolist(),
        "overflow": flight.overflow,
    }


def answer_data(answer: Answer) -> Data:
    """What `place` and `simulate` print: the problem, the result and what to hold it against."""
    tensors, weights = answer.sent
    return {
        **problem_data(answer.problem),
        **result_data(answer.problem, answer.result),
        "best_single": single_data(answer.single),
        "sent": tensors,
        "streamed": weights,
        "interrupted": answer.interrupted,
    }


def save(answer: Answer, output: Path | None, trace: Path | None) -> list[str]:
    """Write the files that are asked for, and say which.

    Raises:
        FileError: One cannot be written.
    """
    said = []
    if output is not None:
        from placewright import files

        files.save(answer.result, output)
        said.append(f"plan written to {output}")
    if trace is not None:
        from placewright.reporting import save_trace

        save_trace(answer.problem, answer.timeline, trace)
        said.append(f"trace written to {trace}: open it at ui.perfetto.dev")
    return said


def save_report(content: Content, path: Path) -> list[str]:
    """Write a page, and say so.

    Raises:
        FileError: It cannot be written.
    """
    from placewright.reporting import save_page

    save_page(content, path)
    return [f"report written to {path}: open it in a browser"]


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_strict(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
