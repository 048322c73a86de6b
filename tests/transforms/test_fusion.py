"""Greedy fusion: the rules of `fusible.py`, never a cycle, urgent ops first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import fusible_problems, placements

from placewright import Cluster, Graph, Op, Plan, Problem, simulate
from placewright.errors import PlanError
from placewright.transforms import HEAVY, REDUCTION, contract, dissolve_groups, fuse, fuse_greedily
from placewright.transforms.fusible import HEAVY_ROLE, NEVER_ROLE, REDUCTION_ROLE, fusion_roles

ANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MOST_SOURCES = 8  # as in cpp/fuser.hpp


def network(*ops: tuple[str, list[int]], outputs: tuple[tuple[int, int], ...] | None = None):
    """A problem on two devices from (kind, producers)."""
    made = tuple(
        Op(f"op{at}", kind, tuple((source, 0) for source in sources), (8,), flops=1, bytes_moved=16)
        for at, (kind, sources) in enumerate(ops)
    )
    return Problem(Graph("small", made, outputs), Cluster.parse("2xP100"))


def expected(problem: Problem, device: np.ndarray, urgency: np.ndarray) -> list[int]:
    """`fuse` in plain code: every union is tried, and kept if the contracted graph has no cycle."""
    a, role, group = problem.arrays, fusion_roles(problem), list(range(problem.arrays.ops))
    reads = {
        op: sorted(
            {int(a.producer[t]) for t in a.inputs[a.first_input[op] : a.first_input[op + 1]]}
        )
        for op in range(a.ops)
    }
    reads = {
        op: [s for s in found if a.scheduled[s] and a.scheduled[op]] for op, found in reads.items()
    }

    def sources(members: set[int]) -> int:
        return len({s for op in members for s in reads[op]} - members)

    def lawful(one: set[int], other: set[int]) -> bool:
        members = one | other
        anchors = [op for op in members if role[op] >= REDUCTION_ROLE]
        if len(anchors) > 1 or sources(members) > max(MOST_SOURCES, sources(one), sources(other)):
            return False
        if any(role[op] == HEAVY_ROLE and set(reads[op]) & members for op in anchors):
            return False
        trial = [min(members) if op in members else group[op] for op in range(a.ops)]
        waiting = {
            g: {trial[s] for op in range(a.ops) if trial[op] == g for s in reads[op]} - {g}
            for g in set(trial)
        }
        while ready := [g for g, on in waiting.items() if not on & set(waiting)]:
            for g in ready:
                del waiting[g]
        return not waiting

    def join(source: int, reader: int) -> None:
        if group[source] == group[reader] or device[source] != device[reader]:
            return
        if min(urgency[source], urgency[reader]) <= 0 or NEVER_ROLE in (role[source], role[reader]):
            return
        one, other = (
            {op for op in range(a.ops) if group[op] == group[end]} for end in (source, reader)
        )
        if lawful(one, other):
            for op in one | other:
                group[op] = min(one | other)

    for op in sorted(range(a.ops), key=lambda op: -urgency[op]):
        for source in reads[op]:
            join(source, op)
        for reader in range(a.ops):
            if op in reads[reader]:
                join(op, reader)
    return [g if group.count(g) > 1 else -1 for g in group]


@ANY
@given(st.data())
def test_fusing_by_urgency_is_what_plain_code_says(data):
    problem = data.draw(fusible_problems(most=14))
    device = data.draw(placements(problem))
    ops = problem.arrays.ops
    urgency = np.array(data.draw(st.lists(st.integers(-1, 4), min_size=ops, max_size=ops)))
    assert fuse(problem, device, urgency).tolist() == expected(problem, device, urgency)


@ANY
@given(st.data())
def test_what_a_compiler_fuses_is_lawful_too(data):
    problem = data.draw(fusible_problems(most=14))
    device = data.draw(placements(problem))
    group = fuse_greedily(problem, device)
    contract(problem, Plan.of(problem, device, fusion=group))  # a cycle would raise
    for first in set(group.tolist()) - {-1}:
        kinds = [problem.graph.ops[op].kind for op in np.flatnonzero(group == first)]
        assert sum(kind in HEAVY | REDUCTION | {"op"} for kind in kinds) <= 1


def test_an_epilogue_joins_a_matrix_product_and_what_feeds_it_does_not():
    problem = network(("relu", []), ("matmul", [0]), ("add", [1]), ("relu", [2]))
    assert fuse(problem, [0] * 4, [9, 1, 2, 3]).tolist() == [-1, 1, 1, 1]
    assert fuse_greedily(problem, [0] * 4).tolist() == [-1, 1, 1, 1]


def test_a_group_never_feeds_its_heavy_op_by_another_way():
    # The relus are one group, the product and the sum another; joined, one would feed the product.
    problem = network(("relu", []), ("relu", [0]), ("matmul", [0]), ("add", [2, 1]))
    assert fuse(problem, [0] * 4, [4, 4, 3, 3]).tolist() == [0, 0, 2, 2]


def test_a_reduction_takes_what_is_before_and_behind_it_but_no_second_one():
    problem = network(("relu", []), ("softmax", [0]), ("cast", [1]), ("reduce", [2]))
    assert fuse_greedily(problem, [0] * 4).tolist() == [
        0,
        0,
        2,
        2,
    ]  # from the end: the cast is taken
    assert fuse(problem, [0] * 4, [4, 3, 2, 1]).tolist() == [0, 0, 0, -1]  # the first come first


def test_the_most_urgent_op_chooses_first():
    problem = network(("matmul", []), ("reduce", []), ("add", [0, 1]))
    assert fuse(problem, [0] * 3, [2, 1, 1]).tolist() == [0, -1, 0]
    assert fuse(problem, [0] * 3, [1, 2, 1]).tolist() == [-1, 1, 1]


def test_an_op_of_urgency_zero_stays_alone_whoever_asks():
    problem = network(("relu", []), ("relu", [0]), ("relu", [1]))
    assert fuse(problem, [0] * 3, [5, 0, 5]).tolist() == [-1, -1, -1]
    assert fuse(problem, [0] * 3, [5, 5, 0]).tolist() == [0, 0, -1]


def test_devices_part_groups():
    problem = network(("relu", []), ("relu", [0]), ("relu", [1]), ("relu", [2]))
    assert fuse_greedily(problem, [[0, 0, 1, 1], [0, 1, 0, 1]]).tolist() == [[0, 0, 2, 2], [-1] * 4]


def test_a_compiler_fuses_into_all_readers_or_none():
    shared = network(("relu", []), ("relu", [0]), ("relu", [0]))
    assert fuse_greedily(shared, [0] * 3).tolist() == [0, 0, 0]
    one_heavy = network(("relu", []), ("relu", [0]), ("matmul", [0]))
    assert fuse_greedily(one_heavy, [0] * 3).tolist() == [-1] * 3
    assert fuse(one_heavy, [0] * 3, [1, 1, 1]).tolist() == [0, 0, -1]


def test_a_way_around_keeps_two_ops_apart():
    around = network(("relu", []), ("matmul", [0]), ("add", [0, 1]))
    assert fuse(around, [0] * 3, [3, 0, 2]).tolist() == [-1] * 3
    # With the product elsewhere it is still a way around, and as a group with it none.
    assert fuse(around, [0, 1, 0], [3, 3, 3]).tolist() == [-1] * 3
    light = network(("relu", []), ("cast", [0]), ("add", [0, 1]))
    assert fuse(light, [0] * 3, [3, 3, 3]).tolist() == [0, 0, 0]


def test_long_sums_are_cut_so_that_not_all_terms_are_alive_at_once():
    terms = [("gather", []) for _ in range(20)]
    sums = [("add", [0, 1])] + [("add", [at + 2, 20 + at]) for at in range(18)]
    group = fuse_greedily(network(*terms, *sums), [0] * 39)
    sizes = np.bincount(group[group >= 0])
    assert sizes.max() == MOST_SOURCES - 1  # so many sums of eight terms


def test_large_graphs_stay_without_cycles():
    rng = np.random.default_rng(3)
    kinds = ["elementwise", "view", "reduce", "matmul", "gather", "cast"]
    ops = [("elementwise", [])]
    for at in range(1, 400):
        near = rng.integers(max(0, at - 12), at, size=rng.integers(1, 4))
        far = rng.integers(0, at, size=1) if rng.random() < 0.2 else []
        ops.append(
            (str(rng.choice(kinds, p=[0.5, 0.1, 0.1, 0.1, 0.05, 0.15])), sorted({*near, *far}))
        )
    problem = network(*ops)
    device = (rng.random((20, 400)) < 0.1).astype(np.int32)
    urgency = rng.integers(0, 20, size=(20, 400))
    for rows in (fuse(problem, device, urgency, threads=2), fuse_greedily(problem, device)):
        for row, places in zip(rows, device, strict=True):
            assert simulate(problem, Plan.of(problem, places, fusion=row)).step_time > 0
            assert np.bincount(row[row >= 0]).max() > 2


def test_without_a_group_what_is_left_is_lawful():
    fusion = np.array([0, 0, -1, 3, 3])
    moved = np.array([True, False, True, False, False])
    assert dissolve_groups(fusion, moved).tolist() == [-1, -1, -1, 3, 3]


def test_wrong_shapes_are_refused_with_a_sentence():
    problem = network(("relu", []), ("relu", [0]))
    with pytest.raises(PlanError, match="the urgency of a plan has 3 ops: the graph has 2"):
        fuse(problem, [0, 0], [1, 2, 3])
    with pytest.raises(PlanError, match=r"urgencies of shape \(2, 2\): expected \(1, 2\)"):
        fuse(problem, [0, 0], [[1, 2], [1, 2]])
    with pytest.raises(PlanError, match="an urgency is not a number"):
        fuse(problem, [0, 0], [1, float("nan")])
