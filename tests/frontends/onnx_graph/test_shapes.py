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
