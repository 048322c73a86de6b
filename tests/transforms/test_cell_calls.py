"""Calls of cells: the groups that ColocRL's supplement counts, on the zoo's own networks."""

from __future__ import annotations

import pytest

from placewright import Cluster, Graph, Op, Problem, zoo
from placewright.policies.grouping import group_ops
from placewright.transforms import by_cell_calls, by_colocation, network_cells


def unrolled(steps: int) -> Graph:
    """An LSTM-like cell and a head, unrolled: each step reads both weights."""
    ops = [
        Op("cell.weight", "weight", outputs=(8,), module="cell"),
        Op("head.weight", "weight", outputs=(8,), module="head"),
        Op("keys", "matmul", flops=1, outputs=(4,), module="cell.keys"),
    ]
    state, losses = (2, 0), []
    for step in range(steps):
        at, number = len(ops), f"_{step}" if step else ""
        ops += [
            Op(f"cell.product{number}", "matmul", flops=9, outputs=(4,), module="cell",
               inputs=(state, (0, 0))),
            Op(f"cell.gate{number}", "elementwise", flops=1, outputs=(4,), module="cell.gates",
               inputs=((at, 0),)),
            Op(f"cell.out{number}", "elementwise", flops=1, outputs=(4,), module="cell",
               inputs=((at, 0), (at + 1, 0))),
            Op(f"head.product{number}", "matmul", flops=9, outputs=(4,), module="head",
               inputs=((at + 2, 0), (1, 0))),
        ]  # fmt: skip
        state = (at + 2, 0)
        losses.append((at + 3, 0))
    ops.append(Op("stack", "concat", flops=1, outputs=(1,), inputs=tuple(losses)))
    return Graph("unrolled", tuple(ops))


def test_each_call_of_a_cell_is_a_group_and_single_readers_do_not_join_across_cells():
    problem = Problem(unrolled(3), Cluster.parse("2xK80"))
    grouping = by_cell_calls(problem, ("cell", "head"))
    names = [op.name for op in problem.graph.ops]
    found = {frozenset(names[at] for at in members) for members in grouping.members()}
    cells = [
        {f"cell.{part}{number}" for part in ("product", "gate", "out")}
        for number in ("", "_1", "_2")
    ]
    heads = [{f"head.product{number}"} for number in ("", "_1", "_2")]
    cells[0] |= {"cell.weight"}
    heads[0] |= {"head.weight"}
    assert found == {frozenset(each) for each in (*cells, *heads, {"keys"}, {"stack"})}
    # Co-location alone joins all heads through the one op that reads them.
    assert len(by_colocation(problem)) < len(grouping)


def test_a_cell_that_is_called_once_is_one_group():
    problem = Problem(unrolled(1), Cluster.parse("2xK80"))
    assert len(by_cell_calls(problem, ("cell", "head"))) == 3  # the cell with its keys, head, stack


def test_no_more_groups_than_asked_for():
    problem = Problem(unrolled(9), Cluster.parse("2xK80"))
    assert len(by_cell_calls(problem, ("cell", "head"), 5)) == 5


def test_a_network_without_cells_has_its_colocation_groups():
    problem = Problem(zoo.load("branches:modules=2"), Cluster.parse("2xK80"))
    assert (
        group_ops(problem, "cells", 64).group == group_ops(problem, "colocation", 64).group
    ).all()


@pytest.mark.parametrize(("name", "per_step"), [("rnnlm-2", 4), ("nmt-2", 7)])
def test_groups_of_recurrent_networks_grow_by_cells_attention_softmax_and_labels(name, per_step):
    """NMT's 280 groups in the paper are 7 x 40; RNNLM's 188 are 4 x 47."""
    pytest.importorskip("torch")
    counts = []
    for steps in (2, 3):
        graph = zoo.load(f"{name}:size=test,steps={steps}")
        problem = Problem(graph, Cluster.parse("2xK80"))
        counts.append(len(by_cell_calls(problem, network_cells(problem))))
    assert counts[1] - counts[0] == per_step


@pytest.mark.slow  # capturing takes ten seconds
def test_every_branch_of_inception_is_a_group():
    """3 x 4, 3, 4 x 4, 3 and 2 x 4 branches are 42."""
    pytest.importorskip("torch")
    graph = zoo.load("inception-v3:size=test")
    problem = Problem(graph, Cluster.parse("2xK80"))
    grouping = by_cell_calls(problem, network_cells(problem))
    branch = {}
    for at, op in enumerate(graph.ops):
        names = op.module.split(".")
        if problem.arrays.scheduled[at] and op.phase == "forward" and "branches" in names:
            branch.setdefault(".".join(names[:4]), set()).add(int(grouping.group[at]))
    assert len(branch) == 42
    assert all(len(groups) == 1 for groups in branch.values())
    assert len({groups.pop() for groups in branch.values()}) == 42
