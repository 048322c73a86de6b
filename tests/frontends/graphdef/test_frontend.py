"""TensorFlow graphs: small ones built by hand, and broken ones."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("tensorboard.compat.proto.graph_pb2")

from google.protobuf import text_format
from graphdefs import (
    BOOL,
    FLOAT,
    INT32,
    constant,
    function,
    graph_pb2,
    mlp,
    node,
    placeholder,
    saved_model,
    training,
    variable,
    while_loop,
)

from placewright.errors import GraphError
from placewright.frontends.graphdef.frontend import device_hints, from_tensorflow


@pytest.fixture
def read(tmp_path):
    """Write a GraphDef or bytes to a file, and read that."""

    def through_a_file(content, name="model.pb", using=from_tensorflow, **more):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if not isinstance(content, bytes):
            content = content.SerializeToString()
        path.write_bytes(content)
        return using(path, **more)

    return through_a_file


def op(graph, name):
    return graph.ops[graph.position[name]]


def sources(graph, name):
    return [graph.ops[source].name for source, _ in op(graph, name).inputs]


def weight_bytes(graph):
    return sum(op.outputs[0] for op in graph.ops if op.kind == "weight")


MLP_BYTES = 4 * (16 * 32 + 32 + 32 * 4 + 4)


def test_an_mlp_has_the_flops_and_bytes_of_its_layers(read):
    graph = read(mlp())
    assert graph.name == "model"
    assert op(graph, "body/first/MatMul").flops == 2 * 8 * 16 * 32
    assert op(graph, "body/first/MatMul").bytes_moved == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert op(graph, "body/first/BiasAdd").flops == 8 * 32
    assert op(graph, "body/first/BiasAdd").module == "body.first"
    assert op(graph, "head/add").outputs == (4 * 8 * 4,)
    assert weight_bytes(graph) == MLP_BYTES
    assert op(graph, "x").kind == "input"
    assert graph.outputs == ((graph.position["head/add"], 0),)


def test_text_and_binary_give_the_same_graph(read):
    text = text_format.MessageToString(mlp()).encode()
    assert read(text, "model.pbtxt").fingerprint == read(mlp()).fingerprint


def test_a_saved_model_is_read_up_to_its_signature(read, tmp_path):
    graph = mlp()
    node(graph, "SaveV2", "save", "w1")
    content = saved_model(graph, {"serving_default": "head/add:0", "hidden": "body/Relu:0"})
    saved = read(content, "model/saved_model.pb")
    assert saved.name == "model"
    assert weight_bytes(saved) == MLP_BYTES
    assert "save" not in saved.position
    assert from_tensorflow(tmp_path / "model").fingerprint == saved.fingerprint
    hidden = from_tensorflow(tmp_path / "model", signature="hidden")
    assert hidden.outputs == ((hidden.position["body/Relu"], 0),)
    with pytest.raises(GraphError, match="no signature 'hiden': did you mean 'hidden'"):
        from_tensorflow(tmp_path / "model", signature="hiden")


def test_a_variable_is_a_weight_and_its_read_a_view(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8, 16))
    variable(graph, "w", np.zeros((16, 4)))
    node(graph, "ReadVariableOp", "w/read", "w", types={"dtype": FLOAT})
    node(graph, "ReadVariableOp", "w/unused", "w", types={"dtype": FLOAT})
    node(graph, "MatMul", "y", "x", "w/read")
    made = read(graph)
    assert [(op.name, op.kind) for op in made.ops] == [
        ("x", "input"), ("w", "weight"), ("w/read", "view"), ("y", "matmul"),
    ]  # fmt: skip
    assert op(made, "w").outputs == (4 * 16 * 4,)
    assert op(made, "w/read").aliases == ((0, 0),)


def test_an_update_shares_a_device_with_its_variable_and_ends_the_step(read):
    graph = read(training())
    update = op(graph, "update")
    assert (update.kind, update.phase) == ("optimizer", "update")
    assert update.flops == 4 * 32 * 4
    assert update.bytes_moved == 4 * 128 * 5  # weight and momentum read and written, gradient read
    assert op(graph, "gradients/MatMul").phase == "backward"
    assert op(graph, "gradients/MatMul").flops == 2 * 32 * 8 * 4
    assert update.colocate == op(graph, "w2").colocate == op(graph, "w2/m").colocate == "w2"
    assert op(graph, "w1").colocate is None
    assert sources(graph, "train") == ["update"]


def test_what_only_initialises_is_left_out(read):
    graph = read(training())
    assert not {"w2/Assign", "init", "initial"} & set(graph.position)
    assert "init" in read(training(), outputs=["init"]).position


def test_a_control_edge_is_a_tensor_of_no_bytes(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8, 16))
    node(graph, "Relu", "first", "x", "^x")
    node(graph, "NoOp", "barrier", "^first")
    node(graph, "Neg", "second", "x", "^barrier")
    constant(graph, "c", np.ones(16))
    graph.node[-1].input.append("^first")
    node(graph, "Add", "third", "second", "c")
    made = read(graph)
    assert op(made, "first").outputs == (4 * 8 * 16, 0)
    assert sources(made, "first") == ["x"]  # an input is there from the start
    assert made.ops[made.position["barrier"]].inputs == ((made.position["first"], 1),)
    assert sources(made, "second") == ["x", "barrier"]
    assert op(made, "second").bytes_moved == 4 * 2 * 8 * 16
    assert op(made, "c").inputs == ()


def test_a_read_of_a_variable_is_there_from_the_start_unless_it_waits(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (4,))
    variable(graph, "w", np.zeros(4))
    node(graph, "ReadVariableOp", "early", "w", types={"dtype": FLOAT})
    node(graph, "Relu", "first", "x", "^early")
    node(graph, "ReadVariableOp", "late", "w", "^first", types={"dtype": FLOAT})
    node(graph, "Add", "y", "early", "late")
    made = read(graph)
    assert op(made, "early").outputs == (16,)
    assert sources(made, "first") == ["x"]
    assert sources(made, "late") == ["w", "first"]


def test_colocation_follows_the_class_attribute(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8,))
    node(graph, "Relu", "a", "x")
    node(graph, "Relu", "b", "a", _class=["loc:@a"])
    node(graph, "Relu", "c", "b", _class=["loc:@b"])
    node(graph, "Relu", "d", "c")
    made = read(graph)
    assert [op(made, name).colocate for name in "abcd"] == ["a", "a", "a", None]


def test_device_strings_are_hints(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8,))
    node(graph, "Relu", "a", "x", device="/device:GPU:1")
    node(graph, "Relu", "b", "a")
    assert read(graph, using=device_hints) == {"a": "/device:GPU:1"}


def test_shapes_are_inferred_through_the_usual_layers(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (2, 16, 16, 3))
    constant(graph, "k", np.zeros((3, 3, 3, 8)))
    constant(graph, "d", np.zeros((3, 3, 8, 2)))
    constant(graph, "s", np.zeros(16))
    constant(graph, "flat", [-1, 4 * 4 * 16], np.int32)
    constant(graph, "axis", 1, np.int32)
    one, two = [1, 1, 1, 1], [1, 2, 2, 1]
    node(graph, "Conv2D", "conv", "x", "k", strides=two, padding="SAME")
    node(graph, "DepthwiseConv2dNative", "depth", "conv", "d", strides=one, padding="SAME")
    node(graph, "FusedBatchNormV3", "norm", "depth", "s", "s", "s", "s")
    node(graph, "MaxPool", "pool", "norm", ksize=two, strides=two, padding="VALID")
    node(graph, "Reshape", "rows", "pool", "flat")
    node(graph, "ConcatV2", "both", "rows", "rows", "axis")
    node(graph, "Softmax", "y", "both")
    made = read(graph)
    assert op(made, "conv").flops == 2 * (2 * 8 * 8 * 8) * (3 * 3 * 3)
    assert op(made, "depth").flops == 2 * (2 * 8 * 8 * 16) * (3 * 3)
    assert op(made, "norm").outputs[:2] == (4 * 2 * 8 * 8 * 16, 4 * 16)
    assert op(made, "pool").flops == (2 * 4 * 4 * 16) * 4
    assert (op(made, "rows").kind, op(made, "rows").outputs) == ("view", (4 * 2 * 256,))
    assert op(made, "y").outputs == (4 * 2 * 512,)
    assert "flat" not in made.position  # says how the reshape works
    assert weight_bytes(made) == 4 * (3 * 3 * 3 * 8 + 3 * 3 * 8 * 2 + 16)


def test_what_computes_a_shape_is_no_op_of_the_graph(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (5, 4, 8))
    node(graph, "Shape", "shape", "x", types={"T": FLOAT, "out_type": INT32})
    for name, values in (("zero", [0]), ("one", [1])):
        constant(graph, name, values, np.int32)
    constant(graph, "rest", -1, np.int32)
    node(graph, "StridedSlice", "batch", "shape", "zero", "one", "one", types={"T": INT32},
         shrink_axis_mask=1)  # fmt: skip
    node(graph, "Pack", "target", "batch", "rest", types={"T": INT32})
    node(graph, "Reshape", "y", "x", "target")
    made = read(graph)
    assert [(op.name, op.kind) for op in made.ops] == [("x", "input"), ("y", "view")]


def test_an_open_shape_is_asked_for(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (-1, 16))
    node(graph, "Relu", "y", "x")
    ask = r"op 'x' of type 'Placeholder' has shape \(\?, 16\): give it, such as --dims x=8x16"
    with pytest.raises(GraphError, match=ask):
        read(graph)
    assert op(read(graph, shapes={"x": (3, 16)}), "y").flops == 3 * 16
    with pytest.raises(GraphError, match="shapes has 'z': known: x, y"):
        read(graph, shapes={"x": (3, 16), "z": (1,)})


def test_an_unknown_op_is_listed_and_needs_its_shape(read, caplog):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8,))
    node(graph, "Magic", "m", "x")
    node(graph, "Relu", "y", "m")
    ask = r"op 'm' of type 'Magic' makes a tensor whose shape cannot be inferred: give it"
    with pytest.raises(GraphError, match=ask):
        read(graph)
    made = read(graph, shapes={"m": (3, 5)})
    assert (op(made, "m").kind, op(made, "m").bytes_moved) == ("Magic", 4 * (8 + 15))
    assert "tensorflow ops without a known cost, counted by their bytes only: Magic (1)" in (
        caplog.text
    )
    graph.node[1].attr["_output_shapes"].list.shape.add().dim.add(size=7)
    assert op(read(graph), "m").outputs == (4 * 7,)


def test_functions_are_inlined(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8,))
    nodes = function(graph, "twice", ["a"], {"r": "double:z:0"})
    node(nodes, "Relu", "relu", "a")
    node(nodes, "Add", "double", "relu:activations:0", "relu:activations:0")
    node(graph, "PartitionedCall", "model", "x", calls={"f": "twice"})
    node(graph, "StatefulPartitionedCall", "StatefulPartitionedCall", "model", calls={"f": "twice"})
    node(graph, "Neg", "y", "StatefulPartitionedCall")
    made = read(graph)
    assert [op.name for op in made.ops] == [
        "x", "model/relu", "model/double", "relu", "double", "y",
    ]  # fmt: skip
    assert op(made, "model/double").module == "model"


def test_a_while_costs_its_body_times_its_trips(read):
    loop = op(read(while_loop("end")), "loop")
    # five trips (0, 2, 4, 6, 8), and six tests
    assert loop.flops == 5 * (1 + 2 * 8 * 16 * 16 + 8 * 16) + 6
    assert loop.outputs == (4, 4, 4 * 8 * 16, 4 * 16 * 16)


def test_a_while_of_unknown_trip_count_costs_one_and_is_listed(read, caplog):
    with caplog.at_level(logging.WARNING, "placewright"):
        loop = op(read(while_loop("n")), "loop")
    assert loop.flops == (1 + 2 * 8 * 16 * 16 + 8 * 16) + 2
    assert "tensorflow loops of unknown trip count, counted as one trip: loop" in caplog.text


def test_an_if_costs_its_costlier_branch(read):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "c", (), BOOL)
    placeholder(graph, "x", (8, 8))
    node(function(graph, "heavy", ["a"], {"r": "m:product:0"}), "MatMul", "m", "a", "a")
    node(function(graph, "light", ["a"], {"r": "n:y:0"}), "Neg", "n", "a")
    calls = {"then_branch": "light", "else_branch": "heavy"}
    node(graph, "If", "choice", "c", "x", calls=calls)
    constant(graph, "no", False, np.bool_)
    node(graph, "If", "known", "no", "choice", calls=calls)
    made = read(graph)
    assert op(made, "choice").flops == 2 * 8 * 8 * 8
    assert op(made, "known/m").kind == "matmul"
    assert "known" not in made.position


def test_a_loop_of_tensorflow_1_is_cut_where_it_closes(read, caplog):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8,))
    node(graph, "Enter", "enter", "x", frame_name="loop")
    node(graph, "Merge", "merge", "enter", "next")
    node(graph, "Tanh", "body", "merge")
    node(graph, "NextIteration", "next", "body")
    made = read(graph)
    assert op(made, "body").flops == 8
    assert sources(made, "merge") == ["enter"]
    assert "tensorflow loops of unknown trip count, counted as one trip: loop" in caplog.text


def test_a_range_of_a_rounded_quotient_of_sizes_has_a_shape(read):
    # The rows of a feature map of stride 32: ceil(100 / 32) = 4, as an anchor generator computes.
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (1, 100, 3))
    node(graph, "Shape", "shape", "x", types={"T": FLOAT, "out_type": INT32})
    for name, value in (("one", [1]), ("two", [2])):
        constant(graph, name, value, np.int32)
    node(graph, "StridedSlice", "rows", "shape", "one", "two", "one", shrink_axis_mask=1)
    node(graph, "Cast", "cast", "rows", types={"SrcT": INT32, "DstT": FLOAT})
    constant(graph, "stride", 32)
    node(graph, "RealDiv", "quotient", "cast", "stride")
    node(graph, "Ceil", "ceil", "quotient")
    constant(graph, "zero", 0)
    constant(graph, "step", 1)
    node(graph, "Range", "range", "zero", "ceil", "step", types={"Tidx": FLOAT})
    node(graph, "Exp", "y", "range")
    assert op(read(graph), "y").flops == 4
