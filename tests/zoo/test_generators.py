"""The zoo: shapes of the random graphs, sizes of the built-in ones, and names with arguments."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yardstick import lengths, seconds

from placewright import Cluster, Device, Link, Problem, zoo
from placewright.errors import ConfigError, GraphError
from placewright.zoo import Entry, blocks, generators

RANDOM = {
    "chain": generators.chain,
    "diamond": generators.diamond,
    "fork-join": generators.fork_join,
    "layered": generators.layered,
    "series-parallel": generators.series_parallel,
}
MIB = 2**20


def reads(graph):
    """The names of the ops that each op reads."""
    return {op.name: [graph.ops[source].name for source, _ in op.inputs] for op in graph.ops}


def by_name(graph):
    return {op.name: op for op in graph.ops}


# Random graphs


@pytest.mark.parametrize("name", RANDOM)
@given(ops=st.integers(1, 60), seed=st.integers(0, 2**64))
def test_a_random_graph_has_as_many_ops_as_asked_for_and_one_for_a_seed(name, ops, seed):
    graph = RANDOM[name](ops=ops, seed=seed)
    assert len(graph) == ops
    assert graph.fingerprint == RANDOM[name](ops=ops, seed=seed).fingerprint
    assert all(op.flops > 0 and op.bytes_moved > 0 and op.outputs[0] > 0 for op in graph.ops)


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_gives_another_graph(name):
    assert RANDOM[name](seed=1).fingerprint != RANDOM[name](seed=2).fingerprint


@pytest.mark.parametrize("name", RANDOM)
def test_weights_come_on_top_and_change_nothing_else(name):
    plain, weighted = RANDOM[name](ops=50, seed=4), RANDOM[name](ops=50, seed=4, weights=True)
    weights = [op for op in weighted.ops if op.kind == "weight"]
    assert len(weighted) == 50 + len(weights)
    assert 10 < len(weights) < 40
    assert {op.colocate for op in weighted.ops} == {None}
    ops = by_name(weighted)
    for op in plain.ops:
        assert ops[op.name].flops == op.flops
        more = ops[op.name].bytes_moved - op.bytes_moved
        assert more == (sum(ops[f"{op.name}.weight"].outputs) if op.kind == "linear" else 0)


@pytest.mark.parametrize("name", ["chain", "diamond", "fork-join", "series-parallel"])
@pytest.mark.parametrize("ops", [1, 2, 3, 4, 5, 17, 50])
def test_a_graph_of_two_ends_has_one_first_and_one_last_op(name, ops):
    graph = RANDOM[name](ops=ops, seed=ops)
    assert [op.name for op in graph.ops if not op.inputs] == ["op0"]
    assert graph.outputs == ((ops - 1, 0),)


def test_a_diamond_is_two_ops_between_two():
    assert reads(generators.diamond()) == {
        "op0": [],
        "op1": ["op0"],
        "op2": ["op0"],
        "op3": ["op1", "op2"],
    }


def test_branches_of_a_fork_join_have_their_depth_and_the_last_stage_takes_the_rest():
    graph = generators.fork_join(ops=9, branches=2, depth=2)
    assert reads(graph) == {
        "op0": [],
        "op1": ["op0"],
        "op2": ["op0"],
        "op3": ["op1"],
        "op4": ["op2"],
        "op5": ["op3", "op4"],
        "op6": ["op5"],
        "op7": ["op5"],
        "op8": ["op6", "op7"],
    }


def test_a_layered_graph_is_about_as_wide_as_asked_for():
    graph = generators.layered(ops=2000, width=10)
    depth = [0] * len(graph)
    for position, op in enumerate(graph.ops):
        depth[position] = max((depth[source] + 1 for source, _ in op.inputs), default=0)
    assert 150 < max(depth) < 250
    assert len(graph.outputs) < 20  # only the last layer's


def test_a_series_parallel_graph_is_a_chain_when_nothing_goes_around():
    graph = generators.series_parallel(ops=30, parallel=0.0)
    assert all(op.inputs == ((at - 1, 0),) for at, op in enumerate(graph.ops) if at)
    wide = generators.series_parallel(ops=30, parallel=1.0)
    assert any(len(op.inputs) > 2 for op in wide.ops)


@pytest.mark.parametrize("name", RANDOM)
def test_the_work_of_making_a_graph_grows_no_faster_than_the_graph(name):
    def work():
        assert len(zoo.load(f"{name}:ops=20000")) == 20_000

    assert lengths(work, limit=8) < 8  # 1 to 2; a look at every pair of ops takes 50


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_a_hundred_thousand_ops_take_under_two_seconds_of_work(name):
    def work():
        assert len(zoo.load(f"{name}:ops=100000")) == 100_000

    assert any(seconds(work) < 2 for _ in range(3))  # a busy machine may need another try


# Built-in networks


def test_the_default_transformer_has_16_blocks_of_352_mib():
    graph = blocks.transformer()
    weights = [op for op in graph.ops if op.kind == "weight"]
    products = [op.outputs[0] for op in weights if ".norm" not in op.name]
    assert sum(products) == 16 * 352 * MIB
    assert len(weights) == 16 * 6
    assert {op.dtype for op in graph.ops} == {"bfloat16"}


def test_a_transformer_block_is_written_op_by_op():
    graph = blocks.transformer(blocks=4, tokens=3, width=8, hidden=20, heads=2)
    ops = by_name(graph)
    qkv = ops["blocks.3.attention.qkv"]
    assert qkv.module == "blocks.3.attention"
    assert qkv.flops == 2 * 3 * 8 * 24  # two for a multiply-add
    assert qkv.bytes_moved == 2 * (3 * 8 + 8 * 24 + 3 * 24)  # in, weight, out, two bytes each
    assert ops["blocks.3.attention.qkv.weight"].outputs == (2 * 8 * 24,)
    assert ops["blocks.3.attention.heads"].aliases == ((0, 0),)
    assert ops["blocks.3.attention.heads"].bytes_moved == 0
    # Scores and their sum over 3 keys in 8 channels; the softmax of 2 heads of 3 by 3.
    assert ops["blocks.3.attention.attend"].flops == 2 * (2 * 3 * 3 * 8) + 5 * 2 * 3 * 3
    assert ops["blocks.3.mlp.down"].flops == 2 * 3 * 20 * 8
    assert reads(graph)["blocks.3.mlp.residual"] == [
        "blocks.3.attention.residual",
        "blocks.3.mlp.down",
    ]
    assert reads(graph)["blocks.3.attention.norm"][0] == "blocks.2.mlp.residual"
    assert Counter(op.kind for op in graph.ops if op.module.startswith("blocks.0")) == {
        "weight": 6, "linear": 4, "norm": 2, "add": 2, "view": 2, "attention": 1, "gelu": 1,
    }  # fmt: skip


def test_a_context_is_a_cache_that_the_attention_reads_in_place():
    ops = by_name(blocks.transformer(blocks=1, tokens=1, width=8, heads=2, context=5))
    cache, attend = ops["blocks.0.attention.cache"], ops["blocks.0.attention.attend"]
    assert cache.kind == "state"
    assert cache.outputs == (2 * 2 * 5 * 8,)  # keys and values
    assert attend.flops == 4 * 1 * 6 * 8 + 5 * 2 * 6


def test_offload_is_16_blocks_that_pass_16_kib():
    graph = zoo.load("offload")
    steps = [op for op in graph.ops if op.kind == "block"]
    weights = [op for op in graph.ops if op.kind == "weight"]
    assert len(steps) == len(weights) == 16
    assert sum(op.outputs[0] for op in weights) == 5.5 * 2**30
    assert {op.outputs for op in steps} == {(16 * 2**10,)}
    assert reads(graph)["blocks.1"] == ["blocks.0", "blocks.1.weight"]


def test_a_module_of_branches_joins_four():
    graph = blocks.branches(modules=2, batch=1, side=4, channels=8)
    ops = by_name(graph)
    join = ops["modules.1.join"]
    assert [graph.ops[source].outputs for source, _ in join.inputs] == [(4 * 16 * 2,)] * 4
    assert join.outputs == (4 * 16 * 8,)
    assert ops["modules.1.branch2.1.convolution"].flops == 2 * 16 * 2 * 2 * 9
    assert graph.outputs == ((graph.position["head.classifier"], 0),)


WRITTEN = [name for name, entry in zoo.ENTRIES.items() if entry.network is None]
"""Those that are not captured from PyTorch."""


def test_every_network_makes_a_problem():
    gpu = Device("gpu", memory=2**40, rates={"float32": 1e12}, memory_bandwidth=1e11)
    devices = (gpu, replace(gpu, name="cpu", kind="cpu"))
    links = {("gpu", "cpu"): Link(1e10), ("cpu", "gpu"): Link(1e10)}
    for name in WRITTEN:
        a = Problem(zoo.load(name), Cluster("two", devices, links)).arrays
        assert a.compute.shape == (len(zoo.load(name)), 2)


# Names


def test_every_network_has_a_line_of_description():
    names = dict(zoo.names())
    assert {"chain", "fork-join", "transformer", "offload", "branches"} <= set(names)
    assert all(line and "\n" not in line for line in names.values())


@pytest.mark.parametrize("name", WRITTEN)
def test_a_graph_carries_the_name_that_loads_it_again(name):
    graph = zoo.load(name)
    assert zoo.load(graph.name).fingerprint == graph.fingerprint
    assert graph.name.startswith(f"{name}:")


def test_arguments_follow_a_colon():
    graph = zoo.load("layered:ops=50, seed=3,weights=yes")
    assert graph.name == "layered:ops=50,seed=3,weights=true,width=8"
    assert graph.fingerprint == generators.layered(ops=50, seed=3, weights=True).fingerprint
    assert len(zoo.load("fork_join:ops=40")) == 40
    assert zoo.load("series-parallel:parallel=0.25").name.endswith("parallel=0.25")


def test_text_arguments_are_taken_as_they_stand(monkeypatch):
    seen = []
    entry = Entry("model", "a test", lambda size: seen.append(size), {"size": "small"})
    monkeypatch.setitem(zoo.ENTRIES, "model", entry)
    zoo.load("model:size=large")
    assert seen == ["large"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("layred", GraphError, "no network is named 'layred': did you mean 'layered'?"),
        ("", GraphError, "no network is named '': known: inception-v3, resnet-50"),
        ("chain:size=3", ConfigError, "chain has no argument 'size': it has ops, seed, weights"),
        ("chain:ops", ConfigError, "chain is given 'ops': expected arguments as name=value"),
        ("chain:ops=many", ConfigError, "chain is given ops 'many': expected a whole number"),
        ("chain:ops=2.5", ConfigError, "chain is given ops '2.5': expected a whole number"),
        ("chain:weights=maybe", ConfigError, "given weights 'maybe': expected true or false"),
        ("series-parallel:parallel=nan", ConfigError, "given parallel 'nan': expected a number"),
        ("series-parallel:parallel=x", ConfigError, "given parallel 'x': expected a number"),
        ("series-parallel:parallel=2", ConfigError, "parallel 2.0: expected a share from 0 to 1"),
        ("chain:ops=0", ConfigError, "chain has ops 0: expected 1 to 10,000,000"),
        ("chain:seed=-1", ConfigError, "the seed is -1: expected a whole number >= 0"),
        ("fork-join:depth=0", ConfigError, "fork-join has depth 0: expected 1 to"),
        ("transformer:blocks=0", ConfigError, "transformer has blocks 0: expected 1 to"),
        ("transformer:context=-1", ConfigError, "transformer has context -1: expected 0 to"),
        ("branches:batch=1000000,side=100000", ConfigError, "would make .* bytes: choose smaller"),
        ("branches:channels=6", ConfigError, "branches has channels 6: expected a multiple of 4"),
    ],
)
def test_a_bad_name_or_argument_says_what_is_known(text, error, message):
    with pytest.raises(error, match=message.replace("?", r"\?")):
        zoo.load(text)
