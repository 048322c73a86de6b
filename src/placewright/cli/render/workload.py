"""A workload's result as tables and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.cli.render import tables, text
from placewright.cli.render.json_output import result_data
from placewright.result import PROVEN_GAP
from placewright.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.workload import Workload
    from placewright.workload_result import WorkloadResult

Data = dict[str, Any]


def workload_answer_data(name: str, workload: Workload, result: WorkloadResult) -> Data:
    """What `place` and `simulate` print for a workload as JSON."""
    calls = zip(workload.calls, workload.problems, result.calls, strict=True)
    return {
        "model": name,
        "cluster": workload.cluster.name,
        "objective": workload.objective,
        "method": result.solver,
        "found_by": result.found_by,
        "objective_value": result.objective_value,
        "bound": result.bound,
        "bound_name": result.bound_name,
        "gap": result.gap,
        "fits": result.fits,
        "overflow": result.overflow,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "seed": result.seed,
        "interrupted": result.interrupted,
        "weights": weight_bytes(workload, result),
        "calls": [
            {
                "name": call.name,
                "count": call.count,
                "ops": len(call.problem.graph),
                **result_data(problem, call_result),
            }
            for call, problem, call_result in calls
        ],
    }


def weight_bytes(workload: Workload, result: WorkloadResult) -> dict[str, int]:
    """Bytes of weights and states on each device."""
    sizes = {device.name: 0 for device in workload.cluster.devices}
    for name, device in result.plan.weights.items():
        op = workload.weights[name]
        sizes[device] += op.resident + sum(op.outputs)
    return sizes


def print_workload(name: str, workload: Workload, result: WorkloadResult) -> None:
    """What `place` and `simulate` show for a workload: the sum, each call, and each device."""
    calls = text.format_count(len(workload), "call")
    devices = text.format_count(len(workload.cluster), "device")
    objective = "step time" if result.objective == "step" else "period"
    method = "" if result.solver == "given" else f" by {_method_name(result)}"
    value = format_seconds(result.objective_value)
    lines = [
        f"{name} on {workload.cluster.name}: {calls}, {devices}",
        f"sum of {objective}s {value}{method}",
        _bound_line(result),
    ]
    if not result.fits:
        lines.append(f"does not fit: out of memory by {format_bytes(result.overflow)}")
    lines += [text.INTERRUPTED_LINE] if result.interrupted else []
    tables.print_lines(line for line in lines if line)
    tables.print_table(
        ("call", "count", "ops", objective, "of the sum", "fits"),
        [
            (
                call.name,
                f"{call.count:g}",
                f"{len(call.problem.graph):,}",
                format_seconds(each.objective_value),
                format_percent(call.count * each.objective_value / (result.objective_value or 1.0)),
                "yes" if each.fits else "no",
            )
            for call, each in zip(workload.calls, result.calls, strict=True)
        ],
    )
    stored = weight_bytes(workload, result)
    names = [call.name for call in workload.calls]
    tables.print_table(
        ("device", "weights", *(f"peak of {call}" for call in names), "usable"),
        [
            (
                use.name,
                format_bytes(stored[use.name]),
                *(format_bytes(each.devices[at].peak) for each in result.calls),
                text.format_memory(use.limit),
            )
            for at, use in enumerate(result.calls[0].devices)
        ],
    )


def save_workload_report(result: WorkloadResult, path: Path | None) -> list[str]:
    """Write a workload's page, if a file is named; a line that says so.

    Raises:
        FileError: It cannot be written.
    """
    if path is None:
        return []
    from placewright.reporting import report

    report(result, path)
    return [f"report written to {path}: open it in a browser"]


def save_workload_result(result: WorkloadResult, path: Path | None) -> list[str]:
    """Write a workload's result to a file, if one is named; a line that says so.

    Raises:
        FileError: It cannot be written.
    """
    if path is None:
        return []
    from placewright import files

    files.save(result, path)
    return [f"plan written to {path}"]


def _method_name(result: WorkloadResult) -> str:
    if not result.found_by or result.found_by == result.solver:
        return result.solver
    return f"{result.solver} ({result.found_by})"


def _bound_line(result: WorkloadResult) -> str:
    if not result.bound > 0:
        return ""
    line = f"lower bound {format_seconds(result.bound)} ({result.bound_name})"
    if not result.fits:
        return line
    if result.gap <= PROVEN_GAP:
        return f"{line}: this plan is provably optimal"
    return f"{line}: this plan is {format_percent(result.gap)} above"
