"""Families of graphs for learning."""

from __future__ import annotations

import pytest

from placewright import Cluster, Problem, zoo
from placewright.errors import ConfigError
from placewright.zoo.families import FAMILY_SIZE, TEST_GRAPHS, family


@pytest.mark.parametrize("name", ["cifar10", "ptb", "nmt"])
def test_a_family_is_32_different_training_steps_that_never_change(name):
    graphs = family(name)
    assert len(graphs) == 32
    assert len({graph.fingerprint for graph in graphs}) == 32
    assert [g.fingerprint for g in graphs[:3]] == [g.fingerprint for g in family(name)[:3]]
    for graph in graphs[:4]:
        phases = {op.phase for op in graph.ops}
        assert phases == {"forward", "backward", "update"}
        assert zoo.load(graph.name).fingerprint == graph.fingerprint


@pytest.mark.parametrize("name", ["cifar10", "ptb", "nmt"])
def test_the_split_is_fixed_and_covers_the_family(name):
    assert TEST_GRAPHS == (0, 6, 9, 13, 19, 21, 27, 31)
    train, test = family(name, "train"), family(name, "test")
    assert (len(train), len(test)) == (24, 8)
    everything = {graph.name for graph in family(name)}
    assert {graph.name for graph in train} | {graph.name for graph in test} == everything
    assert len(everything) == FAMILY_SIZE


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
    with pytest.raises(ConfigError, match="part is 'half': expected train, test or all"):
        family("ptb", "half")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nmt has graph 32: expected 0 to 31"):
        zoo.load("nmt:graph=32")
