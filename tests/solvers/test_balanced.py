"""Balanced splits of clusters of many devices."""

from __future__ import annotations

from typing import Any

import pytest

from placewright import Cluster, Graph, MaxEvaluations, Op, Problem, Search
from placewright.solvers import Stop, balanced


def in_line(count: int) -> Graph:
    """Ops of 1 TFLOP, each of which reads the one before."""
    first = Op("op0", flops=10**12, outputs=(4,))
    rest = (
        Op(f"op{at}", flops=10**12, outputs=(4,), inputs=((at - 1, 0),)) for at in range(1, count)
    )
    return Graph("in_line", (first, *rest))


def tried(search: Search, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """How many devices the graph was split over."""
    counts: set[int] = set()

    def counted(seconds: Any, sizes: Any, room: Any) -> Any:
        counts.add(len(room))
        return split(seconds, sizes, room)

    split = balanced.balanced_split
    monkeypatch.setattr(balanced, "balanced_split", counted)
    assert len(balanced.balanced_placements(search)) >= 1
    return counts


@pytest.mark.parametrize(
    ("devices", "ops", "counts"),
    [
        ("5xP100", 64, {2, 3, 4, 5}),
        ("5xP100+cpu", 4, {2, 3, 4, 5, 6}),
        ("16xP100", 64, set(range(2, 17))),
        ("40xP100", 64, {*range(2, 17), 32, 40}),
        ("100xP100+cpu", 200, {*range(2, 17), 32, 64, 100, 101}),
        ("100xP100+cpu", 6, {2, 3, 4, 5, 6, 7}),
        ("100xP100", 1, {2}),
    ],
)
def test_of_many_devices_a_few_numbers_are_tried(
    devices: str, ops: int, counts: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(in_line(ops), Cluster.parse(devices))
    assert tried(Search(problem, Stop(), seed=0), monkeypatch) == counts


def test_a_search_that_is_over_makes_one_group_of_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(in_line(8), Cluster.parse("6xP100"))
    search = Search(problem, MaxEvaluations(1), seed=0)
    search.judge([0] * 8)
    assert tried(search, monkeypatch) == {2}
