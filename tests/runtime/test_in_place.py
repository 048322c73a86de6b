"""Which ops may write in place, and which must run before them, on graphs of a few ops."""

from __future__ import annotations

from placewright import Graph, Op
from placewright.runtime.in_place import find_writes
from placewright.runtime.instructions import compile_graph


def cached(*more: Op, outputs=None) -> Graph:
    """A cache of 8 bytes, a row, and an op that writes the row into the cache."""
    ops = (
        Op("cache", "state", outputs=(8,)),
        Op("row", "input", outputs=(2,)),
        Op("write", "scatter", ((0, 0), (1, 0)), (8,), aliases=((0, 0),)),
        *more,
    )
    return Graph("cached", ops, outputs)


def test_a_cache_that_is_read_after_the_write_is_written_in_place():
    graph = cached(Op("read", inputs=((2, 0),)))
    writes = find_writes(graph, [0] * 4, {(0, 0): (2, 0)})
    assert writes.in_place == {2}
    assert writes.write_backs == ()


def test_what_reads_the_old_value_runs_before_the_write_whatever_its_priority():
    ops = (
        Op("cache", "state", outputs=(8,)),
        Op("row", "input", outputs=(2,)),
        Op("old", inputs=((0, 0),)),
        Op("write", "scatter", ((0, 0), (1, 0)), (8,), aliases=((0, 0),)),
    )
    graph = Graph("ordered", ops)
    changes = {(0, 0): (3, 0)}
    script = compile_graph(graph, [0] * 4, 1, [0, 0, 9, 1], changes=changes)
    assert script.order == (2, 3)
    apart = compile_graph(graph, [0, 0, 1, 0], 2, [0, 0, 9, 1], changes=changes)
    assert apart.per_device[0].sequence[0].waits_for == [
        2
    ]  # the write waits for a reader elsewhere
    assert apart.per_device[1].sequence[0].notifies == [0]


def test_an_old_value_that_is_still_read_after_the_write_forbids_it():
    late = cached(Op("old", inputs=((0, 0), (2, 0))))
    writes = find_writes(late, [0] * 4, {(0, 0): (2, 0)})
    assert writes.in_place == frozenset()
    assert writes.write_backs == (((0, 0), (2, 0)),)
    kept = cached(outputs=((0, 0), (2, 0)))  # the model returns the old cache, too
    assert find_writes(kept, [0] * 3, {(0, 0): (2, 0)}).in_place == frozenset()


def test_a_write_on_another_device_is_no_write_in_place():
    writes = find_writes(cached(), [0, 0, 1], {(0, 0): (2, 0)})
    assert writes.in_place == frozenset()
    assert writes.write_backs == (((0, 0), (2, 0)),)


def test_an_update_waits_for_all_that_read_its_weight():
    ops = (
        Op("x", "input", outputs=(4,)),
        Op("w", "weight", outputs=(4,)),
        Op("use", inputs=((0, 0), (1, 0))),
        Op("again", inputs=((2, 0), (1, 0))),
        Op("w.update", "optimizer", ((1, 0), (2, 0))),
    )
    graph = Graph("updated", ops)
    script = compile_graph(graph, [0, 0, 0, 1, 0], 2, [0, 0, 0, 5, 1])
    assert script.order == (2, 3, 4)
    assert script.per_device[0].sequence[1].waits_for == [3]
