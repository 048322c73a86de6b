"""Groupings: what belongs together, and the way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright import Cluster, Constraints, Graph, Op, Problem, judge, zoo
from placewright.errors import ProblemError
from placewright.transforms import (
    Grouping,
    by_colocation,
    by_forward,
    by_heavy_edges,
    by_module,
    by_module_count,
    find_repeated_blocks,
    forward_ops,
)


def problem_of(graph: Graph | str, **constraints) -> Problem:
    graph = zoo.load(graph) if isinstance(graph, str) else graph
    return Problem(graph, Cluster.parse("2xP100+cpu"), constraints=Constraints(**constraints))


def training_step() -> Graph:
    """Two layers, forward, backward and update: the smallest graph with every phase."""
    return Graph(
        "step",
        (
            Op("x", "input", outputs=(8,)),
            Op("w0", "weight", outputs=(64,), colocate="w0"),
            Op("w1", "weight", outputs=(64,), colocate="w1"),
            Op("f0", "linear", ((0, 0), (1, 0)), (8,), module="a"),
            Op("f1", "linear", ((3, 0), (2, 0)), (8,), module="b"),
            Op("loss", "loss", ((4, 0),), (4,), module="b"),
            Op("g1", "linear", ((3, 0), (5, 0)), (64,), module="b", phase="backward"),
            Op("d0", "linear", ((2, 0), (5, 0)), (8,), module="b", phase="backward"),
            Op("g0", "linear", ((0, 0), (7, 0)), (64,), module="a", phase="backward"),
            Op("u0", "optimizer", ((1, 0), (8, 0)), (0,), phase="update", colocate="w0"),
            Op("u1", "optimizer", ((2, 0), (6, 0)), (0,), phase="update", colocate="w1"),
        ),
    )


def test_gradient_ops_belong_to_the_forward_op_they_share_most_with():
    graph = training_step()
    homes = {graph.ops[at].name: home for at, home in enumerate(forward_ops(graph)) if home}
    names = {name: graph.ops[home].name for name, home in homes.items()}
    # g1 reads f0's tensor and the loss: the loss is later; d0 reads w1 and the loss likewise.
    assert names == {"g1": "loss", "d0": "loss", "g0": "f0"}


def test_a_captured_gradient_op_names_its_forward_op():
    ops = [
        Op("a.mm", module="m"),
        Op("b.mm", inputs=((0, 0),), module="m"),
        Op("b.mm.backward.mm", inputs=((1, 0),), phase="backward", module="m"),
        Op("a.mm.backward", inputs=((1, 0), (2, 0)), phase="backward", module="m"),
    ]
    assert forward_ops(Graph("g", ops)) == [None, None, 1, 0]


@pytest.mark.parametrize("model", ["branches", "layered:ops=200", "chain:ops=60"])
def test_colocation_groups_are_merged_until_there_are_few_enough(model):
    problem = problem_of(model)
    fine, few = by_colocation(problem), by_colocation(problem, 5)
    assert len(few) <= 5 or len(fine) <= 5
    assert len(by_colocation(problem, 10_000)) == len(fine)
    for group in range(len(fine)):  # whole groups are merged
        assert len(set(few.group[fine.group == group].tolist())) == 1
    with pytest.raises(ProblemError, match="expected at least 1"):
        by_colocation(problem, 0)


def test_colocation_groups_that_are_not_convex_are_cut_into_stretches():
    ops = [Op("0", flops=1.0)]
    ops += [Op(f"{at}", flops=1.0, inputs=((at - 1, 0), (max(0, at - 2), 0))) for at in range(1, 9)]
    # 2 and 6 must share a device, and 4 lies between them.
    problem = problem_of(Graph("ties", tuple(ops)), colocate=(("2", "6"),))
    grouping = by_colocation(problem, 3)
    assert len(grouping) <= 3
    assert grouping.group[2] == grouping.group[6]
    assert len(by_colocation(problem)) > 3


def test_forward_groups_are_forward_ops_with_all_that_belongs_to_them():
    problem = problem_of(training_step())
    grouping = by_forward(problem)
    name = {
        op.name: int(group) for op, group in zip(problem.graph.ops, grouping.group, strict=True)
    }
    assert name["f0"] == name["w0"]
    assert name["f1"] == name["w1"]
    for position, home in enumerate(forward_ops(problem.graph)):
        assert home is None or grouping.group[home] == grouping.group[position]
    assert len({name["f0"], name["f1"], name["loss"]}) == 3


def test_colocation_puts_weight_update_and_gradient_with_their_layer():
    grouping = by_colocation(problem_of(training_step()))
    group = dict(zip([op.name for op in training_step().ops], grouping.group.tolist(), strict=True))
    assert group["w0"] == group["f0"] == group["g0"] == group["u0"]
    assert group["w1"] == group["f1"] == group["loss"] == group["g1"] == group["u1"]


def test_an_op_joins_its_only_consumer_but_not_past_a_branch():
    ops = [Op("a"), Op("b", inputs=((0, 0),)), Op("c", inputs=((0, 0),)), Op("d", inputs=((1, 0),))]
    assert by_colocation(problem_of(Graph("g", ops))).group.tolist() == [0, 1, 2, 1]


def test_modules_group_by_path_and_depth():
    problem = problem_of("transformer:blocks=4,width=64,hidden=128,heads=4")
    assert len(by_module(problem, depth=2)) == 4
    assert len(by_module(problem)) > 4
    assert len(by_module_count(problem, 4)) == 4
    assert len(by_module_count(problem, 1_000)) == len(by_module(problem))


def test_an_op_without_a_path_goes_with_what_it_reads():
    ops = [Op("a", module="m"), Op("b", module="n"), Op("c", inputs=((0, 0), (1, 0)))]
    assert by_module(problem_of(Graph("g", ops))).group.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ["branches", "layered:ops=300,weights=yes", "fork-join:ops=90"])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_coarsening_gives_convex_groups_of_the_asked_number(name, count):
    problem = problem_of(name)
    grouping = by_heavy_edges(problem, count)
    assert len(grouping) == count
    assert grouping.is_convex(problem)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_coarse_groups_are_convex_on_any_graph(seed, count):
    rng = np.random.default_rng(seed)
    ops = []
    for at in range(40):
        reads = (
            {int(source) for source in rng.integers(0, at, size=rng.integers(0, 4))} if at else ()
        )
        size = int(rng.integers(0, 9))
        ops.append(Op(f"o{at}", inputs=tuple((s, 0) for s in reads), outputs=(size,), flops=1e9))
    problem = problem_of(Graph("random", ops))
    grouping = by_heavy_edges(problem, count)
    assert grouping.is_convex(problem)
    assert len(grouping) <= max(count, 1)


def test_a_training_step_can_be_coarsened():
    problem = problem_of(training_step())
    grouping = by_heavy_edges(problem, 3)
    assert len(grouping) <= 3
    assert grouping.is_convex(problem)


def test_heavy_tensors_stay_inside():
    # a -> b is heavy, b -> c light: two groups keep a and b together.
    ops = [
        Op("a", outputs=(10**6,), flops=1e9),
        Op("b", inputs=((0, 0),), outputs=(1,), flops=1e9),
        Op("c", inputs=((1, 0),), flops=1e9),
    ]
    assert by_heavy_edges(problem_of(Graph("g", ops)), 2).group.tolist() == [0, 0, 1]


def test_a_grouping_that_goes_out_and_back_is_not_convex():
    ops = [Op("a"), Op("b", inputs=((0, 0),)), Op("c", inputs=((1, 0),))]
    problem = problem_of(Graph("g", ops))
    assert not Grouping.of("odd", problem, ["x", "y", "x"]).is_convex(problem)
    assert Grouping.of("even", problem, ["x", "x", "y"]).is_convex(problem)


def test_expanding_gives_placements_the_problem_accepts():
    problem = problem_of(
        "transformer:blocks=2,width=64,hidden=128,heads=4", pins={"blocks.1.*": "gpu1"}
    )
    grouping = by_heavy_edges(problem, 5)
    rng = np.random.default_rng(0)
    placements = problem.legalize(grouping.expand(rng.integers(0, 2, size=(8, len(grouping)))))
    assert judge(problem, placements).step_time.shape == (8,)
    assert [len(members) for members in grouping.members()] == np.bincount(grouping.group).tolist()


def test_labels_must_match_the_graph():
    problem = problem_of("diamond")
    with pytest.raises(ProblemError, match="a grouping has 1 labels: the graph has 4 ops"):
        Grouping.of("odd", problem, [0])
    with pytest.raises(ProblemError, match="0 groups were requested: expected at least 1"):
        by_heavy_edges(problem, 0)


def test_repeated_blocks_are_found_and_aligned():
    graph = zoo.load("transformer:blocks=6,width=64,hidden=128,heads=4")
    (blocks,) = find_repeated_blocks(graph)
    assert blocks.module_prefix == "blocks."
    assert blocks.block_numbers == tuple(range(6))
    names = [[graph.ops[op].name for op in row] for row in blocks.ops]
    assert [name.replace("blocks.0", "") for name in names[0]] == [
        name.replace("blocks.5", "") for name in names[5]
    ]
    base = np.zeros(len(graph), dtype=np.int32)
    spread = blocks.broadcast(np.arange(blocks.ops.shape[1], dtype=np.int32), base)
    assert (spread[blocks.ops[3]] == np.arange(blocks.ops.shape[1])).all()
    outside = np.setdiff1d(np.arange(len(graph)), blocks.ops)
    assert (spread[outside] == 0).all()


def test_blocks_that_differ_are_not_folded():
    ops = [Op("a", flops=1.0, module="m.0"), Op("b", inputs=((0, 0),), flops=2.0, module="m.1")]
    assert find_repeated_blocks(Graph("g", ops)) == []
    same = [
        Op("a", flops=1.0, module="m.0"),
        Op("b", flops=1.0, module="m.1"),
        Op("c", module="m.3"),
    ]
    assert [blocks.block_numbers for blocks in find_repeated_blocks(Graph("g", same))] == [(0, 1)]
