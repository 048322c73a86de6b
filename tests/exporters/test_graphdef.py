"""A GraphDef with devices, read back."""

from __future__ import annotations

import numpy as np
import pytest

import placewright as pw
from placewright.errors import FileError, PlanError
from placewright.frontends import device_hints

pytest.importorskip("tensorboard")
from google.protobuf import text_format
from graphdefs import constant, function, node, placeholder, saved_model
from tensorboard.compat.proto import graph_pb2


def mlp():
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8, 16))
    constant(graph, "w1", np.zeros((16, 32)))
    node(graph, "MatMul", "first", "x", "w1")
    node(graph, "Relu", "relu", "first")
    constant(graph, "w2", np.zeros((32, 4)))
    node(graph, "MatMul", "second", "relu", "w2")
    return graph


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mlp.pb"
    path.write_bytes(mlp().SerializeToString())
    return path


@pytest.fixture
def case(path, make_case):
    return make_case(pw.from_tensorflow(path))


def by_name(op):
    return "gpu1" if op.name in ("second", "w2") else "gpu0"


def test_nodes_name_their_device(case, path, tmp_path):
    made = pw.export(case.problem, case.plan(by_name), "tensorflow", model=path)
    assert made.data == {
        "x": "/device:CPU:0", "w1": "/device:GPU:0", "first": "/device:GPU:0",
        "relu": "/device:GPU:0", "w2": "/device:GPU:1", "second": "/device:GPU:1",
    }  # fmt: skip
    assert (made.cost.moved_time, made.cost.moved_bytes, made.notes) == (0, 0, ())
    made.save(tmp_path / "placed.pb")
    assert device_hints(tmp_path / "placed.pb") == made.data
    plain, placed = mlp(), graph_pb2.GraphDef.FromString(made.model)
    for each in placed.node:
        each.device = ""
    assert placed == plain  # nothing but the devices was changed


def test_a_text_file_stays_text(case, tmp_path):
    path = tmp_path / "mlp.pbtxt"
    path.write_text(text_format.MessageToString(mlp()))
    made = pw.export(
        case.problem, case.plan(by_name), "tensorflow", model=path, names={"gpu1": "/gpu:5"}
    )
    placed = text_format.Parse(made.model.decode(), graph_pb2.GraphDef())
    assert {each.name: each.device for each in placed.node}["second"] == "/gpu:5"


def test_a_file_that_is_not_the_plans_is_refused(case, tmp_path):
    other = tmp_path / "other.pb"
    graph = mlp()
    node(graph, "Relu", "more", "second")
    other.write_bytes(graph.SerializeToString())
    with pytest.raises(PlanError, match=r"other.pb: is not the model of the plan"):
        pw.export(case.problem, case.plan(by_name), "tensorflow", model=other)
    other.write_bytes(b"garbage")
    with pytest.raises(FileError, match=r"other.pb"):
        pw.export(case.problem, case.plan(by_name), "tensorflow", model=other)


def test_a_call_goes_where_most_of_its_ops_are(make_case, tmp_path):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (64, 64))
    nodes = function(graph, "body", ["a"], {"r": "relu:activations:0"})
    node(nodes, "MatMul", "product", "a", "a")
    node(nodes, "Relu", "relu", "product:product:0")
    node(graph, "PartitionedCall", "model", "x", calls={"f": "body"})
    node(graph, "Neg", "y", "model")
    path = tmp_path / "calls.pb"
    path.write_bytes(graph.SerializeToString())
    case = make_case(pw.from_tensorflow(path))
    heavy = next(op.name for op in case.graph.ops if op.kind == "matmul")
    plan = case.plan(lambda op: "gpu1" if op.name == heavy else "gpu0")
    made = pw.export(case.problem, plan, "tensorflow", model=path)
    assert made.data["model"] == "/device:GPU:1"
    assert made.data["y"] == "/device:GPU:0"
    assert made.notes == (
        "functions: ops of 'model' have no node of their own; the call goes where most of them are",
    )
    assert made.cost.moved_time > 0  # the relu of the call is not where it was planned


def test_a_saved_model_is_refused(make_case, tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(saved_model(mlp(), {"serving_default": "second:0"}))
    case = make_case(pw.from_tensorflow(tmp_path))
    with pytest.raises(FileError, match="is a SavedModel: expected a GraphDef; freeze it first"):
        pw.export(case.problem, case.plan(by_name), "tensorflow", model=tmp_path)
