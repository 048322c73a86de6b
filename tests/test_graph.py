"""Graphs: what an op may be, what a graph holds, and how ops in any order become one."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright import Graph, Op
from placewright.errors import GraphError
from placewright.graph import sort_topologically

BYTES = "op 'a' has bytes_moved {}, resident {}, workspace {}, outputs {}: bytes must be 0 to 2**50"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flops": -1.0}, "op 'a' has flops -1.0: expected a finite number >= 0"),
        ({"flops": math.nan}, "op 'a' has flops nan: expected a finite number >= 0"),
        ({"flops": math.inf}, "op 'a' has flops inf: expected a finite number >= 0"),
        ({"bytes_moved": -1}, BYTES.format(-1, 0, 0, "(0,)")),
        ({"resident": -2}, BYTES.format(0, -2, 0, "(0,)")),
        ({"workspace": -3}, BYTES.format(0, 0, -3, "(0,)")),
        ({"outputs": (4, -4)}, BYTES.format(0, 0, 0, "(4, -4)")),
        ({"resident": 2**50 + 1}, BYTES.format(0, 2**50 + 1, 0, "(0,)")),
        (
            {"phase": "sideways"},
            "op 'a' has phase 'sideways': expected one of ('forward', 'backward', 'update')",
        ),
        (
            {"kind": "weight", "inputs": ((0, 0),)},
            "op 'a' of kind 'weight' has inputs: it must have none",
        ),
        (
            {"kind": "state", "inputs": ((0, 0),)},
            "op 'a' of kind 'state' has inputs: it must have none",
        ),
        (
            {"kind": "input", "inputs": ((0, 0),)},
            "op 'a' of kind 'input' has inputs: it must have none",
        ),
        (
            {"aliases": ((0, 0),)},
            "op 'a' aliases output 0 to input 0: it has 1 outputs and 0 inputs",
        ),
        (
            {"aliases": ((1, 0),), "inputs": ((0, 0),)},
            "op 'a' aliases output 1 to input 0: it has 1 outputs and 1 inputs",
        ),
    ],
)
def test_a_malformed_op_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        replace(Op("a"), **changes)


def test_an_op_may_hold_a_petabyte() -> None:
    assert Op("a", outputs=(2**50,), bytes_moved=2**50).outputs == (2**50,)


def test_an_op_cannot_be_changed(chain: Graph) -> None:
    with pytest.raises(FrozenInstanceError):
        chain.ops[0].flops = 7  # type: ignore[misc]


def test_an_op_without_costs_or_outputs_is_allowed() -> None:
    op = Op("barrier", outputs=())
    assert (op.flops, op.bytes_moved, op.resident, op.workspace) == (0, 0, 0, 0)
    assert Graph("g", (op,)).outputs == ()


def test_a_graph_without_ops_is_refused() -> None:
    with pytest.raises(GraphError, match=r"^graph 'g' has no ops: expected at least one$"):
        Graph("g", ())


@pytest.mark.parametrize("position", [0, 1, 2, -1])
def test_an_input_must_come_earlier(position: int) -> None:
    message = f"op 'a' at position 0 reads from position {position}: an input must come earlier"
    with pytest.raises(GraphError, match=re.escape(message)):
        Graph("g", (Op("a", inputs=((position, 0),)), Op("b")))


@pytest.mark.parametrize("output", [2, -1])
def test_an_input_must_be_an_output_of_its_op(output: int) -> None:
    message = f"op 'b' reads output {output} of 'a', which has 2 outputs"
    with pytest.raises(GraphError, match=f"^{message}$"):
        Graph("g", (Op("a", outputs=(1, 1)), Op("b", inputs=((0, output),))))


def test_two_ops_of_one_name_are_refused() -> None:
    with pytest.raises(GraphError, match=r"^two ops are named 'b': names must be unique$"):
        Graph("g", (Op("a"), Op("b"), Op("c"), Op("b")))


@pytest.mark.parametrize("tensor", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_a_graph_output_must_be_a_tensor(tensor: tuple[int, int]) -> None:
    message = f"graph output {tensor} names no tensor of the graph"
    with pytest.raises(GraphError, match=re.escape(message)):
        Graph("g", (Op("a"),), outputs=(tensor,))


def test_outputs_are_by_default_what_nothing_reads(fork_join: Graph) -> None:
    assert fork_join.outputs == ((5, 0),)
    halves = Graph("g", (Op("split", outputs=(1, 1, 1)), Op("b", inputs=((0, 1),))))
    assert halves.outputs == ((0, 0), (0, 2), (1, 0))


def test_an_unread_weight_or_state_is_no_output_but_an_unread_input_is() -> None:
    graph = Graph("g", (Op("w", kind="weight"), Op("s", kind="state"), Op("x", kind="input")))
    assert graph.outputs == ((2, 0),)


def test_outputs_that_are_given_stand_even_when_none(chain: Graph) -> None:
    assert Graph("g", chain.ops, outputs=((0, 0),)).outputs == ((0, 0),)
    assert Graph("g", chain.ops, outputs=()).outputs == ()


def test_a_graph_knows_positions_and_readers(diamond: Graph) -> None:
    assert diamond.position == {"top": 0, "left": 1, "right": 2, "bottom": 3}
    assert diamond.readers == {(0, 0): [1, 2], (1, 0): [3], (2, 0): [3]}
    assert diamond.output_set == {(3, 0)}


def test_an_op_that_reads_a_tensor_twice_is_one_reader() -> None:
    graph = Graph("g", (Op("a"), Op("square", inputs=((0, 0), (0, 0)))))
    assert graph.readers == {(0, 0): [1]}


def test_a_graph_shows_its_name_and_size(chain: Graph) -> None:
    assert len(chain) == 3
    assert repr(chain) == "Graph('chain', 3 ops)"


def test_a_fingerprint_ignores_the_graphs_name_alone(chain: Graph) -> None:
    assert Graph("another", chain.ops).fingerprint == chain.fingerprint
    changes = (
        {"name": "z"},
        {"kind": "conv"},
        {"inputs": ((0, 0), (0, 0))},
        {"outputs": (4, 4)},
        {"flops": 3.5},
        {"bytes_moved": 1},
        {"resident": 1},
        {"workspace": 1},
        {"dtype": "float16"},
        {"module": "m"},
        {"phase": "backward"},
        {"colocate": "label"},
        {"runs_on": ("gpu",)},
        {"aliases": ((0, 0),)},
    )
    prints = {chain.fingerprint, Graph("chain", chain.ops, outputs=()).fingerprint}
    for change in changes:
        ops = (*chain.ops[:2], replace(chain.ops[2], **change))
        prints.add(Graph("chain", ops).fingerprint)
    assert len(prints) == 2 + len(changes)


def test_a_fingerprint_does_not_tell_a_whole_number_from_a_float() -> None:
    assert (
        Graph("g", (Op("a", flops=3),)).fingerprint == Graph("g", (Op("a", flops=3.0),)).fingerprint
    )


def test_a_fingerprint_is_the_same_on_every_machine_and_day() -> None:
    graph = Graph("g", (Op("a", flops=3, outputs=(4,)), Op("b", inputs=((0, 0),))))
    assert graph.fingerprint == "6eb569fa490d2a02efa974761cdc1649"


def test_ops_in_any_order_become_a_graph() -> None:
    ops = [
        Op("c", inputs=((1, 0), (2, 1))),
        Op("b", inputs=((2, 0),)),
        Op("a", outputs=(1, 2)),
    ]
    graph = sort_topologically("g", ops)
    assert [op.name for op in graph.ops] == ["a", "b", "c"]
    assert [op.inputs for op in graph.ops] == [(), ((0, 0),), ((1, 0), (0, 1))]


def test_ops_keep_their_order_where_inputs_allow(fork_join: Graph) -> None:
    assert sort_topologically("fork_join", fork_join.ops, fork_join.outputs) == fork_join


def test_outputs_follow_their_ops_into_order() -> None:
    graph = sort_topologically("g", [Op("b", inputs=((1, 0),)), Op("a")], outputs=((1, 0),))
    assert [op.name for op in graph.ops] == ["a", "b"]
    assert graph.outputs == ((0, 0),)


def test_a_cycle_is_spelled_out() -> None:
    ops = [
        Op("start"),
        Op("a", inputs=((0, 0), (3, 0))),
        Op("b", inputs=((1, 0),)),
        Op("c", inputs=((2, 0),)),
        Op("after", inputs=((3, 0),)),
    ]
    with pytest.raises(GraphError, match=r"^graph 'g' has a cycle: 'a' -> 'b' -> 'c' -> 'a'$"):
        sort_topologically("g", ops)


def test_an_op_that_reads_itself_is_a_cycle() -> None:
    with pytest.raises(GraphError, match=r"^graph 'g' has a cycle: 'a' -> 'a'$"):
        sort_topologically("g", [Op("a", inputs=((0, 0),))])


def test_a_long_cycle_is_shortened() -> None:
    ops = [Op(f"op{at}", inputs=(((at - 1) % 20, 0),)) for at in range(20)]
    message = "'op0' -> 'op1' -> 'op2' -> 'op3' -> ... -> 'op18' -> 'op19' -> 'op0'"
    with pytest.raises(GraphError, match=re.escape(message)):
        sort_topologically("g", ops)


def test_a_cycle_of_many_ops_is_found_without_walking_it_again_and_again() -> None:
    count = 20_000
    ops = [Op(f"op{at}", inputs=(((at - 1) % count, 0),)) for at in range(count)]
    with pytest.raises(GraphError, match=r"'op19999' -> 'op0'$"):
        sort_topologically("g", ops)


def test_an_unordered_op_cannot_read_from_nowhere() -> None:
    with pytest.raises(GraphError, match=r"^op 'a' reads from position 5: there is no such op$"):
        sort_topologically("g", [Op("a", inputs=((5, 0),))])


@given(st.data())
def test_any_shuffle_of_a_graph_becomes_a_graph_of_the_same_ops(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    reads = [
        data.draw(st.sets(st.integers(0, at - 1), max_size=3)) if at else () for at in range(count)
    ]
    place = data.draw(st.permutations(range(count)))
    shuffled = [Op("")] * count
    for at, sources in enumerate(reads):
        shuffled[place[at]] = Op(f"op{at}", inputs=tuple((place[s], 0) for s in sorted(sources)))
    graph = sort_topologically("g", shuffled)
    found = {op.name: {graph.ops[s].name for s, _ in op.inputs} for op in graph.ops}
    assert found == {f"op{at}": {f"op{s}" for s in sources} for at, sources in enumerate(reads)}
