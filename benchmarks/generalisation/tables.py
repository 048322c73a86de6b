"""Tables of step times over the best known plan, from the lines of `placeto_claims`."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.common import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Row = dict[str, Any]

PAPER = {
    "inception-v3:2": (1600, 7800),
    "inception-v3:4": (5800, 35_800),
    "nmt-2:2": (20_400, 73_000),
    "nmt-2:4": (94_000, 51_700),
    "nasnet-a:2": (3500, 16_300),
    "nasnet-a:4": (29_000, 37_000),
}
"""Placements that Placeto and ColocRL (`RNN-based`) needed, as the paper prints them."""


def select(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def print_ratio(found: list[dict[str, float]], one: str, other: str) -> None:
    shares = [row[one] / row[other] for row in found if one in row and other in row]
    if shares:
        print(f"\n{one} / {other}: median {statistics.median(shares):.3f}.")


def print_ratios(title: str, rows: Iterable[tuple[str, Sequence[float]]]) -> None:
    """Ratios to the best known, one row per method."""
    shown = Table("method", "median", "best", "worst", title=title)
    for name, shares in rows:
        values = (statistics.median(shares), min(shares), max(shares))
        shown.row(name, *(f"{value:.3f}" for value in values))


def ratios(found: list[dict[str, float]]) -> list[tuple[str, list[float]]]:
    """Each method's step times over the best of all methods, problem by problem."""
    best = [min(row.values()) for row in found]
    names = [name for name in found[0] if all(name in row for row in found)]
    return [
        (name, [row[name] / least for row, least in zip(found, best, strict=True)])
        for name in names
    ]
