"""Results as plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.result import PROVEN_GAP
from placewright.units import UNLIMITED, format_bytes, format_seconds
from placewright.units import format_percent as format_percent

if TYPE_CHECKING:
    from placewright.cli.answer import Evaluation, SingleDeviceResult
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.simulator import InFlight

INTERRUPTED_LINE = "stopped by hand: this is the best until then"


def format_memory(size: int) -> str:
    """Bytes of a device or of a limit."""
    return "no limit" if size >= UNLIMITED else format_bytes(size)


def problem_line(model: str, problem: Problem) -> str:
    """What was asked, in a line; the model as typed, since a graph's own name is long."""
    ops, devices = len(problem.graph), len(problem.cluster)
    sizes = f"{format_count(ops, 'op')}, {format_count(devices, 'device')}"
    return f"{model} on {problem.cluster.name}: {sizes}"


def format_count(number: int, noun: str) -> str:
    """Such as `1 op` and `2 ops`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def objective_name(result: Result) -> str:
    """The objective's word."""
    return "step time" if result.objective == "step" else "period"


def summary_lines(evaluation: Evaluation) -> list[str]:
    """The answer, and why it is as it is."""
    result = evaluation.result
    method = "" if result.solver == "given" else f" by {result.found_by or result.solver}"
    lines = [
        f"{objective_name(result)} {format_seconds(result.objective_value)}{method}, {_comparison_text(evaluation)}"
    ]
    lines += [_bound_text(result), _traffic_line(evaluation)]
    lines += [] if result.fits else [_overflow_line(result)]
    lines += [INTERRUPTED_LINE] if evaluation.interrupted else []
    return [line for line in lines if line]


def in_flight_line(in_flight: InFlight) -> str:
    """Several steps in flight, in a line."""
    over = (
        f", {format_bytes(in_flight.overflow)} over the memory" if in_flight.overflow else ", fits"
    )
    return (
        f"{in_flight.steps} steps in flight: {format_seconds(in_flight.seconds)}, "
        f"one every {format_seconds(in_flight.interval)}{over}"
    )


def single_device_line(single_device: SingleDeviceResult) -> str:
    """The best single device, in a line."""
    fits = "" if single_device.fits else f", {format_bytes(single_device.overflow)} over its memory"
    return f"best single device: {single_device.device}, {format_seconds(single_device.objective_value)}{fits}"


def bound_line(result: Result) -> str:
    """The bound, in a line."""
    if not result.bound > 0:
        return "bound: none above 0"
    return f"bound: {format_seconds(result.bound)} ({result.bound_name}); no plan can beat it"


def speedup(result: Result, single_device: SingleDeviceResult) -> float | None:
    """How many times as fast as the best single device; None where one of them does not fit."""
    if not (single_device.fits and result.fits and result.objective_value > 0):
        return None
    return single_device.objective_value / result.objective_value


def _comparison_text(evaluation: Evaluation) -> str:
    result, single_device = evaluation.result, evaluation.single_device
    if evaluation.computing_devices == [single_device.device] and not evaluation.bytes_sent[1]:
        fastest = bool(result.history) and result.objective_value <= result.history[-1][2]
        suffix = ": nothing tried is faster" if result.evaluations > 1 and fastest else ""
        return f"everything on {single_device.device}{suffix if result.fits else ''}"
    if not single_device.fits:
        return f"on {format_count(len(evaluation.computing_devices), 'device')}: no single one holds it"
    ratio = speedup(result, single_device)
    if ratio is None:
        return f"on {format_count(len(evaluation.computing_devices), 'device')}"
    reference = f"{single_device.device} alone ({format_seconds(single_device.objective_value)})"
    if abs(ratio - 1) < 5e-4:
        return f"as fast as {reference}"
    if ratio > 1:
        return f"{ratio:.3g} times as fast as {reference}"
    return f"{1 / ratio:.3g} times as long as {reference}"


def _bound_text(result: Result) -> str:
    if not result.bound > 0:
        return ""
    bound = f"no plan can beat {format_seconds(result.bound)} ({result.bound_name})"
    if result.gap < -PROVEN_GAP or not result.fits:
        return bound
    if result.gap <= PROVEN_GAP:
        return f"{bound}: this one is proved best"
    return f"{bound}: this one is {format_percent(result.gap)} above"


def _traffic_line(evaluation: Evaluation) -> str:
    tensors, weights = evaluation.bytes_sent
    parts = [f"sends {format_bytes(tensors)} of tensors"] if tensors else []
    parts += [f"streams {format_bytes(weights)} of weights"] if weights else []
    return f"each step {' and '.join(parts)}" if parts else ""


def _overflow_line(result: Result) -> str:
    overflows = [(use.name, use.peak - use.limit) for use in result.devices if use.peak > use.limit]
    listing = ", ".join(f"{name} by {format_bytes(size)}" for name, size in overflows[:3])
    more = f" and {len(overflows) - 3} more" if len(overflows) > 3 else ""
    return f"does not fit: over the memory of {listing}{more}"
