"""The content of a workload's page: one page for each call, with what they share in its notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.errors import PlanError
from placewright.reporting.content import PageContent
from placewright.solvers import Comparison
from placewright.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.workload_result import WorkloadResult


def call_contents(result: WorkloadResult, notes: Sequence[str] = ()) -> list[PageContent]:
    """The content of each call's page.

    Raises:
        PlanError: The result comes from a file and does not know its workload.
    """
    workload = result.workload
    if workload is None:
        raise PlanError(
            "the result does not know its workload: evaluate it first, with "
            "pw.evaluate(workload, result)"
        )
    summary = workload_sentence(result)
    contents = []
    for call, problem, call_result in zip(
        workload.calls, workload.problems, result.calls, strict=True
    ):
        title = call.name if call.count == 1 else f"{call.name} ({call.count:g} times)"
        comparison = Comparison(problem, (call_result,), interrupted=result.interrupted, name=title)
        baselines = (
            "Baselines on this page are for this call alone, wherever its weights are in others."
        )
        contents.append(PageContent.of(comparison, notes=[summary, baselines, *notes]))
    return contents


def workload_sentence(result: WorkloadResult) -> str:
    """The whole workload in a sentence."""
    name = "step times" if result.objective == "step" else "periods"
    terms = " + ".join(
        f"{count:g} × {format_seconds(call.objective_value)}"
        for count, call in zip(result.counts, result.calls, strict=True)
    )
    bound = f"lower bound {format_seconds(result.bound)}"
    if result.fits:
        state = f"{bound}, {format_percent(result.gap)} above it"
    else:
        state = f"{bound}; out of memory by {format_bytes(result.overflow)}"
    return (
        f"All calls of the workload, with one placement of their weights: sum of {name} "
        f"{format_seconds(result.objective_value)} ({terms}), {state}."
    )
