"""Small ONNX models built on the spot."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def info(name, shape, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def zeros(name, *shape):
    return constant(name, np.zeros(shape))


def model(nodes, inputs, outputs, weights=(), opset=17, **more):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def mlp(batch=8):
    return model(
        [
            node("MatMul", ["x", "w1"], ["xw"], name="/body/first/MatMul"),
            node("Add", ["xw", "b1"], ["h"], name="/body/first/Add"),
            node("Relu", ["h"], ["a"], name="/body/Relu"),
            node("Gemm", ["a", "w2", "b2"], ["y"], name="/head/Gemm"),
        ],
        [info("x", [batch, 16])],
        [info("y", [batch, 4])],
        [zeros("w1", 16, 32), zeros("b1", 32), zeros("w2", 32, 4), zeros("b2", 4)],
    )


def branch(name, *nodes, made="r"):
    return helper.make_graph(list(nodes), name, [], [info(made, None)])


def conditional(condition):
    heavy = branch("heavy", node("MatMul", ["x", "w"], ["r"], name="heavy"))
    light = branch("light", node("Relu", ["x"], ["q"]), made="q")
    return model(
        [node("If", [condition], ["y"], name="choice", then_branch=light, else_branch=heavy)],
        [info("x", [8, 16]), info("c", [], BOOL)],
        [info("y", None)],
        [zeros("w", 16, 16), constant("known", False, np.bool_)],
    )


def loop(*nodes, trips="trips", carried=(4, 4), weights=(), scanned=False):
    """A body of these nodes, from `before` to `after` (and `row`, stacked)."""
    made = [info("go_on", [], BOOL), info("after", None), *([info("row", None)] * scanned)]
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), *nodes],
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("before", None)],
        made,
        weights,
    )
    outputs = ["y", "rows"] if scanned else ["y"]
    return model(
        [node("Loop", [trips, "", "x"], outputs, name="loop", body=body)],
        [info("x", carried), info("n", [], INT64)],
        [info(name, None) for name in outputs],
        [constant("trips", 10, np.int64)],
    )
