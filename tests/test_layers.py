"""Layer groups: where a plan puts a model's layers, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placewright import Cluster, Graph, Op, Plan, Problem, evaluate, zoo
from placewright.graph import WEIGHT
from placewright.layers import LayerGroup, layer_groups


def decoder(layers: int = 4, prefix: str = "model.layers") -> Graph:
    """An embedding, layers with one weight of 100 bytes each, and a head."""
    ops = [Op("embedding", outputs=(8,), flops=1e9, module="model.embedding")]
    for number in range(layers):
        module = f"{prefix}.{number}"
        ops.append(Op(f"{module}.weight", WEIGHT, outputs=(100,), module=module))
        inputs = ((len(ops) - 2 if number else 0, 0), (len(ops) - 1, 0))
        ops.append(Op(f"{module}.mm", "mm", inputs, (8,), flops=1e9, module=module))
    ops.append(Op("head", inputs=((len(ops) - 1, 0),), outputs=(8,), flops=1e9, module="head"))
    return Graph("decoder", tuple(ops), samples=2, tokens=10)


@pytest.fixture
def problem() -> Problem:
    return Problem(decoder(), Cluster.parse("P100+cpu"))


def plan(problem: Problem, weights: list[int], products: list[int], head: int = 0) -> Plan:
    placement = [0]
    for weight, product in zip(weights, products, strict=True):
        placement += [weight, product]
    return Plan.of(problem, [*placement, head], staging={"gpu0": 100})


def words(problem: Problem, plan: Plan) -> list[str]:
    return [str(group) for group in layer_groups(problem, plan)]


def test_layers_that_are_placed_alike_are_one_range(problem: Problem) -> None:
    assert words(problem, plan(problem, [0, 0, 1, 1], [0, 0, 0, 0], head=1)) == [
        "embedding and layers 0–1 on gpu0",
        "layers 2–3 on gpu0 with weights streamed from cpu",
        "head on cpu",
    ]


def test_gaps_in_a_range_are_named(problem: Problem) -> None:
    assert words(problem, plan(problem, [0, 1, 0, 0], [0, 1, 0, 0])) == [
        "embedding, layers 0, 2–3 and head on gpu0",
        "layer 1 on cpu",
    ]


def test_a_plan_on_one_device_is_one_group(problem: Problem) -> None:
    (group,) = layer_groups(problem, plan(problem, [0] * 4, [0] * 4))
    assert group.devices == ("gpu0",)
    assert (group.weight_bytes, group.streamed_bytes) == (400, 0)
    assert group.modules == (
        "model.embedding", *(f"model.layers.{number}" for number in range(4)), "head",
    )  # fmt: skip


def test_streamed_bytes_are_counted_of_what_is_read_from_elsewhere(problem: Problem) -> None:
    groups = layer_groups(problem, plan(problem, [1, 0, 1, 1], [0, 0, 0, 1]))
    streamed = {group.streamed_bytes: group for group in groups}
    assert streamed[200].modules == ("model.layers.0", "model.layers.2")
    assert streamed[200].sources == ("cpu",)


def test_a_layer_on_two_devices_names_both(problem: Problem) -> None:
    ops = list(problem.graph.ops)
    extra = Op("model.layers.3.add", "add", ((8, 0),), (8,), flops=1e9, module="model.layers.3")
    graph = Graph("g", (*ops[:-1], extra, replace(ops[-1], inputs=((9, 0),))))
    split = Problem(graph, problem.cluster)
    found = layer_groups(split, Plan.of(split, [0] * 9 + [1, 0]))
    assert [group.layers for group in found if len(group.devices) == 2] == ["layer 3"]


def test_numbers_of_two_stacks_are_told_apart() -> None:
    first, second = decoder(2, "encoder.layers"), decoder(2, "decoder.layers")
    shift = len(first.ops)
    moved = [
        replace(op, name=f"d.{op.name}", inputs=tuple((at + shift, i) for at, i in op.inputs))
        for op in second.ops
    ]
    problem = Problem(Graph("both", (*first.ops, *moved)), Cluster.parse("2xP100"))
    placement = [0] * shift + [1] * shift
    text = "; ".join(words(problem, Plan.of(problem, placement)))
    assert "encoder.layers 0–1" in text
    assert "decoder.layers 0–1" in text


def test_a_graph_without_modules_has_no_layers() -> None:
    problem = Problem(zoo.load("layered"), Cluster.parse("2xP100"))
    assert layer_groups(problem, Plan.of(problem, [0] * len(problem.graph))) == ()


def test_a_network_of_several_hundred_modules_takes_one_line() -> None:
    problem = Problem(zoo.load("branches:modules=40"), Cluster.parse("2xP100"))
    placement = [number % 2 for number in range(len(problem.graph))]
    found = layer_groups(problem, Plan.of(problem, problem.legalize(placement)))
    assert sum(len(str(group)) for group in found) < 400


def test_a_group_says_how_much_is_streamed_where_that_is_not_all() -> None:
    group = LayerGroup("layers 0–1", ("a", "b"), ("gpu0",), True, ("cpu",), 2**21, 2**20)
    assert str(group) == "layers 0–1 mostly on gpu0 with 1 MiB of weights streamed from cpu"


def test_a_result_has_layers_and_throughput(problem: Problem) -> None:
    result = evaluate(problem, plan(problem, [0] * 4, [0] * 4, head=1))
    assert result.throughput == {
        "samples": 2 / result.step_time,
        "tokens": 10 / result.step_time,
    }
    assert "head on cpu" in str(result)
    assert "head on cpu" in repr(result)
    piped = evaluate(replace(problem, objective="period"), result.plan)
    assert piped.throughput["samples"] == 2 / piped.period
    assert replace(result, problem=None).layers == ()
    assert replace(result, problem=None).throughput == {}
