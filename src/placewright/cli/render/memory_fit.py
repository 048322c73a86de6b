"""Renders whether a model fits, as sentences, tables or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.cli.render.json_output import layer_data
from placewright.cli.render.text import format_memory, problem_line
from placewright.explanations.memory_fit import COLUMNS, use_cells
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from placewright.explanations import MemoryFit, MemoryUse

    TableData: TypeAlias = tuple[Sequence[str], list[Sequence[str]]]
    Sizes: TypeAlias = Mapping[str, int]

_WHOLE_COLUMNS = ("weights", "optimizer", "cache", "activations", "all", "usable", "fits")


def fit_lines(model: str, fit: MemoryFit) -> list[str]:
    """The verdict, the problem, and where the layers are."""
    layers = [] if fit.whole.fits else [f"  {group}" for group in fit.layers]
    return [fit.verdict, problem_line(model, fit.problem), *layers]


def device_table(fit: MemoryFit) -> TableData:
    """The memory of each device."""
    return ("memory", *COLUMNS), [[use.device, *use_cells(use)] for use in fit.shown_uses]


def sweep_lines(model: str, rows: Sequence[tuple[Sizes, MemoryFit]]) -> list[str]:
    """How many sizes fit, and the problem."""
    on_one = [sizes for sizes, fit in rows if fit.whole.fits]
    in_parts = [sizes for sizes, fit in rows if fit.fits and not fit.whole.fits]
    parts = [f"{len(on_one)} of {len(rows)} sizes fit on one device"]
    parts += [f"{len(in_parts)} in parts"] if in_parts else []
    failures = len(rows) - len(on_one) - len(in_parts)
    parts += [f"{failures} do not" if failures > 1 else "1 does not"] if failures else []
    return [", ".join(parts), f"{model} on {rows[0][1].problem.cluster.name}"]


def sweep_table(rows: Sequence[tuple[Sizes, MemoryFit]]) -> TableData:
    """A row for each size: what everything takes on one device, and the time of a quick plan."""
    names = list(rows[0][0])
    cells: list[Sequence[str]] = []
    for sizes, fit in rows:
        whole = fit.whole
        kinds = (whole.weights, whole.optimizer, whole.cache, whole.activations, whole.peak)
        fits = f"on {whole.device}" if whole.fits else "in parts" if fit.fits else "no"
        seconds = "–" if fit.seconds is None else format_seconds(fit.seconds)
        amounts = [format_bytes(size) if size else "–" for size in kinds]
        row = [*(f"{sizes[name]:,}" for name in names), *amounts, format_memory(whole.usable)]
        cells.append([*row, fits, seconds])
    return (*names, *_WHOLE_COLUMNS, "step time"), cells


def sweep_remedies(rows: Sequence[tuple[Sizes, MemoryFit]]) -> list[str]:
    """What would do for the first size that does not fit on one device."""
    for sizes, fit in rows:
        if not fit.whole.fits:
            label = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            return [f"{label}: {line}" for line in fit.remedies]
    return []


def fit_data(sizes: Sizes, fit: MemoryFit) -> dict[str, Any]:
    """One size as JSON, in bytes and seconds."""
    host = fit.added_host
    return {
        "sizes": dict(sizes),
        "fits": fit.fits,
        "on_one_device": fit.whole.fits,
        "verdict": fit.verdict,
        "seconds": fit.seconds,
        "needed": fit.needed,
        "whole": _use_data(fit.whole),
        "devices": [_use_data(use) for use in fit.uses] if fit.fits else [],
        "layers": [layer_data(group) for group in fit.layers],
        "with_host": None
        if host is None
        else {"cluster": host.cluster, "seconds": host.result.objective_value},
    }


def _use_data(use: MemoryUse) -> dict[str, Any]:
    return {
        "device": use.device,
        "weights": use.weights,
        "optimizer": use.optimizer,
        "cache": use.cache,
        "activations": use.activations,
        "staging": use.staging,
        "peak": use.peak,
        "usable": use.usable,
        "fits": use.fits,
    }
