"""ONNX models: small ones built on the spot, and broken ones."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper
from onnxmodels import conditional, constant, info, loop, mlp, model, node, zeros

from placewright.errors import GraphError
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


def op(graph, name):
    return graph.ops[graph.position[name]]


def kinds(graph):
    return [op.kind for op in graph.ops]


def test_an_mlp_has_the_flops_and_bytes_of_its_layers(read):
    graph = read(mlp())
    assert graph.name == "model"
    assert op(graph, "/body/first/MatMul").flops == 2 * 8 * 16 * 32
    assert op(graph, "/body/first/MatMul").bytes_moved == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert op(graph, "/body/first/Add").flops == 8 * 32
    assert op(graph, "/head/Gemm").flops == 2 * 8 * 32 * 4 + 8 * 4
    weights = [op for op in graph.ops if op.kind == "weight"]
    assert sum(op.outputs[0] for op in weights) == 4 * (16 * 32 + 32 + 32 * 4 + 4)
    assert op(graph, "x").kind == "input"
    assert graph.outputs == ((graph.position["/head/Gemm"], 0),)
    assert op(graph, "/body/first/Add").module == "body.first"


def test_a_symbolic_dimension_takes_the_size_the_user_gives(read):
    assert op(read(mlp("batch"), dims={"batch": 8}), "/body/Relu").flops == 8 * 32
    assert op(read(mlp("batch"), dims={"batch": 3}), "/body/Relu").flops == 3 * 32


def test_a_missing_size_is_asked_for_by_name(read):
    ask = r"input 'x' has shape \(batch, 16\): give the sizes, such as --dims batch=8 or dims="
    with pytest.raises(GraphError, match=ask):
        read(mlp("batch"))
    with pytest.raises(GraphError, match=r"dims has 'bach', .*did you mean 'batch'\?"):
        read(mlp("batch"), dims={"batch": 8, "bach": 8})
    with pytest.raises(
        GraphError, match=r"input 'x' has shape \(\?, 16\): give the sizes, such as --dims x=8x16"
    ):
        read(mlp(None))
    assert op(read(mlp(None), shapes={"x": (8, 16)}), "/body/Relu").flops == 8 * 32


def test_external_data_is_never_read_but_told_when_missing(read, caplog):
    content = mlp()
    for tensor in content.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = read(content)
    assert "external data 'weights.bin' not found: not needed" in caplog.text
    assert op(graph, "w1").outputs == (4 * 16 * 32,)


def test_a_convolution_counts_two_flops_a_multiply_add(read):
    graph = read(
        model(
            [
                node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2], group=2),
                node("ConvTranspose", ["y", "u"], ["z"], strides=[2, 2]),
                node("MaxPool", ["z"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            ],
            [info("x", [1, 8, 32, 32])],
            [info("p", None)],
            [zeros("w", 16, 4, 3, 3), zeros("b", 16), zeros("u", 16, 3, 2, 2)],
        )
    )
    assert op(graph, "Conv").flops == 2 * (16 * 16 * 16) * (4 * 3 * 3) + 16 * 16 * 16
    assert op(graph, "ConvTranspose").flops == 2 * (16 * 16 * 16) * (3 * 2 * 2)
    assert op(graph, "MaxPool").flops == (3 * 16 * 16) * 4


def test_layout_changes_cost_nothing_but_a_transpose(read):
    graph = read(
        model(
            [
                node("Flatten", ["x"], ["f"]),
                node("Unsqueeze", ["f", "axes"], ["u"]),
                node("Reshape", ["u", "shape"], ["r"]),
                node("Transpose", ["r"], ["t"], perm=[1, 0]),
                node("Identity", ["t"], ["y"]),
            ],
            [info("x", [2, 3, 4])],
            [info("y", None)],
            [constant("axes", [0], np.int64), constant("shape", [-1, 4], np.int64)],
        )
    )
    assert kinds(graph) == ["input", "view", "view", "view", "copy", "view"]
    assert op(graph, "Reshape").aliases == ((0, 0),)
    assert op(graph, "Reshape").outputs == (2 * 3 * 4 * 4,)
    assert (op(graph, "Transpose").flops, op(graph, "Transpose").bytes_moved) == (0, 2 * 96)


def test_what_computes_a_shape_is_no_op_of_the_graph(read):
    graph = read(
        model(
            [
                node("Shape", ["x"], ["s"]),
                node("Gather", ["s", "zero"], ["n"]),
                node("Unsqueeze", ["n", "axis"], ["n1"]),
                node("Concat", ["n1", "rest"], ["target"], axis=0),
                node("Reshape", ["x", "target"], ["y"]),
            ],
            [info("x", ["batch", 4, 8])],
            [info("y", None)],
            [
                constant("zero", 0, np.int64),
                constant("axis", [0], np.int64),
                constant("rest", [-1], np.int64),
            ],
        ),
        dims={"batch": 5},
    )
    assert kinds(graph) == ["input", "view"]


def test_a_constant_of_one_element_is_part_of_its_reader(read):
    graph = read(
        model(
            [
                node("Constant", [], ["half"], value=constant("", 0.5)),
                node("Constant", [], ["row"], value=constant("", np.ones(4))),
                node("Mul", ["x", "half"], ["m"]),
                node("Add", ["m", "row"], ["y"]),
            ],
            [info("x", [2, 4])],
            [info("y", [2, 4])],
        )
    )
    assert [(op.name, op.kind) for op in graph.ops] == [
        ("x", "input"), ("Mul", "elementwise"), ("row", "weight"), ("Add", "elementwise"),
    ]  # fmt: skip


def test_an_if_costs_its_costlier_branch_and_reads_what_both_read(read):
    graph = read(conditional("c"))
    choice = op(graph, "choice")
    assert choice.flops == 2 * 8 * 16 * 16
    assert choice.outputs == (4 * 8 * 16,)
    assert [graph.ops[source].name for source, _ in choice.inputs] == ["c", "x", "w"]
    assert "heavy" not in graph.position


def test_an_if_whose_condition_is_known_is_its_branch(read):
    graph = read(conditional("known"))
    assert op(graph, "heavy").flops == 2 * 8 * 16 * 16
    assert "choice" not in graph.position


def test_a_loop_costs_its_body_times_the_trips(read):
    step = node("MatMul", ["before", "w"], ["after"])
    graph = read(loop(step, weights=[zeros("w", 4, 4)]))
    assert op(graph, "loop").flops == 10 * (2 * 4 * 4 * 4)
    assert op(graph, "loop").bytes_moved == 10 * (4 * 3 * 16)  # the condition's view is free
    assert op(graph, "loop.w").kind == "weight"
    assert op(graph, "loop.w").outputs == (64,)
    assert op(graph, "loop").workspace == 64


def test_a_loop_stacks_what_it_scans_out(read):
    steps = [node("Relu", ["before"], ["after"]), node("Neg", ["after"], ["row"])]
    graph = read(loop(*steps, scanned=True))
    assert op(graph, "loop").flops == 10 * (16 + 16)
    assert op(graph, "loop").outputs[:2] == (4 * 16, 10 * 4 * 16)


def test_a_loop_whose_tensor_grows_is_costed_trip_by_trip(read):
    step = node("Concat", ["before", "x"], ["after"], axis=0)
    graph = read(loop(step))
    assert op(graph, "loop").outputs == (4 * (4 + 10 * 4) * 4,)
    # trip k reads k and 1 blocks of 64 bytes and makes k + 1 of them: 64 (2 k + 2)
    assert op(graph, "loop").bytes_moved == sum(64 * (2 * k + 2) for k in range(1, 11))


def test_a_loop_of_unknown_trip_count_costs_one_trip_and_is_listed(read, caplog):
    graph = read(loop(node("Relu", ["before"], ["after"]), trips="n"))
    assert op(graph, "loop").flops == 16
    assert "onnx loops of unknown trip count, counted as one trip: loop" in caplog.text


def test_a_scan_costs_its_body_times_its_length(read):
    body = helper.make_graph(
        [node("Add", ["state", "row"], ["next"]), node("Neg", ["next"], ["made"])],
        "body",
        [info("state", None), info("row", None)],
        [info("next", None), info("made", None)],
    )
    graph = read(
        model(
            [node("Scan", ["s", "x"], ["last", "all"], name="scan", body=body, num_scan_inputs=1)],
            [info("s", [6]), info("x", [7, 6])],
            [info("last", None), info("all", None)],
        )
    )
    assert op(graph, "scan").flops == 7 * (6 + 6)
    assert op(graph, "scan").outputs == (4 * 6, 4 * 7 * 6)


def test_functions_of_the_model_are_inlined(read):
    function = helper.make_function(
        "mine", "Twice", ["a"], ["c"],
        [node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["c"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    graph = read(
        model(
            [node("Twice", ["x"], ["y"], domain="mine")],
            [info("x", [8])],
            [info("y", None)],
            opsets=[helper.make_opsetid("mine", 1)],
            functions=[function],
        )
    )
    assert kinds(graph) == ["input", "elementwise", "elementwise"]


def test_an_op_of_another_domain_is_listed_and_needs_its_shape(read, caplog):
    nodes = [node("Magic", ["x"], ["m"], domain="mine", name="magic"), node("Relu", ["m"], ["y"])]
    content = model(
        nodes, [info("x", [8])], [info("y", None)], opsets=[helper.make_opsetid("mine", 1)]
    )
    ask = "op 'magic' of type 'Magic' makes tensor 'm', whose shape cannot be inferred: give it"
    with pytest.raises(GraphError, match=ask):
        read(content)
    graph = read(content, shapes={"m": (3, 5)})
    assert (op(graph, "magic").kind, op(graph, "magic").flops) == ("Magic", 0)
    assert op(graph, "magic").bytes_moved == 4 * (8 + 15)
    assert "onnx ops without a known cost, counted by their bytes only: Magic (1)" in caplog.text


def test_an_op_that_borrows_a_name_of_ours_is_not_free(read, caplog):
    content = model(
        [node("view", ["x"], ["y"], domain="mine", name="v")],
        [info("x", [8])],
        [info("y", [8])],
        opsets=[helper.make_opsetid("mine", 1)],
    )
    graph = read(content, shapes={"y": (8,)})
    assert (op(graph, "v").kind, op(graph, "v").bytes_moved) == ("onnx.view", 4 * 16)
    assert "onnx.view (1)" in caplog.text


def test_an_lstm_and_an_attention_have_the_flops_of_their_products(read):
    graph = read(
        model(
            [
                node("LSTM", ["x", "w", "r"], ["h"], hidden_size=6),
                node("Attention", ["q", "k", "v"], ["a"]),
            ],
            [
                info("x", [5, 2, 3]),
                *(info(name, [2, 4, size, 8]) for name, size in (("q", 10), ("k", 20), ("v", 20))),
            ],
            [info("h", None), info("a", None)],
            [zeros("w", 1, 24, 3), zeros("r", 1, 24, 6)],
            opset=23,
        )
    )
    assert op(graph, "LSTM").flops == (5 * 2) * 6 * (2 * 4 * (3 + 6) + 4 * 4 + 5)
    assert op(graph, "Attention").flops == 2 * 4 * 10 * 20 * (2 * (8 + 8) + 5)


def test_nodes_may_stand_in_any_order_but_a_cycle_is_spelled_out(read):
    content = mlp()
    ordered = read(content)
    nodes = [content.graph.node[at] for at in (3, 1, 2, 0)]
    del content.graph.node[:]
    content.graph.node.extend(nodes)
    assert [op.name for op in read(content).ops] == [op.name for op in ordered.ops]
    circular = model(
        [node("Relu", ["b"], ["a"], name="one"), node("Neg", ["a"], ["b"], name="two")],
        [info("x", [2])],
        [info("a", [2])],
    )
    with pytest.raises(GraphError, match="has a cycle: 'one' -> 'two' -> 'one'"):
        read(circular)


def test_names_are_made_unique(read):
    graph = read(
        model(
            [node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])],
            [info("x", [2])],
            [info("y", [2])],
        )
    )
    assert [op.name for op in graph.ops] == ["x", "Relu", "Relu_1", "Relu_2"]
