"""What every frontend that reads models must do; a new one joins `FRONTENDS`."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from placewright.graph import PHASES

# The one network: x[8,16] · w1[16,32] + b1, relu, · w2[32,4] + b2.
FLOPS = (2 * 8 * 16 * 32 + 8 * 32) + 8 * 32 + (2 * 8 * 32 * 4 + 8 * 4)
PARAMETERS = 4 * (16 * 32 + 32 + 32 * 4 + 4)
SHAPES = {"w1": (16, 32), "b1": (32,), "w2": (32, 4), "b2": (4,)}


def from_torch(folder):
    torch = pytest.importorskip("torch")
    frontend = pytest.importorskip("placewright.frontends.pytorch.frontend")
    torch.set_num_threads(1)
    layers = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    return frontend.from_torch(torch.nn.Sequential(*layers), (torch.zeros(8, 16),))


def from_onnx(folder):
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    from placewright.frontends.onnx_graph.frontend import from_onnx

    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w2"], ["p"]),
        helper.make_node("Add", ["p", "b2"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in SHAPES.items()]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", (8, 16)), ("y", (8, 4)))
    ]
    graph = helper.make_graph(nodes, "mlp", *ends, weights)
    path = folder / "mlp.onnx"
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    return from_onnx(path)


def from_jax(folder):
    jax = pytest.importorskip("jax")
    from placewright.frontends.jaxpr.frontend import from_jax

    def mlp(params, x):
        hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
        return hidden @ params["w2"] + params["b2"]

    params = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in SHAPES.items()}
    return from_jax(mlp, params, jax.ShapeDtypeStruct((8, 16), np.float32), weights=(0,))


def from_tensorflow(folder):
    pytest.importorskip("tensorboard.compat.proto.graph_pb2")
    from graphdefs import mlp

    from placewright.frontends.graphdef.frontend import from_tensorflow

    path = folder / "mlp.pb"
    path.write_bytes(mlp().SerializeToString())
    return from_tensorflow(path)


FRONTENDS = [from_torch, from_onnx, from_jax, from_tensorflow]
every_frontend = pytest.mark.parametrize("read", FRONTENDS)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """The network's graph by each frontend, captured once."""
    return cache(lambda read: read(tmp_path_factory.mktemp("models")))


@every_frontend
def test_ops_come_after_what_they_read(read, captured):
    graph = captured(read)
    for position, op in enumerate(graph.ops):
        assert all(source < position for source, _ in op.inputs)


@every_frontend
def test_a_layer_costs_two_flops_a_multiply_add(read, captured):
    products = [op for op in captured(read).ops if op.kind == "matmul"]
    assert len(products) == 2
    for op, product, bias in zip(
        products, (2 * 8 * 16 * 32, 2 * 8 * 32 * 4), (256, 32), strict=True
    ):
        assert op.flops in (product, product + bias)  # the bias may be an op of its own
        assert op.dtype == "float32"


@every_frontend
def test_two_captures_have_one_fingerprint(read, tmp_path):
    assert read(tmp_path).fingerprint == read(tmp_path).fingerprint


@every_frontend
def test_the_same_network_has_the_same_flops_and_parameters(read, captured):
    graph = captured(read)
    assert sum(op.flops for op in graph.ops) == FLOPS
    weights = [op for op in graph.ops if op.kind == "weight"]
    assert sum(op.outputs[0] for op in weights) == PARAMETERS
    assert len(weights) == 4


@every_frontend
def test_inputs_weights_and_views_are_what_they_seem(read, captured):
    graph = captured(read)
    assert [op.outputs for op in graph.ops if op.kind == "input"] == [(4 * 8 * 16,)]
    for op in graph.ops:
        if op.kind in ("weight", "input"):
            assert (op.inputs, op.flops, op.bytes_moved) == ((), 0, 0)
            assert len(op.outputs) == 1
        if op.kind == "view":
            assert (op.flops, op.bytes_moved) == (0, 0)
            assert op.aliases
        assert op.phase in PHASES
    made = [graph.ops[source].outputs[output] for source, output in graph.outputs]
    assert made == [4 * 8 * 4]
