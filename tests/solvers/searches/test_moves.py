"""Spaces and moves: lawful neighbours, each of the kind it says."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Constraints, Gap, Graph, MaxTime, Op, Problem, zoo
from placewright.plan import check_placement
from placewright.solvers import Search
from placewright.solvers.searches import moves
from placewright.solvers.searches.initial_plans import (
    distinct_rows,
    random_rows,
    single_device_rows,
)
from placewright.solvers.searches.search_space import (
    DEFAULT_PLANS,
    Ragged,
    SearchSpace,
    bounded_grouping,
    bundle_grouping,
    coarser_grouping,
)
from placewright.transforms import by_colocation

GROUPS = 20


def line(on: str = "3xP100", **constraints: object) -> SearchSpace:
    """A chain of 20 ops: group, op and place in the order are the same number."""
    graph = zoo.load(f"chain:ops={GROUPS}")
    problem = Problem(graph, Cluster.parse(on), constraints=Constraints(**constraints))
    return SearchSpace.of(problem, bundle_grouping(problem))


@pytest.fixture
def space() -> SearchSpace:
    return line()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def halves(count: int = 200) -> np.ndarray:
    """The first ten groups on device 0, the others on device 1."""
    return np.repeat((np.arange(GROUPS) >= 10).astype(np.int32)[None], count, axis=0)


@pytest.mark.parametrize("name", moves.MOVES)
def test_a_move_leaves_what_it_was_given_and_is_drawn_by_the_generator(
    name: str, space: SearchSpace
) -> None:
    rows = halves()
    once, twice = (moves.MOVES[name](space, rows, np.random.default_rng(1)) for _ in range(2))
    assert np.array_equal(once, twice)
    assert np.array_equal(rows, halves())
    assert once.dtype == np.int32
    assert (once != rows).any(axis=1).mean() > 0.3  # many of them do something


@pytest.mark.parametrize("name", moves.MOVES)
def test_groups_stay_where_they_may_be(name: str, rng: np.random.Generator) -> None:
    space = line(pins={"op3": "gpu1"}, forbid={"op7": ("gpu2",)})
    rows = halves(300)
    rows[:, 3] = 1
    for _ in range(5):
        rows = moves.MOVES[name](space, rows, rng)
    assert (rows[:, 3] == 1).all()
    assert (rows[:, 7] != 2).all()
    check_placement(space.problem, space.placements(rows))


@pytest.mark.parametrize("name", moves.MOVES)
@pytest.mark.parametrize("on", ["P100", "2xP100"])
def test_one_group_or_one_device_is_no_trouble(
    name: str, on: str, rng: np.random.Generator
) -> None:
    problem = Problem(Graph("one", (Op("only", flops=1),)), Cluster.parse(on))
    space = SearchSpace.of(problem, bundle_grouping(problem))
    rows = np.zeros((5, 1), dtype=np.int32)
    moved = moves.MOVES[name](space, rows, rng)
    assert moved.shape == rows.shape
    assert (moved < space.devices).all()


def test_one_group_moves_to_another_device(space: SearchSpace, rng: np.random.Generator) -> None:
    moved = moves.move_group(space, halves(), rng) != halves()
    assert (moved.sum(axis=1) == 1).all()
    assert moved.any(axis=0).all()  # each group's turn comes


def test_a_swap_keeps_the_number_of_groups_on_each_device(
    space: SearchSpace, rng: np.random.Generator
) -> None:
    swapped = moves.swap_groups(space, halves(), rng)
    assert (swapped.sum(axis=1) == 10).all()
    changed = (swapped != halves()).sum(axis=1)
    assert set(changed.tolist()) <= {0, 2}
    assert changed.mean() > 1.9  # hardly ever are eight looks in vain


def test_a_stretch_is_contiguous_and_on_one_device(
    space: SearchSpace, rng: np.random.Generator
) -> None:
    rows = np.zeros((300, GROUPS), dtype=np.int32)
    moved = moves.move_run(space, rows, rng)
    edges = np.abs(np.diff(moved != 0, axis=1).astype(int)).sum(axis=1)
    assert edges.max() <= 2
    lengths = (moved != 0).sum(axis=1)
    assert lengths.min() >= 1
    assert len(set(lengths.tolist())) >= 6  # short and long ones


def test_a_boundary_shifts_and_nothing_else_changes(
    space: SearchSpace, rng: np.random.Generator
) -> None:
    shifted = moves.shift_boundary(space, halves(), rng)
    assert (np.diff(shifted, axis=1) >= 0).all()  # still device 0 first, then device 1
    counts = set((shifted == 0).sum(axis=1).tolist())
    assert min(counts) < 10 < max(counts)
    same = np.zeros((4, GROUPS), dtype=np.int32)
    assert np.array_equal(moves.shift_boundary(space, same, rng), same)  # no boundary


def test_a_module_moves_as_a_whole(rng: np.random.Generator) -> None:
    ops = [Op("a", flops=1, outputs=(4,), module="front")]
    for at in range(1, 9):
        module = "front" if at < 3 else "back.left" if at < 6 else "back.right"
        ops.append(Op(f"a{at}", flops=1, outputs=(4,), inputs=((at - 1, 0),), module=module))
    problem = Problem(Graph("modules", tuple(ops)), Cluster.parse("2xP100"))
    space = SearchSpace.of(problem, bundle_grouping(problem))
    sets = {tuple(space.group_sets[at].tolist()) for at in range(len(space.group_sets))}
    assert {(0, 1, 2), (3, 4, 5), (6, 7, 8), (3, 4, 5, 6, 7, 8)} <= sets
    moved = moves.move_group_set(space, np.zeros((200, 9), dtype=np.int32), rng)
    assert {tuple(np.flatnonzero(row).tolist()) for row in moved} == sets


def test_gathering_draws_a_neighbour_in(space: SearchSpace, rng: np.random.Generator) -> None:
    moved = moves.gather_neighbours(space, halves(), rng)
    changed = np.flatnonzero((moved != halves()).any(axis=0))
    assert set(changed.tolist()) == {9, 10}  # the only neighbours on two devices


def test_shares_say_how_often_a_kind_is_drawn(space: SearchSpace, rng: np.random.Generator) -> None:
    names = list(moves.MOVES)
    share = np.zeros(len(names))
    share[names.index("swap")] = 1.0
    rows, kinds = moves.neighbours(space, halves(), rng, share)
    swaps = kinds == names.index("swap")
    assert swaps.mean() > 0.9
    assert (rows[swaps].sum(axis=1) == 10).all()
    rows, kinds = moves.neighbours(space, halves(), rng)
    assert set(kinds.tolist()) == set(range(len(names)))
    assert (rows != halves()).any(axis=1).all()


def test_a_space_knows_its_orders_and_neighbours(space: SearchSpace) -> None:
    assert space.orders.tolist() == [list(range(GROUPS))]
    assert space.adjacency[0].tolist() == [1]
    assert space.adjacency[5].tolist() == [4, 6]
    assert np.allclose(space.work.sum(axis=0), space.problem.arrays.compute.sum(axis=0))


def test_rows_and_placements_are_each_others_way_back() -> None:
    problem = Problem(zoo.load("branches:modules=2"), Cluster.parse("2xP100+cpu"))
    space = SearchSpace.of(problem, by_colocation(problem))
    rows = random_rows(space, np.random.default_rng(3), 20)
    placements = space.placements(rows)
    check_placement(problem, placements)
    free = np.isin(np.arange(len(space)), space.movable)
    assert np.array_equal(space.rows(placements)[:, free], rows[:, free])


def test_few_rows_are_worth_few_plans_and_a_sure_stop_rule_decides() -> None:
    problem = Problem(zoo.load("diamond"), Cluster.parse("2xP100"))
    small, large = SearchSpace.of(problem, bundle_grouping(problem)), line()
    plain, sure = (Search(problem, stop, 0) for stop in (Gap(0), Gap(0) | MaxTime(60)))
    assert small.plan_budget(plain, 10_000) == 50 * 2**4
    assert large.plan_budget(plain, 10_000) == 10_000
    assert large.plan_budget(plain, None) == DEFAULT_PLANS
    assert large.plan_budget(sure, None) == pytest.approx(
        50 * 3.0**20
    )  # the rule will have stopped it long before
    assert small.plan_budget(sure, None) == 50 * 2**4


def test_many_teams_are_coarsened() -> None:
    problem = Problem(zoo.load("layered:ops=60"), Cluster.parse("2xP100"))
    assert len(bounded_grouping(problem, 60)) == 60
    assert len(bounded_grouping(problem, 59, 12)) <= 12


def test_units_that_are_not_convex_are_cut_into_stretches() -> None:
    graph = zoo.load("chain:ops=12")
    apart = Constraints(colocate=(("op0", "op6"), ("op3", "op9")))  # op0 → op3 → op6 → op9
    problem = Problem(graph, Cluster.parse("2xP100"), constraints=apart)
    grouping = coarser_grouping(problem, bundle_grouping(problem), 3)
    assert grouping.name == "segments:3"
    assert grouping.group[0] == grouping.group[6]
    assert grouping.group[3] == grouping.group[9]
    assert 1 <= len(grouping) <= 3


def test_starts_are_singles_and_distinct(space: SearchSpace) -> None:
    rows = single_device_rows(space)
    assert rows.tolist() == [[device] * GROUPS for device in range(3)]
    assert np.array_equal(distinct_rows(np.concatenate([rows, rows])), rows)


def test_lists_may_be_empty() -> None:
    lists = Ragged.of([])
    assert len(lists) == 0
    assert len(Ragged.of([np.array([1, 2]), np.array([], dtype=np.int64)])[1]) == 0
