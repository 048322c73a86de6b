"""Shapes of ONNX models: folded computations, defaults of attributes, unknown dimensions."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import helper
from onnxmodels import BOOL, INT64, branch, constant, info, model, node, zeros

from placewright.errors import GraphError
from placewright.frontends.onnx_graph.frontend import from_onnx


@pytest.fixture
def read(tmp_path):
    """Write a model to a file, and read that."""

    def through_a_file(content, **more):
        path = tmp_path / "model.onnx"
        path.write_bytes(content.SerializeToString())
        return from_onnx(path, **more)

    return through_a_file


def op(graph, name):
    return graph.ops[graph.position[name]]


def total_flops(graph):
    return sum(op.flops for op in graph.ops)


def test_a_shape_computed_before_opset_13_is_folded(read):
    # Until opset 12 the axes of Unsqueeze are an attribute, since 13 an input.
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Unsqueeze", ["batch"], ["rows"], axes=[0]),
        node("Concat", ["rows", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["flat"]),
        node("ConstantOfShape", ["to"], ["blank"], name="blank"),
        node("Relu", ["flat"], ["y"], name="relu"),
    ]
    constants = [constant("zero", 0, np.int64), constant("rest", [12], np.int64)]
    content = model(
        nodes,
        [info("x", [8, 3, 4])],
        [info("y", None), info("blank", None)],
        constants,
        opset=12,
    )
    graph = read(content)
    assert op(graph, "relu").flops == 8 * 12
    assert op(graph, "relu").outputs == (4 * 8 * 12,)
    assert op(graph, "blank").outputs == (4 * 8 * 12,)


def test_a_quantized_lstm_of_onnx_runtime_has_the_sizes_and_cost_of_an_lstm(read):
    # Five steps, batch 2, width 8, hidden size 16, two directions.
    inputs = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    attributes = {"direction": "bidirectional", "hidden_size": 16}
    lstm = node(
        "DynamicQuantizeLSTM", inputs, ["y"], name="lstm", domain="com.microsoft", **attributes
    )
    weights = [
        constant("w", np.zeros((2, 8, 64)), np.int8),
        constant("r", np.zeros((2, 16, 64)), np.int8),
        *(zeros(name, 2) for name in ("ws", "rs")),
        *(constant(name, np.zeros(2), np.int8) for name in ("wz", "rz")),
    ]
    content = model(
        [lstm],
        [info("x", [5, 2, 8])],
        [info("y", None)],
        weights,
        opsets=[helper.make_opsetid("com.microsoft", 1)],
    )
    graph = read(content)
    assert op(graph, "lstm").outputs == (4 * 5 * 2 * 2 * 16,)
    per_element = 2 * 4 * (8 + 16) + 4 * 4 + 5
    assert op(graph, "lstm").flops == 2 * (5 * 2) * 16 * per_element


def test_an_stft_without_onesided_makes_half_of_the_bins(read):
    # 400 points have 201 bins, as the MatMul after it expects; (16000 - 400) / 160 + 1 frames.
    nodes = [
        node("STFT", ["x", "step", "window"], ["bins"], name="stft"),
        node("Slice", ["bins", "from", "to", "axis"], ["real"]),
        node("Squeeze", ["real", "axis"], ["flat"]),
        node("MatMul", ["flat", "mel"], ["y"], name="matmul"),
    ]
    weights = [
        constant("step", 160, np.int64),
        zeros("window", 400),
        *(constant(name, [at], np.int64) for name, at in (("from", 0), ("to", 1), ("axis", 3))),
        zeros("mel", 201, 80),
    ]
    graph = read(model(nodes, [info("x", [2, 16000, 1])], [info("y", None)], weights))
    assert op(graph, "stft").outputs == (4 * 2 * 98 * 201 * 2,)
    assert op(graph, "matmul").flops == 2 * (2 * 98) * 201 * 80
    transforms = 2 * 98 * 5 * 400 * math.log2(400)
    assert op(graph, "stft").flops == pytest.approx(transforms + 2 * 98 * 400)


def test_a_dft_costs_a_fast_transform_of_each_row(read, caplog):
    nodes = [node("DFT", ["x", "points"], ["y"], name="dft", axis=1, onesided=1)]
    content = model(
        nodes, [info("x", [2, 400, 1])], [info("y", None)], [constant("points", 512, np.int64)]
    )
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = read(content)
    assert not caplog.records
    assert op(graph, "dft").outputs == (4 * 2 * 257 * 2,)
    assert op(graph, "dft").flops == 2 * 5 * 512 * 9


def by_rate(condition="at_16k"):
    """One branch expects 16 columns, the other 8, as in a network for two sampling rates."""
    branches = {
        f"{name}_branch": branch(name, node("MatMul", ["x", weight], [name], name=name), made=name)
        for name, weight in (("then", "w16"), ("else", "w8"))
    }
    return model(
        [
            node("Equal", ["rate", "16k"], ["at_16k"]),
            node("If", [condition], ["y"], name="choice", **branches),
        ],
        [info("x", ["batch", "columns"]), info("rate", [], INT64)],
        [info("y", None)],
        [zeros("w16", 16, 4), zeros("w8", 8, 4), constant("16k", 16000, np.int64)],
    )


def test_a_branch_that_does_not_fit_the_shapes_is_left_out_with_a_warning(read, caplog):
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = read(by_rate(), dims={"batch": 2, "columns": 16})
    assert op(graph, "choice").flops == 2 * 2 * 16 * 4
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "If 'choice': its else_branch does not fit the shapes and is left out: op 'else' of type "
        "'MatMul': "
    )
    other = read(by_rate(), dims={"batch": 2, "columns": 8})
    assert op(other, "choice").flops == 2 * 2 * 8 * 4


def test_a_branch_that_is_left_out_asks_for_nothing(read, caplog):
    # The branch has an op of unknown cost and one of unknown size before the one that fails.
    bad = branch(
        "bad",
        node("Exotic", ["x"], ["u"], domain="com.example"),
        node("MatMul", ["x", "w8"], ["r"]),
    )
    good = branch("good", node("MatMul", ["x", "w16"], ["q"]), made="q")
    content = model(
        [node("If", ["c"], ["y"], name="choice", then_branch=bad, else_branch=good)],
        [info("x", [2, 16]), info("c", [], BOOL)],
        [info("y", None)],
        [zeros("w16", 16, 4), zeros("w8", 8, 4)],
        opsets=[helper.make_opsetid("com.example", 1)],
    )
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = read(content)
    assert op(graph, "choice").flops == 2 * 2 * 16 * 4
    assert len(caplog.records) == 1


def test_two_branches_that_do_not_fit_are_an_error(read):
    with pytest.raises(GraphError, match="op 'then' of type 'MatMul': "):
        read(by_rate(), dims={"batch": 2, "columns": 12})


def test_an_input_of_one_element_can_be_given_a_value(read, caplog):
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = read(by_rate(), dims={"batch": 2, "columns": 8, "rate": 8000})
    assert not caplog.records
    assert "choice" not in graph.position
    assert op(graph, "else").flops == 2 * 2 * 8 * 4
    assert op(graph, "rate").kind == "input"


def test_a_value_for_an_input_of_many_elements_is_refused(read):
    content = model([node("Relu", ["x"], ["y"])], [info("x", [2, 3])], [info("y", None)])
    with pytest.raises(GraphError, match=r"dims has 'x', an input of shape \(2, 3\): expected a"):
        read(content, dims={"x": 7})


def test_a_number_for_a_vector_is_its_size(read):
    content = model(
        [node("Relu", ["x"], ["y"], name="relu")], [info("x", [None])], [info("y", None)]
    )
    assert op(read(content, dims={"x": 7}), "relu").flops == 7


def test_a_dimension_of_minus_one_is_unknown(read):
    content = model(
        [node("Relu", ["x"], ["y"], name="relu")], [info("x", [-1, 3, "?", "?"])], [info("y", None)]
    )
    ask = r"input 'x' has shape \(\?, 3, \?, \?\): give the sizes, such as --dims x=8x3x224x224 or"
    with pytest.raises(GraphError, match=ask):
        read(content)
    with pytest.raises(GraphError, match="--dims x=8x3x48x48 or shapes="):
        read(content, dims={"?": 48})
    assert op(read(content, shapes={"x": (1, 3, 4, 5)}), "relu").flops == 3 * 4 * 5


def test_all_missing_sizes_are_asked_for_at_once(read):
    nodes = [node("Relu", [name], [f"{name}_out"], name=f"{name}_relu") for name in "abc"]
    inputs = [
        info("a", ["batch", 3, "height", "width"]),
        info("b", ["batch", "tokens"]),
        info("c", [None, 7]),
    ]
    content = model(nodes, inputs, [info(f"{name}_out", None) for name in "abc"])
    with pytest.raises(GraphError) as error:
        read(content)
    assert str(error.value).endswith(
        "input 'a' has shape (batch, 3, height, width), 'b' has shape (batch, tokens), 'c' has "
        "shape (?, 7): give the sizes, such as "
        "--dims batch=8,height=224,width=224,tokens=16,c=8x7 or "
        "dims={'batch': 8, 'height': 224, 'width': 224, 'tokens': 16}, shapes={'c': (8, 7)}"
    )
    dims = {"batch": 8, "height": 224, "width": 224, "tokens": 16}
    graph = read(content, dims=dims, shapes={"c": (8, 7)})
    assert op(graph, "b_relu").flops == 8 * 16
    with pytest.raises(GraphError, match=r"--dims tokens=16,c=8x7 or"):
        read(content, dims={"batch": 2, "height": 4, "width": 4})


def test_boxes_are_compared_in_pairs_for_each_class(read, caplog):
    # Two images, three classes, 50 boxes: the user says how many remain.
    content = model(
        [node("NonMaxSuppression", ["boxes", "scores"], ["y"], name="nms")],
        [info("boxes", [2, 50, 4]), info("scores", [2, 3, 50])],
        [info("y", None, INT64)],
    )
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = read(content, shapes={"y": (10, 3)})
    assert not caplog.records
    assert op(graph, "nms").flops == 2 * 3 * 12 * (50 * 49 / 2)
    assert op(graph, "nms").outputs == (8 * 10 * 3,)
