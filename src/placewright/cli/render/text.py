"""Answers in, plain sentences out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from placewright.cli.answer import Answer, Single
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.simulator import InFlight

UNLIMITED = 2**60  # bytes: what has more has no limit
PROVED = 1e-9  # a gap this small is rounding
STOPPED = "stopped by hand: this is the best until then"


def memory(size: int) -> str:
    """Bytes of a device or of a limit."""
    return "no limit" if size >= UNLIMITED else format_bytes(size)


def percent(share: float) -> str:
    """A share such as `3.7 %`; large ones without digits that mean nothing."""
    if share == float("inf"):
        return "–"
    return f"{share * 100:,.{1 if share < 1 else 0}f} %"


def describe(model: str, problem: Problem) -> str:
    """What was asked, in a line; the model as typed, since a graph's own name is long."""
    ops, devices = len(problem.graph), len(problem.cluster)
    sizes = f"{count(ops, 'op')}, {count(devices, 'device')}"
    return f"{model} on {problem.cluster.name}: {sizes}"


def count(number: int, what: str) -> str:
    """Such as `1 op` and `2 ops`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def figure(result: Result) -> str:
    """The objective's word."""
    return "step time" if result.objective == "step" else "period"


def summary(answer: Answer) -> list[str]:
    """The answer, and why it is as it is."""
    result = answer.result
    method = "" if result.solver == "given" else f" by {result.found_by or result.solver}"
    lines = [f"{figure(result)} {format_seconds(result.value)}{method}, {_against(answer)}"]
    lines += [_bound(result), _sent(answer)]
    lines += [] if result.fits else [_over(result)]
    lines += [STOPPED] if answer.interrupted else []
    return [line for line in lines if line]


def flight_line(flight: InFlight) -> str:
    """Several steps in flight, in a line."""
    over = f", {format_bytes(flight.overflow)} over the memory" if flight.overflow else ", fits"
    return (
        f"{flight.steps} steps in flight: {format_seconds(flight.seconds)}, "
        f"one every {format_seconds(flight.interval)}{over}"
    )


def single_line(single: Single) -> str:
    """The best single device, in a line."""
    fits = "" if single.fits else f", {format_bytes(single.overflow)} over its memory"
    return f"best single device: {single.device}, {format_seconds(single.value)}{fits}"


def bound_line(result: Result) -> str:
    """The bound, in a line."""
    if not result.bound > 0:
        return "bound: none above 0"
    return f"bound: {format_seconds(result.bound)} ({result.bound_name}); no plan can beat it"


def times(result: Result, single: Single) -> float | None:
    """How many times as fast as the best single device; None where one of them does not fit."""
    if not (single.fits and result.fits and result.value > 0):
        return None
    return single.value / result.value


def _against(answer: Answer) -> str:
    result, single = answer.result, answer.single
    if answer.computing == [single.device] and not answer.sent[1]:
        fastest = bool(result.history) and result.value <= result.history[-1][2]
        tried = ": nothing tried is faster" if result.evaluations > 1 and fastest else ""
        return f"everything on {single.device}{tried if result.fits else ''}"
    if not single.fits:
        return f"on {count(len(answer.computing), 'device')}: no single one holds it"
    ratio = times(result, single)
    if ratio is None:
        return f"on {count(len(answer.computing), 'device')}"
    alone = f"{single.device} alone ({format_seconds(single.value)})"
    if abs(ratio - 1) < 5e-4:
        return f"as fast as {alone}"
    if ratio > 1:
        return f"{ratio:.3g} times as fast as {alone}"
    return f"{1 / ratio:.3g} times as long as {alone}"


def _bound(result: Result) -> str:
    if not result.bound > 0:
        return ""
    bound = f"no plan can beat {format_seconds(result.bound)} ({result.bound_name})"
    if result.gap < -PROVED or not result.fits:
        return bound
    if result.gap <= PROVED:
        return f"{bound}: this one is proved best"
    return f"{bound}: this one is {percent(result.gap)} above"


def _sent(answer: Answer) -> str:
    tensors, weights = answer.sent
    parts = [f"sends {format_bytes(tensors)} of tensors"] if tensors else []
    parts += [f"streams {format_bytes(weights)} of weights"] if weights else []
    return f"each step {' and '.join(parts)}" if parts else ""


def _over(result: Result) -> str:
    over = [(use.name, use.peak - use.limit) for use in result.devices if use.peak > use.limit]
    shown = ", ".join(f"{name} by {format_bytes(size)}" for name, size in over[:3])
    more = f" and {len(over) - 3} more" if len(over) > 3 else ""
    return f"does not fit: over the memory of {shown}{more}"
