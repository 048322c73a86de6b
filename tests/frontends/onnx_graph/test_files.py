"""ONNX files that are broken, or lie."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("onnx")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnxmodels import FLOAT, conditional, constant, info, loop, mlp, model, node

from placewright.errors import FileError, GraphError, MissingDependency, PlacewrightError
from placewright.frontends.onnx_graph.frontend import from_onnx


@pytest.fixture
def read(tmp_path):
    """Write a model or bytes to a file, and read that."""

    def through_a_file(content, **more):
        path = tmp_path / "model.onnx"
        if not isinstance(content, bytes):
            content = content.SerializeToString()
        path.write_bytes(content)
        return from_onnx(path, **more)

    return through_a_file


def test_without_onnx_the_extra_is_named(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependency, match=r"pip install 'placewright\[onnx\]'"):
        read(b"")


def test_given_sizes_must_be_whole_numbers(read):
    with pytest.raises(
        GraphError, match=r"dims has 'batch': \('8',\): expected whole numbers from 0"
    ):
        read(mlp("batch"), dims={"batch": "8"})
    with pytest.raises(
        GraphError, match=r"shapes has 'x': \(-8, 16\): expected whole numbers from 0"
    ):
        read(mlp("batch"), shapes={"x": (-8, 16)})


def test_a_file_that_is_no_model_is_told_so(read, tmp_path):
    with pytest.raises(FileError, match="cannot be read: no such file or directory"):
        from_onnx(tmp_path / "missing.onnx")
    with pytest.raises(FileError, match="cannot be read: is a directory"):
        from_onnx(tmp_path)
    with pytest.raises(FileError, match="is not an ONNX model, or is truncated"):
        read(b"\x89PNG not a model at all")
    with pytest.raises(FileError, match="is not an ONNX model: it has no graph"):
        read(b"")
    whole = mlp().SerializeToString()
    with pytest.raises(FileError, match="truncated"):
        read(whole[: len(whole) // 2])


def test_a_length_that_claims_two_gigabytes_is_not_believed(read):
    with pytest.raises(FileError, match="is not an ONNX model, or is truncated"):
        read(b"\x3a\xff\xff\xff\xff\x07" + bytes(100))  # graph: 2**31 - 1 bytes long


def test_a_file_too_large_for_a_protobuf_is_not_read(tmp_path):
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31 + 1)  # takes no room on the disk
    with pytest.raises(FileError, match="has 2,147,483,649 bytes: a model has at most"):
        from_onnx(path)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([-3, 4], r"tensor 'x' has shape \(-3, 4\): sizes must be 0 or more"),
        ([2**40, 2**40], r"tensor 'x' has shape \(.*\): expected at most 2\*\*50 elements"),
        ([1] * 70, "tensor 'x' has 70 dimensions: expected at most 64"),
    ],
)
def test_an_absurd_shape_is_refused(read, shape, message):
    with pytest.raises(GraphError, match=message):
        read(model([node("Relu", ["x"], ["y"])], [info("x", shape)], [info("y", None)]))


def test_absurd_constants_are_not_made(read):
    huge = model(
        [node("ConstantOfShape", ["s"], ["z"]), node("Relu", ["z"], ["y"])],
        [info("x", [1])],
        [info("y", None)],
        [constant("s", [2**30, 2**30], np.int64)],
    )
    with pytest.raises(GraphError, match=r"op 'ConstantOfShape' .* at most 2\*\*50 elements"):
        read(huge)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            lambda: model([node("Relu", ["z"], ["y"])], [info("x", [2])], [info("y", [2])]),
            r"op 'Relu' of type 'Relu': tensor 'z' is read, but nothing makes it",
        ),
        (
            lambda: model(
                [node("MatMul", ["x", "x"], ["y"], name="mm")],
                [info("x", [2, 3])],
                [info("y", [2])],
            ),
            r"op 'mm' of type 'MatMul': .*Incompatible dimensions",
        ),
        (
            lambda: model(
                [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])],
                [info("x", [2])],
                [info("y", [2])],
            ),
            "tensor 'y' is made twice: names must be unique",
        ),
        (
            lambda: model(
                [node("Relu", ["w"], ["y"])],
                [],
                [info("y", [2])],
                [helper.make_tensor("w", FLOAT, [2], bytes(8), raw=True)],
                opset=12345,
            ),
            "opset '' has version 12345: expected 1 to 999",
        ),
    ],
)
def test_a_malformed_model_is_one_clear_line(read, content, message):
    with pytest.raises(GraphError, match=message) as error:
        read(content())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (node("Einsum", ["x"], ["y"], equation=b"-\x80"), "Einsum cannot work on shapes"),
        (node("Einsum", ["x"], ["y"], equation="ijk->i"), "einsum term 'ijk' does not fit shape"),
        (node("Einsum", ["x"], ["y"], equation="ij->?"), r"einsum 'ij->\?' makes '\?'"),
        (node("Einsum", ["x"], ["y"], equation="ij,j->i"), "has 2 terms for 1 inputs"),
        (node("Softmax", ["x"], ["y"], axis=2**62), "it has axis 4611686018427387904"),
        (node("GatherND", ["x", "x"], ["y"], batch_dims=-(2**31)), "it has batch_dims -2147483648"),
        (node("Split", ["x"], ["y"], num_outputs=3), "it has num_outputs 3: it names 1"),
        (node("Relu", [], ["y"]), "it has 0 inputs: expected 1 to 1"),
        (node("Constant", [], ["y"]), "holds no number that can be read"),
        (node("If", ["x"], ["y"]), "it has no subgraph 'then_branch'"),
        (node("If", [], ["y"]), "it has 0 inputs: expected its condition alone"),
        (node("If", ["x", "x"], ["y"]), "it has 2 inputs: expected its condition alone"),
        (node("Scan", ["x"], ["y"]), "it has no subgraph 'body'"),
        (node("SequenceConstruct", ["x"], ["y"]), "it makes 'y', which is not a tensor"),
    ],
)
def test_an_op_that_makes_no_sense_is_named(read, bad, message):
    with pytest.raises(
        GraphError, match=f"op '{bad.op_type}' of type '{bad.op_type}': .*{message}"
    ):
        read(model([bad], [info("x", [2, 3])], [info("y", None)], opset=20))


def doubling(depth, **constant_size):
    """Functions that each call the one before twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ours", 1)]

    def function(name, nodes):
        return helper.make_function("ours", name, ["a"], ["b"], nodes, opsets)

    functions = [function("f0", [node("Neg", ["a"], ["b"])])]
    if constant_size:
        value = constant("v", np.zeros(**constant_size))
        made = [node("Constant", [], ["c"], value=value), node("Add", ["a", "c"], ["b"])]
        functions = [function("f0", made)]
    for at in range(1, depth):
        calls = [node(f"f{at - 1}", [one], [two], domain="ours") for one, two in ("am", "mb")]
        functions.append(function(f"f{at}", calls))
    call = node(f"f{depth - 1}", ["x"], ["y"], domain="ours")
    more = {"functions": functions, "opsets": opsets[1:]}
    return model([call], [info("x", [4])], [info("y", [4])], **more)


def test_functions_that_double_are_counted_before_they_are_inlined(read):
    assert len(read(doubling(5)).ops) == 1 + 2**4
    with pytest.raises(GraphError, match=r"its functions call for 1.65e\+12 ops: .* 100,000"):
        read(doubling(40))
    with pytest.raises(GraphError, match=r"its functions call for .* bytes: expected at most"):
        read(doubling(15, shape=100_000))


def test_functions_without_end_are_refused(read):
    content = doubling(3)
    content.functions[0].node[0].CopyFrom(node("f2", ["a"], ["b"], domain="ours"))
    with pytest.raises(GraphError, match="calls itself: that cannot be unrolled"):
        read(content)


def test_a_weight_must_hold_what_its_shape_says(read):
    content = mlp()
    content.graph.initializer[0].dims[0] = 17
    with pytest.raises(GraphError, match="initializer 'w1' holds 2,048 bytes: expected 2,176"):
        read(content)


SEEDS = [
    content.SerializeToString()
    for content in (mlp(), conditional("c"), loop(node("Relu", ["before"], ["after"])))
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
def test_a_damaged_model_is_read_or_refused_on_purpose(read, seed, edits, cut):
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
