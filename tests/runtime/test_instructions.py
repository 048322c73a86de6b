"""Instructions of a small graph: what each op reads from where, sends and frees."""

from __future__ import annotations

from placewright import Graph, Op
from placewright.runtime.instructions import ENV, RESIDENT, STAGED, compile_graph


def test_instructions_say_what_is_read_where_and_freed_when():
    ops = (
        Op("x", "input", outputs=(4,)),
        Op("w", "weight", outputs=(4,)),
        Op("a", inputs=((0, 0), (1, 0))),
        Op("b", inputs=((2, 0), (1, 0))),
        Op("c", inputs=((3, 0), (2, 0))),
    )
    graph = Graph("small", ops)
    first, second = compile_graph(graph, [0, 0, 0, 1, 0], 2).per_device
    a, c = first.sequence
    (b,) = second.sequence
    assert a.inputs == [(ENV, (0, 0)), (RESIDENT, (1, 0))]
    assert a.sends == [(0, 1)]
    assert a.frees == [(0, 0)]
    assert b.inputs == [(ENV, (2, 0)), (RESIDENT, (1, 0))]  # threads share their memory
    assert (b.remote_inputs, b.sends, sorted(b.frees)) == ([(2, 0)], [(0, 0)], [(2, 0), (3, 0)])
    assert (c.remote_inputs, sorted(c.frees)) == ([(3, 0)], [(2, 0), (3, 0)])
    assert first.outputs == [(4, 0)]
    assert second.shared == [(1, 0)]
    _, sent = compile_graph(graph, [0, 0, 0, 1, 0], 2, separate_memory=[1]).per_device
    assert sent.sequence[0].inputs == [(ENV, (2, 0)), (ENV, (1, 0))]  # a GPU gets a copy
    _, staged = compile_graph(
        graph, [0, 0, 0, 1, 0], 2, staging=[-1, 4], separate_memory=[1]
    ).per_device
    assert staged.sequence[0].inputs == [(ENV, (2, 0)), (STAGED, 0)]
