"""Ideals against every contiguous split, tried one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from contiguous_splits import UNLIMITED, best_contiguous, chain, even_cluster, training
from small_problems import random_graph, random_problem

from placewright import Graph, Op, Problem, Roofline
from placewright.frontends import from_workload
from placewright.solvers import Cuts, Ideals, Search, Stop, solve
from placewright.solvers.contiguous.coarse_graph import CoarseGraph
from placewright.solvers.contiguous.device_order import device_orders
from placewright.solvers.contiguous.ideal_sets import IdealCosts, enumerate_ideals
from placewright.solvers.contiguous.interval_costs import IntervalCosts
from placewright.solvers.contiguous.stage_costs import StageMemory

if TYPE_CHECKING:
    from placewright.cluster import Cluster

EXACT = Roofline(compute=1, memory=1)
FLEETS = [([1.0, 1.0, 1.0], False), ([1.0, 2.0, 2.0], False), ([3.0, 3.0, 1.0], True)]


def pipelined(graph: Graph, cluster: Cluster, overlap: bool = False) -> Problem:
    return Problem(graph, cluster, EXACT, objective="period", overlap=overlap)


def proved(problem: Problem, solver: Ideals | None = None) -> tuple[bool, tuple[float, float]]:
    search = Search(problem, Stop(), seed=0)
    return (solver or Ideals()).prove(search), search.key


def wide(ops: int) -> Graph:
    """An op that many others read, which one joins."""
    rng = np.random.default_rng(0)
    return Graph(
        "wide",
        (
            Op("fork", flops=1),
            *(
                Op(f"op{at}", flops=float(rng.integers(1, 9)), inputs=((0, 0),))
                for at in range(ops)
            ),
            Op("join", flops=1, inputs=tuple((at, 0) for at in range(1, ops + 1))),
        ),
    )


@pytest.mark.parametrize(("speeds", "host"), FLEETS)
@pytest.mark.parametrize("seed", range(8))
def test_without_overlap_the_best_contiguous_split_is_found_and_proved(
    seed: int, speeds: list[float], host: bool
) -> None:
    rng = np.random.default_rng(seed)
    graph = training(rng, 5) if seed % 4 == 0 else random_graph(rng, 7)
    problem = pipelined(graph, even_cluster(speeds, host))
    proof, key = proved(problem)
    best = best_contiguous(problem)
    assert proof
    # Balanced splits come first, and in an order that is not topological may even be better.
    assert key == pytest.approx(best, rel=1e-9) or key < best


@pytest.mark.parametrize("overlap", [True, False])
def test_what_is_proved_is_true_whatever_the_memory(overlap: bool) -> None:
    proofs = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        cluster = even_cluster(
            [1.0, float(rng.choice([1.0, 2.0])), 1.0],
            host=bool(rng.random() < 0.5),
            memory=int(rng.choice([15, 30, 60, UNLIMITED])),
            sharing=str(rng.choice(["private", "sender", "receiver", "one"])),
        )
        problem = pipelined(random_graph(rng, 6), cluster, overlap)
        proof, key = proved(problem)
        proofs += proof
        if proof:
            assert key[0] == 0
            assert key[1] <= best_contiguous(problem)[1] * (1 + 1e-9), seed
    assert proofs >= 20


@pytest.mark.parametrize("seed", range(8))
def test_memory_that_is_short_is_kept_to(seed: int) -> None:
    """Two chains side by side whose resident bytes need all three devices."""
    rng = np.random.default_rng(seed)
    one, other = chain(rng, 4, resident=True), chain(rng, 3, resident=True)
    ops = [
        *one.ops,
        *(
            replace(op, name=f"other{at}", inputs=tuple((s + 4, o) for s, o in op.inputs))
            for at, op in enumerate(other.ops)
        ),
    ]
    memory = sum(op.resident for op in ops) // 2
    problem = pipelined(Graph("two", tuple(ops)), even_cluster([1.0, 2.0, 2.0], memory=memory))
    proof, key = proved(problem)
    assert proof
    assert key == pytest.approx(best_contiguous(problem), rel=1e-9)


def test_ideals_find_splits_that_cuts_of_orders_miss() -> None:
    better = 0
    for seed in range(12):
        graph = random_graph(np.random.default_rng(seed), 14)
        problem = pipelined(graph, even_cluster([1.0, 1.0, 1.0]))
        cut, split = (
            solve(problem, Cuts()).objective_value,
            solve(problem, Ideals()).objective_value,
        )
        assert split <= cut
        better += split < cut
    assert better


def test_the_numbers_of_ideals_are_known() -> None:
    cluster = even_cluster([1.0, 1.0])
    row = CoarseGraph.of(pipelined(chain(np.random.default_rng(0), 9), cluster))
    found = enumerate_ideals(row, 100)
    assert found is not None
    assert len(found) == 10  # a row of n has n + 1
    fan = CoarseGraph.of(pipelined(wide(6), cluster))
    found = enumerate_ideals(fan, 100)
    assert found is not None
    assert len(found) == 2**6 + 2  # none, the fork with any of the branches, and all
    assert not found[0].any()
    assert found[-1].all()
    for source, target in fan.precedence:
        assert (found[:, source] | ~found[:, target]).all()
    assert len(np.unique(found, axis=0)) == len(found)
    assert enumerate_ideals(fan, 2**6 + 2) is not None
    assert enumerate_ideals(fan, 2**6 + 1) is None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("overlap", [True, False])
def test_prefixes_cost_the_same_as_ideals(seed: int, overlap: bool) -> None:
    """Two ways to count what a stage moves, rectangles and products of features."""
    rng = np.random.default_rng(seed)
    graph = training(rng, 6) if seed % 3 == 0 else random_graph(rng, 10)
    problem = pipelined(graph, even_cluster([1.0, 2.0, 1.0], host=True), overlap)
    problem = replace(problem, objective="step" if seed % 2 else "period")
    pieces = CoarseGraph.of(problem)
    room = StageMemory(pieces.resident, np.full(3, 20))
    count = len(pieces)
    inside = np.tri(count + 1, count, -1, dtype=bool)
    rows, sets = (
        IntervalCosts(pieces, np.arange(count), room),
        IdealCosts(pieces, inside, room),
    )
    (fleet,) = device_orders(pieces, max_states=100)
    every = np.arange(count + 1)
    for kind in range(len(fleet.classes)):
        seat = fleet.stage_device(tuple(int(at == kind) for at in range(len(fleet.classes))), kind)
        one, other = (costs.seconds(seat, every, every, np.inf) for costs in (rows, sets))
        np.fill_diagonal(other, np.inf)  # an empty stage is no stage
        assert np.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_a_graph_of_too_many_ideals_is_coarsened_and_nothing_is_proved() -> None:
    problem = pipelined(wide(30), even_cluster([1.0, 1.0]))
    proof, key = proved(problem, Ideals(max_ideals=200))
    assert not proof
    assert key[0] == 0
    assert key[1] <= solve(problem, Cuts()).objective_value
    # With no limit in the way it would be; 2^9 + 2 ideals are few.
    assert proved(pipelined(wide(9), even_cluster([1.0, 1.0])))[0]


def test_pieces_that_take_no_time_join_the_only_other_they_deal_with() -> None:
    ops = (
        Op("constant", outputs=(8,)),
        Op("a", flops=3, inputs=((0, 0),), outputs=(4,)),
        Op("b", flops=3, inputs=((1, 0),), outputs=(4,)),
        Op("shape", inputs=((2, 0),), outputs=(4,)),
        Op("print", inputs=((3, 0),)),
    )
    problem = pipelined(Graph("g", ops), even_cluster([1.0, 1.0]))
    pieces = CoarseGraph.of(problem)
    assert len(pieces) == 5
    assert pieces.without_trivial_nodes().node_of.tolist() == [0, 0, 1, 1, 1]
    proof, key = proved(problem)
    assert proof
    assert key == best_contiguous(problem)
    short = replace(ops[0], resident=UNLIMITED), *ops[1:]
    pieces = CoarseGraph.of(pipelined(Graph("g", short), even_cluster([1.0, 1.0], memory=9)))
    assert pieces.without_trivial_nodes().node_of.tolist() == [0, 1, 2, 2, 2]


def test_unlike_links_and_a_search_that_is_over_prove_nothing() -> None:
    problem = random_problem(3, objective="period", ops=8)
    assert len(problem.arrays.transfer) > 1
    assert not proved(problem)[0]
    assert not proved(replace(problem, objective="step"))[0]

    class Now(Stop):
        def __call__(self, search: Search) -> bool:
            return True

    search = Search(pipelined(wide(4), even_cluster([1.0, 1.0])), Now(), 0)
    assert not Ideals().prove(search)
    assert search.evaluations >= 1


PUBLISHED = {  # milliseconds: what the release's own programme finds
    "layer_bert24_inference": 17.7899,
    "layer_bert24_training": 41.7458,
    "layer_gnmt_inference": 32.9107,
    "layer_resnet50_inference": 33.7747,
    "layer_resnet50_training": 78.6318,
    "op_bert_l-3_inference": 27.9186,
    "op_bert_l-3_training": 65.3031,
    "op_bert_l-12_inference": 147.4780,
    "op_resnet50_inference": 124.3488,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_public_workloads_are_split_as_published(
    name: str, request: pytest.FixtureRequest
) -> None:
    folder = request.config.getoption("--workloads", default=None)
    if folder is None:
        pytest.skip("needs the public workloads: pytest --workloads DIR (see docs/workloads.md)")
    path = Path(folder) / "dnn-partitioning" / "throughput" / f"{name}.json"
    proof, key = proved(replace(from_workload(path), objective="period"))
    assert proof
    assert key == (0, pytest.approx(PUBLISHED[name] / 1e3, rel=1e-5))
