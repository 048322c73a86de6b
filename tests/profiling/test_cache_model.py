"""Coldness: what a step finds in memory rather than in a cache."""

from __future__ import annotations

from placewright.graph import Graph, Op
from placewright.profiling.cache_model import CACHE_DIVISOR, cache_states

KEPT = Graph(
    "training",
    (
        Op("w", "weight", outputs=(10,), resident=10),
        Op("a", inputs=((0, 0),), outputs=(100,)),
        Op("b", inputs=((1, 0),), outputs=(100,)),
        Op("c", inputs=((2, 0),), outputs=(100,)),
        Op("back", inputs=((3, 0), (1, 0)), outputs=(100,)),
    ),
)


def cold(graph, cache):
    return [str(one) for one in cache_states(graph, cache)][1:]


def test_what_is_read_again_much_later_is_cold():
    assert [one[:-1] for one in cold(KEPT, CACHE_DIVISOR * 210)] == ["c", "-", "-", "-c"]
    assert [one[:-1] for one in cold(KEPT, CACHE_DIVISOR * 260)] == ["c", "-", "-", "--"]


def test_an_input_that_went_by_with_a_large_weight_is_cold():
    ops = (
        Op("table", "weight", outputs=(1000,), resident=1000),
        Op("logits", inputs=((0, 0),), outputs=(100,)),
        Op("softmax", inputs=((1, 0),), outputs=(100,)),
    )
    assert cold(Graph("head", ops), CACHE_DIVISOR * 500)[1][0] == "c"
    assert cold(Graph("head", ops), CACHE_DIVISOR * 600)[1][0] == "-"


def test_memory_that_was_just_freed_is_warm():
    chain = [Op("x", "input", outputs=(100,))]
    chain += [Op(f"op{at}", inputs=((at, 0),), outputs=(100,)) for at in range(8)]
    assert {one[-1] for one in cold(Graph("chain", tuple(chain)), CACHE_DIVISOR * 150)} == {"-"}


def test_activations_reuse_the_memory_of_the_previous_step():
    keeping = [Op("x", "input", outputs=(100,))]
    keeping += [Op(f"op{at}", inputs=((at, 0),), outputs=(100,)) for at in range(8)]
    keeping += [Op("back", inputs=tuple((at, 0) for at in range(9)), outputs=(4,))]
    found = cold(Graph("kept", tuple(keeping)), CACHE_DIVISOR * 250)
    # All of it was read at the end of the step before: the first take what is still warm.
    assert "".join(one[-1] for one in found[:8]) == "---ccccc"


def test_a_view_holds_on_to_memory_and_writes_none():
    ops = (
        Op("x", "input", outputs=(100,)),
        Op("a", inputs=((0, 0),), outputs=(100,)),
        Op("v", "view", inputs=((1, 0),), outputs=(100,), aliases=((0, 0),)),
        Op("b", inputs=((0, 0),), outputs=(300,)),
        Op("c", inputs=((2, 0), (3, 0)), outputs=(100,)),
    )
    found = cold(Graph("viewed", ops), CACHE_DIVISOR * 350)
    assert found[1] == "--"  # nothing is written
    assert found[3][:2] == "--"  # 300 and a half of 100 went by since
    assert cold(Graph("viewed", ops), CACHE_DIVISOR * 290)[3][0] == "c"
