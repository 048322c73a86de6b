"""Families of graphs for learning."""

from __future__ import annotations

import pytest

from placewright import Cluster, Problem, zoo
from placewright.errors import ConfigError
from placewright.transforms import wiring_fingerprint
from placewright.zoo.families import TEST_GRAPHS, family

PARTS = ("train", "validation", "test")


@pytest.mark.parametrize("name", ["cifar10", "ptb", "nmt"])
def test_a_family_is_different_training_steps_that_never_change(name):
    graphs = family(name)
    assert len({graph.fingerprint for graph in graphs}) == len(graphs) == 40
    assert [g.fingerprint for g in graphs[:3]] == [g.fingerprint for g in family(name)[:3]]
    for graph in graphs[:4]:
        phases = {op.phase for op in graph.ops}
        assert phases == {"forward", "backward", "update"}
        assert zoo.load(graph.name).fingerprint == graph.fingerprint


@pytest.mark.parametrize("name", ["cifar10", "ptb", "nmt"])
def test_the_split_is_fixed_and_covers_the_family(name):
    assert TEST_GRAPHS == (33, 34, 36, 39, 40, 43, 44, 47)
    parts = [{graph.name for graph in family(name, part)} for part in PARTS]
    assert [len(part) for part in parts] == [24, 8, 8]
    assert set.union(*parts) == {graph.name for graph in family(name)}


@pytest.mark.parametrize("name", ["cifar10", "ptb", "nmt"])
def test_no_test_graph_has_the_wiring_of_another_graph(name):
    train, validation, test = (
        [wiring_fingerprint(graph) for graph in family(name, part)] for part in PARTS
    )
    assert len(set(test)) == 8
    assert not set(test) & {*train, *validation}


@pytest.mark.parametrize("name", ["cifar10", "ptb"])
def test_a_family_has_as_many_graphs_as_one_draws(name):
    drawn = {wiring_fingerprint(zoo.load(f"{name}:graph={at}")) for at in range(1_000, 1_020)}
    assert len(drawn) == 20


@pytest.mark.parametrize("name", ["cifar10", "ptb", "nmt"])
def test_the_backward_pass_costs_about_twice_the_forward_pass(name):
    for graph in family(name, "test")[:3]:
        flops = {
            phase: sum(op.flops for op in graph.ops if op.phase == phase)
            for phase in ("forward", "backward")
        }
        # Products have two gradients of their own cost; the first ones lack that of their input.
        assert 1.5 < flops["backward"] / flops["forward"] <= 2


@pytest.mark.parametrize("name", ["cifar10", "ptb", "nmt"])
def test_every_weight_is_updated_where_it_lives(name):
    graph = family(name, "test")[0]
    weights = [op.name for op in graph.ops if op.kind == "weight"]
    updates = {op.colocate for op in graph.ops if op.phase == "update"}
    assert updates == set(weights)
    arrays = Problem(graph, Cluster.parse("2xP100+cpu")).arrays
    for op in graph.ops:
        if op.phase == "update":
            at, home = graph.position[op.name], graph.position[op.colocate]
            assert arrays.unit[at] == arrays.unit[home]


def test_what_there_is_not_is_said():
    with pytest.raises(ConfigError, match="no family is named 'cifar': did you mean 'cifar10'"):
        family("cifar")
    with pytest.raises(
        ConfigError, match="part is 'half': expected train, validation, test or all"
    ):
        family("ptb", "half")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nmt has graph 1000: expected 0 to 999"):
        zoo.load("nmt:graph=1000")
