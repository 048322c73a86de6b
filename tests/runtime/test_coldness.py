"""Coldness: what a step finds in memory rather than in a cache."""

from __future__ import annotations

from placewright.graph import Graph, Op
from placewright.runtime.coldness import SHARE, coldness


def test_what_is_read_again_much_later_is_cold_and_so_is_keeping_it():
    ops = (
        Op("w", "weight", outputs=(10,), resident=10),
        Op("a", inputs=((0, 0),), outputs=(100,)),
        Op("b", inputs=((1, 0),), outputs=(100,)),
        Op("c", inputs=((2, 0),), outputs=(100,)),
        Op("back", inputs=((3, 0), (1, 0)), outputs=(100,)),
    )
    found = [str(one) for one in coldness(Graph("step", ops), SHARE * 150)]
    assert found[1:] == ["cc", "--", "--", "-c-"]
    assert [str(one) for one in coldness(Graph("step", ops), SHARE * 250)][1:] == [
        "c-",
        "--",
        "--",
        "---",
    ]
