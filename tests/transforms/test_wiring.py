"""The wiring of a graph: what it leaves out, and what it tells apart."""

from __future__ import annotations

from placewright import Graph, Op, zoo
from placewright.graph import sort_topologically
from placewright.transforms import wiring_fingerprint


def test_sizes_and_names_are_left_out():
    small, large = (zoo.load(f"nmt:graph={at}") for at in (0, 1))  # batches of 64 and 128
    assert small.fingerprint != large.fingerprint
    assert wiring_fingerprint(small) == wiring_fingerprint(large)
    named = [Op(f"renamed {at}", op.kind, op.inputs, op.outputs) for at, op in enumerate(small.ops)]
    assert wiring_fingerprint(Graph("other", tuple(named))) == wiring_fingerprint(small)


def test_the_order_of_ops_is_left_out():
    ops = [
        Op("x", "input", (), (4,)),
        Op("left", "linear", ((0, 0),), (4,)),
        Op("right", "pool", ((0, 0),), (4,)),
        Op("sum", "add", ((1, 0), (2, 0)), (4,)),
    ]
    swapped = [
        ops[0],
        ops[2],
        ops[1],
        Op("sum", "add", ((2, 0), (1, 0)), (4,)),
    ]
    one, two = (sort_topologically("g", each) for each in (ops, swapped))
    assert wiring_fingerprint(one) == wiring_fingerprint(two)


def test_kinds_edges_and_the_order_of_inputs_are_told_apart():
    def graph(kind: str = "linear", reads: tuple = ((1, 0), (0, 0))) -> str:
        ops = (
            Op("x", "input", (), (4,)),
            Op("a", kind, ((0, 0),), (4,)),
            Op("b", "add", reads, (4,)),
        )
        return wiring_fingerprint(Graph("g", ops))

    assert len({graph(), graph("pool"), graph(reads=((0, 0), (1, 0))), graph(reads=((1, 0),))}) == 4
