"""TensorFlow files that are broken, or lie."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("tensorboard.compat.proto.graph_pb2")

from graphdefs import function, graph_pb2, mlp, node, placeholder, training, while_loop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.errors import FileError, GraphError, MissingDependency, PlacewrightError
from placewright.frontends.graphdef.frontend import from_tensorflow


@pytest.fixture
def read(tmp_path):
    """Write a GraphDef or bytes to a file, and read that."""

    def through_a_file(content, name="model.pb", **more):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if not isinstance(content, bytes):
            content = content.SerializeToString()
        path.write_bytes(content)
        return from_tensorflow(path, **more)

    return through_a_file


def test_a_file_that_is_no_graph_is_told_so(read, tmp_path):
    with pytest.raises(FileError, match="cannot be read: no such file or directory"):
        from_tensorflow(tmp_path / "missing.pb")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"is a folder without 'saved_model.pb'"):
        from_tensorflow(tmp_path / "empty")
    with pytest.raises(FileError, match="is not a TensorFlow graph, or is truncated"):
        read(b"\x89PNG not a graph at all")
    with pytest.raises(FileError, match="holds no graph: is it a GraphDef"):
        read(b"")
    with pytest.raises(FileError, match="holds no graph: is it a SavedModel"):
        read(b"\x08\x01", "saved_model.pb")
    with pytest.raises(FileError, match=r"is not a TensorFlow graph: 1:\d+"):
        read(b"not a graph {", "model.pbtxt")
    with pytest.raises(FileError, match="is not text: byte 0 is not UTF-8"):
        read(b"\xff", "model.pbtxt")
    whole = mlp().SerializeToString()
    with pytest.raises(FileError, match="truncated"):
        read(whole[: len(whole) // 2])


def test_a_length_that_claims_two_gigabytes_is_not_believed(read):
    with pytest.raises(FileError, match="is not a TensorFlow graph, or is truncated"):
        read(b"\x0a\xff\xff\xff\xff\x07" + bytes(100))  # a node of 2**31 - 1 bytes


def broken(change):
    graph = mlp()
    change({node.name: node for node in graph.node})
    return graph


def set_shape(at, sizes):
    at.attr["shape"].shape.Clear()
    at.attr["shape"].shape.SetInParent()
    for size in sizes:
        at.attr["shape"].shape.dim.add(size=size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda nodes: nodes["body/first/MatMul"].input.__setitem__(0, "head/add"),
            "has a cycle: .*'head/add'",
        ),
        (
            lambda nodes: nodes["body/Relu"].input.__setitem__(0, "nobody"),
            "op 'body/Relu' of type 'Relu': it reads 'nobody', which is not in the graph",
        ),
        (
            lambda nodes: nodes["body/Relu"].input.__setitem__(0, "x:3"),
            "op 'body/Relu' of type 'Relu': it reads output 3 of 'x', which has 1",
        ),
        (
            lambda nodes: set_shape(nodes["x"], (8, 17)),
            r"op 'body/first/MatMul' .*: MatMul cannot work on shapes \(8, 17\), \(16, 32\)",
        ),
        (
            lambda nodes: set_shape(nodes["x"], (2**40, 2**40)),
            r"op 'x' .* expected at most 2\*\*50 elements",
        ),
        (
            lambda nodes: setattr(nodes["head/MatMul"], "name", "x"),
            "two ops are named 'x': names must be unique",
        ),
        (
            lambda nodes: nodes["w1"].attr["value"].tensor.tensor_shape.dim.add(size=7),
            r"op 'w1' of type 'Const': it holds 2,048 bytes: expected 14,336 for shape",
        ),
        (
            lambda nodes: setattr(nodes["body/Relu"], "op", "PartitionedCall"),
            "op 'body/Relu' of type 'PartitionedCall': it calls '', which is not in the library",
        ),
        (
            lambda nodes: setattr(nodes["w1"].attr["value"].tensor, "dtype", 99),
            "dtype 99 is unknown: expected one of TensorFlow's",
        ),
    ],
)
def test_a_malformed_graph_is_one_clear_line(read, change, message):
    with pytest.raises(GraphError, match=message) as error:
        read(broken(change))
    assert "\n" not in str(error.value)


def test_without_tensorboard_the_extra_is_named(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(MissingDependency, match=r"pip install 'placewright\[tensorflow\]'"):
        read(b"")


def test_a_wanted_op_must_exist(read):
    with pytest.raises(GraphError, match="no op 'head/ad': did you mean 'head/add'"):
        read(mlp(), outputs=["head/ad"])


def test_functions_that_call_without_end_are_refused(read, monkeypatch):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8,))
    node(graph, "PartitionedCall", "y", "x", calls={"f": "f0"})
    nodes = function(graph, "f0", ["a"], {"r": "again:output:0"})
    node(nodes, "PartitionedCall", "again", "a", calls={"f": "f0"})
    with pytest.raises(GraphError, match="function 'f0' calls itself: that cannot be unrolled"):
        read(graph)
    del graph.library.function[:]
    for at in range(40):  # each calls the next one twice: 2**40 calls
        nodes = function(graph, f"f{at}", ["a"], {"r": "second:output:0"})
        node(nodes, "PartitionedCall", "first", "a", calls={"f": f"f{at + 1}"})
        node(nodes, "PartitionedCall", "second", "first:output:0", calls={"f": f"f{at + 1}"})
    node(function(graph, "f40", ["a"], {"r": "n:y:0"}), "Neg", "n", "a")
    monkeypatch.setattr("placewright.frontends.inlining.MAX_CALL_DEPTH", 10)
    with pytest.raises(GraphError, match="its functions call one another more than 10 deep"):
        read(graph)
    monkeypatch.undo()
    message = r"its functions call for 3.30e\+12 ops: expected at most 100,000"
    with pytest.raises(GraphError, match=message):
        read(graph)


def test_a_function_reached_at_two_depths_counts_the_deeper(read, monkeypatch):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8,))
    node(graph, "PartitionedCall", "early", "x", calls={"f": "f9"})  # measured first, one deep
    node(graph, "PartitionedCall", "late", "x", calls={"f": "f0"})
    for at in range(9):
        nodes = function(graph, f"f{at}", ["a"], {"r": "n:output:0"})
        node(nodes, "PartitionedCall", "n", "a", calls={"f": f"f{at + 1}"})
    node(function(graph, "f9", ["a"], {"r": "n:y:0"}), "Neg", "n", "a")
    assert len([op for op in read(graph).ops if op.kind == "elementwise"]) == 2
    monkeypatch.setattr("placewright.frontends.inlining.MAX_CALL_DEPTH", 9)
    with pytest.raises(GraphError, match="its functions call one another more than 9 deep"):
        read(graph)


SEEDS = [
    content.SerializeToString(deterministic=True)
    for content in (mlp(), training(), while_loop("end"))
]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6
    ),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
def test_a_damaged_graph_is_read_or_refused_on_purpose(read, seed, edits, cut):
    content = bytearray(seed)
    for at, byte in edits:
        content[int(at * len(content))] = byte
    if cut is not None:
        del content[int(cut * len(content)) :]
    message = ""
    try:
        assert read(bytes(content)).ops
    except PlacewrightError as error:
        message = str(error)
    assert "\n" not in message
