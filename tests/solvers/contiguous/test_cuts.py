"""Cuts against every contiguous split, tried one by one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from contiguous_splits import (
    UNLIMITED,
    best_contiguous,
    chain,
    contiguous_splits,
    even_cluster,
    training,
)
from small_problems import random_graph

from placewright import Cluster, Constraints, Device, Graph, Link, Op, Problem, Roofline
from placewright.simulator.period import reference_period
from placewright.solvers import Cuts, Search, Stop, solve
from placewright.solvers.contiguous.coarse_graph import CoarseGraph
from placewright.solvers.contiguous.cuts import cut_orders
from placewright.solvers.contiguous.device_order import device_orders
from placewright.solvers.contiguous.interval_costs import IntervalCosts, cheap_cut_points
from placewright.solvers.contiguous.stage_costs import StageMemory
from placewright.solvers.contiguous.stages import StageWindow, stage_paths

if TYPE_CHECKING:
    from placewright.problem import Objective

EXACT = Roofline(compute=1, memory=1)
FLEETS = [([1.0, 1.0, 1.0], False), ([1.0, 2.0, 2.0], False), ([3.0, 3.0, 1.0], True)]
SEEDS = range(4)


def all_room(pieces: CoarseGraph) -> StageMemory:
    return StageMemory(pieces.resident, np.full(pieces.seconds.shape[1], UNLIMITED))


def search_of(problem: Problem) -> Search:
    return Search(problem, Stop(), seed=0)


@pytest.mark.parametrize("objective", ["step", "period"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("speeds", "host"), FLEETS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_chain_is_cut_as_well_as_can_be(
    seed: int, speeds: list[float], host: bool, overlap: bool, objective: Objective
) -> None:
    graph = chain(np.random.default_rng(seed), 6)
    problem = Problem(
        graph, even_cluster(speeds, host), EXACT, objective=objective, overlap=overlap
    )
    assert solve(problem, Cuts()).key == pytest.approx(best_contiguous(problem), rel=1e-12)


@pytest.mark.parametrize("objective", ["step", "period"])
@pytest.mark.parametrize("seed", range(8))
def test_memory_that_is_short_is_kept_to(seed: int, objective: Objective) -> None:
    graph = chain(np.random.default_rng(seed), 7, resident=True)
    memory = sum(op.resident for op in graph.ops) // 2  # three such devices hold it, two hardly
    cluster = even_cluster([1.0, 2.0, 2.0], memory=memory)
    problem = Problem(graph, cluster, EXACT, objective=objective, overlap=False)
    best = best_contiguous(problem)
    assert best[0] == 0
    assert solve(problem, Cuts()).key == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_backward_ops_go_with_their_forward_ops(seed: int) -> None:
    graph = training(np.random.default_rng(seed), 5)
    problem = Problem(
        graph, even_cluster([1.0, 1.0, 1.0]), EXACT, objective="period", overlap=False
    )
    search = search_of(problem)
    Cuts().run(search)
    assert search.key[1] <= best_contiguous(problem)[1] * (1 + 1e-12)
    pieces = CoarseGraph.of(problem)
    assert len(pieces) == 5
    for at, op in enumerate(graph.ops[5:], 5):
        assert pieces.node_of[at] == pieces.node_of[graph.position[op.name.split(".")[0]]]
    assert {(0, 1), (1, 2), (2, 3), (3, 4)} <= pieces.precedence


def test_a_backward_op_without_a_forward_op_is_mirrored() -> None:
    """A sum of gradients, between those of b and of a, stands between a and b."""
    graph = Graph(
        "sums",
        (
            Op("a", module="a", colocate="a"),
            Op("b", module="b", colocate="b", inputs=((0, 0),)),
            Op("gb", module="gb", colocate="b", inputs=((1, 0),), phase="backward"),
            Op("sum", module="sum", inputs=((2, 0),), phase="backward"),
            Op("ga", module="ga", colocate="a", inputs=((3, 0),), phase="backward"),
        ),
    )
    pieces = CoarseGraph.of(Problem(graph, even_cluster([1.0, 1.0]), EXACT))
    assert len(pieces) == 3
    a, b, gradient = pieces.node_of[0], pieces.node_of[1], pieces.node_of[3]
    assert pieces.precedence == {(a, b), (gradient, b), (a, gradient)}


@pytest.mark.parametrize("seed", range(12))
def test_stage_costs_are_those_of_the_simulator(seed: int) -> None:
    """Any cuts of any order, whichever way data flows: the largest stage is the period."""
    rng = np.random.default_rng(seed)
    cluster = even_cluster([1.0, 2.0, 3.0, 1.0], host=bool(seed % 2))
    graph = training(rng, 5) if seed % 3 == 0 else random_graph(rng, 9)
    problem = Problem(graph, cluster, EXACT, objective="period", overlap=False)
    pieces = CoarseGraph.of(problem)
    (fleet,) = device_orders(pieces, max_states=1000)
    order = rng.permutation(len(pieces))
    costs = IntervalCosts(pieces, order, all_room(pieces))
    for _ in range(5):
        cuts = np.sort(rng.integers(0, len(pieces) + 1, 3)).tolist()
        ends = list(itertools.pairwise([0, *cuts, len(pieces)]))
        device = np.zeros(len(pieces), dtype=np.int32)
        largest = float(pieces.fixed_seconds.max())
        for place, (start, end) in enumerate(ends):
            device[order[start:end]] = place
            kind = next(k for k, members in enumerate(fleet.classes) if place in members)
            used = tuple(int(k == kind) for k in range(len(fleet.classes)))
            if end > start:
                seat = fleet.stage_device(used, kind)
                stage = costs.seconds(seat, np.array([start]), np.array([end]), np.inf)
                largest = max(largest, float(stage[0, 0]))
        truth = reference_period(problem.arrays, pieces.placement(device).tolist(), overlap=False)
        assert largest == pytest.approx(truth, rel=1e-9)


def test_the_slow_link_of_two_machines_gets_the_small_tensor() -> None:
    """Six ops of 4 s, a byte apart but for 100 bytes after the second, a long way between machines.

    Four devices take at least 8 s. A byte takes 5 s from machine to machine, 100 bytes 500 s.
    """
    sizes = [1, 100, 1, 1, 1, 1]
    ops = [
        Op(f"op{at}", flops=4, outputs=(size,), inputs=((at - 1, 0),) if at else ())
        for at, size in enumerate(sizes)
    ]
    names = ["a0", "a1", "b0", "b1"]
    devices = tuple(
        Device(name, memory=10**6, rates={"float32": 1.0}, memory_bandwidth=1e30) for name in names
    )
    links = {
        (one, other): Link(100.0 if one[0] == other[0] else 0.2)
        for one, other in itertools.permutations(names, 2)
    }
    problem = Problem(
        Graph("row", tuple(ops)), Cluster("two", devices, links), EXACT, objective="period"
    )
    result = solve(problem, Cuts())
    assert result.objective_value == 8.0
    assert result.key == best_contiguous(problem)


def test_more_kinds_of_devices_than_states_stand_in_a_row() -> None:
    graph = chain(np.random.default_rng(3), 7)
    problem = Problem(
        graph, even_cluster([1.0, 2.0, 3.0, 4.0]), EXACT, objective="period", overlap=False
    )
    pieces = CoarseGraph.of(problem)
    rows = device_orders(pieces, max_states=3)
    assert [fleet.classes for fleet in rows] == [((0, 1, 2, 3),), ((3, 2, 1, 0),)]
    costs = IntervalCosts(pieces, np.arange(7), all_room(pieces))
    found = [stage_paths(costs, fleet, True, np.inf, lambda: False)[0].value for fleet in rows]
    splits = contiguous_splits(problem)
    rising = splits[(np.diff(splits, axis=1) >= 0).all(axis=1)]
    falling = splits[(np.diff(splits, axis=1) <= 0).all(axis=1)]
    for value, some in zip(found, (rising, falling), strict=True):
        truth = min(reference_period(problem.arrays, row.tolist(), overlap=False) for row in some)
        assert value == pytest.approx(truth, rel=1e-12)


def test_a_bound_leaves_out_stages_but_no_better_way() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        graph = chain(rng, 30)
        problem = Problem(
            graph, even_cluster([1.0, 2.0, 2.0, 1.0]), EXACT, objective="period", overlap=False
        )
        pieces = CoarseGraph.of(problem)
        (fleet,) = device_orders(pieces, max_states=1000)
        costs = IntervalCosts(pieces, np.arange(30), all_room(pieces))
        free = stage_paths(costs, fleet, True, np.inf, lambda: False)
        tight = stage_paths(costs, fleet, True, free[0].value, lambda: False)
        assert tight[0] == free[0]
        assert not stage_paths(costs, fleet, True, free[0].value * 0.999, lambda: False)
        few, all_ = (
            StageWindow(costs.work, fleet, True, bound).count_stages()
            for bound in (free[0].value, np.inf)
        )
        assert few < all_ / 3


def test_an_order_with_too_many_places_is_cut_where_that_is_cheap() -> None:
    """Twelve ops of 1 s, of which every third hands on next to nothing, in four stretches."""
    ops = [
        Op(f"op{at}", flops=1, outputs=(1 if at % 3 == 2 else 40,), inputs=((at - 1, 0),))
        for at in range(1, 12)
    ]
    graph = Graph("row", (Op("op0", flops=1, outputs=(40,)), *ops))
    problem = Problem(graph, even_cluster([1.0, 1.0]), EXACT, objective="period", overlap=False)
    pieces = CoarseGraph.of(problem)
    assert cheap_cut_points(pieces, np.arange(12), 4).tolist() == [0, 1, 3, 6, 9, 12]
    assert cheap_cut_points(pieces, np.arange(12), 13).tolist() == list(range(13))
    # 6 ops, and 0.125 s + 1 byte at 4 bytes a second
    assert (
        solve(problem, Cuts(max_cuts=4)).objective_value
        == solve(problem, Cuts()).objective_value
        == 6.375
    )


def test_a_long_chain_is_cut_nearly_as_well_at_fewer_places() -> None:
    graph = chain(np.random.default_rng(5), 300)
    problem = Problem(graph, even_cluster([1.0, 1.0, 1.0]), EXACT, objective="period")
    fine, coarse = solve(problem, Cuts()), solve(problem, Cuts(max_cuts=100))
    assert fine.objective_value <= coarse.objective_value <= 1.05 * fine.objective_value


def test_pieces_can_be_made_fewer_without_a_circle() -> None:
    graph = random_graph(np.random.default_rng(2), 40)
    pieces = CoarseGraph.of(Problem(graph, even_cluster([1.0, 1.0]), EXACT))
    few = pieces.coarsen(8)
    assert len(few) <= 8 < len(pieces)
    assert all(source < target for source, target in few.precedence)
    assert few.seconds.sum() == pytest.approx(pieces.seconds.sum())
    for source, target in pieces.precedence:
        ops = (np.flatnonzero(pieces.node_of == at)[0] for at in (source, target))
        one, other = (few.node_of[op] for op in ops)
        assert one == other or (one, other) in few.precedence


def test_orders_hold_every_piece_once() -> None:
    graph = random_graph(np.random.default_rng(1), 12)
    problem = Problem(graph, even_cluster([1.0, 1.0]), EXACT)
    pieces = CoarseGraph.of(problem)
    found = cut_orders(pieces)
    assert len(found) > 1
    for order in found:
        assert sorted(order.tolist()) == list(range(len(pieces)))


def test_pinned_ops_are_set_apart_and_their_device_is_charged() -> None:
    """A pinned op of 9 s leaves its device no room for more than the smallest of the others."""
    ops = (
        Op("pinned", flops=9),
        *(Op(f"op{at}", flops=3, inputs=((at - 1, 0),) if at > 1 else ()) for at in range(1, 5)),
    )
    problem = Problem(
        Graph("g", ops),
        even_cluster([1.0, 1.0]),
        EXACT,
        Constraints(pins={"pinned": "d0"}),
        objective="period",
    )
    pieces = CoarseGraph.of(problem)
    assert pieces.node_of.tolist() == [-1, 0, 1, 2, 3]
    assert pieces.fixed_seconds.tolist() == [9.0, 0.0]
    assert solve(problem, Cuts()).objective_value == 12.0
    assert (
        solve(replace(problem, overlap=False), Cuts()).objective_value
        == best_contiguous(problem)[1]
    )


def test_ops_that_wait_for_each_other_in_a_circle_are_one_piece() -> None:
    ops = (
        Op("a", colocate="left"),
        Op("b", inputs=((0, 0),)),
        Op("c", inputs=((1, 0),), colocate="left"),
        Op("d", inputs=((2, 0),)),
    )
    pieces = CoarseGraph.of(Problem(Graph("g", ops), even_cluster([1.0, 1.0]), EXACT))
    assert pieces.node_of.tolist() == [0, 0, 0, 1]
    assert pieces.precedence == {(0, 1)}
