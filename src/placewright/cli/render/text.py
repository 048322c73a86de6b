"""Results as plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.result import PROVEN_GAP
from placewright.units import UNLIMITED, format_bytes, format_rate, format_seconds
from placewright.units import format_percent as format_percent

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.simulator import InFlight
    from placewright.solvers import Comparison
    from placewright.timeline import Timeline

INTERRUPTED_LINE = "interrupted: this is the best plan so far"
INTERRUPTED_STATUS = 130  # the exit status after Ctrl-C


def format_memory(size: int) -> str:
    """Bytes of a device or of a limit."""
    return "no limit" if size >= UNLIMITED else format_bytes(size)


def problem_line(model: str, problem: Problem) -> str:
    """The problem in a line; the model as typed, since a graph's own name is long."""
    ops, devices = len(problem.graph), len(problem.cluster)
    sizes = f"{format_count(ops, 'op')}, {format_count(devices, 'device')}"
    return f"{model} on {problem.cluster.name}: {sizes}"


def format_count(number: int, noun: str) -> str:
    """Such as `1 op` and `2 ops`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def objective_name(result: Result) -> str:
    """The objective in words."""
    return "step time" if result.objective == "step" else "period"


def method_name(result: Result) -> str:
    """The method, and the part of it that found the plan."""
    if not result.found_by or result.found_by == result.solver:
        return result.solver
    return f"{result.solver} ({result.found_by})"


def summary_lines(comparison: Comparison) -> list[str]:
    """The best result of a comparison, beside the best single device and the bound.

    What does not fit says so first, and its time is none that can be had.
    """
    result = comparison.best
    problem = problem_line(comparison.name, comparison.problem)
    method = "" if result.solver == "given" else f" by {method_name(result)}"
    value = f"{objective_name(result)} {format_seconds(result.objective_value)}"
    if result.fits:
        lines = [problem, f"{value}{method}, {_comparison_text(comparison)}", _bound_text(result)]
        rates = [format_rate(rate, noun) for noun, rate in result.throughput.items()]
        lines += [f"throughput: {', '.join(rates)}"] if rates else []
    else:
        lines = [_overflow_line(result), problem]
        seconds = format_seconds(result.objective_value)
        where = _comparison_text(comparison)
        lines.append(f"{objective_name(result)} if it did: {seconds}{method}, {where}")
    lines += [_layers_line(result), _traffic_line(comparison), *result.notes]
    lines += [INTERRUPTED_LINE] if comparison.interrupted else []
    return [line for line in lines if line]


def in_flight_line(in_flight: InFlight) -> str:
    """Several steps in flight, in a line."""
    overflow = (
        f", out of memory by {format_bytes(in_flight.overflow)}" if in_flight.overflow else ", fits"
    )
    return (
        f"{in_flight.steps} steps in flight: {format_seconds(in_flight.seconds)}, "
        f"one every {format_seconds(in_flight.interval)}{overflow}"
    )


def single_device_line(comparison: Comparison) -> str:
    """The best single device, in a line."""
    single = comparison.single_device
    fits = "" if single.fits else f", out of memory by {format_bytes(single.overflow)}"
    value = format_seconds(single.objective_value)
    return f"best single device: {comparison.single_device_name}, {value}{fits}"


def bound_line(result: Result) -> str:
    """The lower bound, in a line."""
    if not result.bound > 0:
        return "lower bound: none above 0"
    return f"lower bound: {format_seconds(result.bound)} ({result.bound_name})"


def _comparison_text(comparison: Comparison) -> str:
    result, single = comparison.best, comparison.single_device
    device = comparison.single_device_name
    computing, streamed = _computing_devices(comparison), bytes_sent(comparison)[1]
    if computing == [device] and not streamed:
        fastest = bool(result.history) and result.objective_value <= result.history[-1][2]
        suffix = ": no plan tried is faster" if result.evaluations > 1 and fastest else ""
        return f"everything on {device}{suffix if result.fits else ''}"
    devices = f"on {format_count(len(computing), 'device')}"
    if not single.fits:
        return f"{devices}: no single one holds it"
    ratio = comparison.speedup(result)
    if ratio is None:
        return devices
    reference = f"{device} alone ({format_seconds(single.objective_value)})"
    if abs(ratio - 1) < 5e-4:
        return f"as fast as {reference}"
    if ratio > 1:
        return f"{ratio:.3g}× faster than {reference}"
    return f"{1 / ratio:.3g}× slower than {reference}"


def _bound_text(result: Result) -> str:
    if not result.bound > 0:
        return ""
    bound = f"lower bound {format_seconds(result.bound)} ({result.bound_name})"
    if result.gap < -PROVEN_GAP:
        return bound
    if result.gap <= PROVEN_GAP:
        return f"{bound}: this plan is provably optimal"
    return f"{bound}: this plan is {format_percent(result.gap)} above"


def bytes_sent(comparison: Comparison) -> tuple[int, int]:
    """Bytes of tensors and of streamed weights that the best plan transfers per step."""
    problem, timeline = _executed(comparison)
    return timeline.bytes_sent(problem.arrays)


def _computing_devices(comparison: Comparison) -> list[str]:
    problem, timeline = _executed(comparison)
    names = timeline.plan.device_names
    return [names[device] for device in timeline.computing(problem.arrays)]


def _executed(comparison: Comparison) -> tuple[Problem, Timeline]:
    """The problem that the best result was simulated on, and its timeline."""
    from placewright.solvers.results import timeline_of

    problem = comparison.best.problem or comparison.problem
    return problem, timeline_of(problem, comparison.best)


def _layers_line(result: Result) -> str:
    """Where the layers are; nothing where that is one device alone."""
    groups = result.layers
    if len(groups) < 2 and not any(group.streamed_bytes for group in groups):
        return ""
    return f"layers: {'; '.join(map(str, groups))}"


def _traffic_line(comparison: Comparison) -> str:
    tensors, weights = bytes_sent(comparison)
    parts = [f"{format_bytes(tensors)} of tensors"] if tensors else []
    parts += [f"{format_bytes(weights)} of streamed weights"] if weights else []
    return f"transfers per step: {' and '.join(parts)}" if parts else ""


def _overflow_line(result: Result) -> str:
    overflows = [(use.name, use.peak - use.limit) for use in result.devices if use.peak > use.limit]
    listing = ", ".join(f"{name} by {format_bytes(size)}" for name, size in overflows[:3])
    more = f" and {len(overflows) - 3} more" if len(overflows) > 3 else ""
    return f"does not fit: out of memory on {listing}{more}"
