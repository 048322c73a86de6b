"""Batches of plans: rows are selected, repeated and replaced with all their parts."""

from __future__ import annotations

import numpy as np

from placewright import Cluster, Op, Plan, Problem, simulator
from placewright.graph import Graph
from placewright.plan_batch import PlanBatch


def two_plans(problem: Problem) -> list[Plan]:
    return [
        Plan.of(problem, [0, 0, 0, 0], staging={"gpu1": 5}),
        Plan.of(problem, [0, 1, 0, 0], priority=[3, 2, 1, 0]),
    ]


def test_plans_without_a_part_get_its_default(diamond_problem: Problem) -> None:
    batch = PlanBatch.of(diamond_problem, two_plans(diamond_problem), True, True)
    assert len(batch) == 2
    assert batch.priority is not None
    assert batch.priority.tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert batch.staging is not None
    assert batch.staging.tolist() == [[-1, 5], [-1, -1]]
    assert batch.fusion is None
    bare = PlanBatch.of(diamond_problem, two_plans(diamond_problem), False, False)
    assert (bare.priority, bare.staging) == (None, None)


def test_a_row_is_the_plan_it_came_from(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, [0, 0, 1, 0], [4, 3, 2, 1], [0, 0, -1, -1], {"gpu1": 9})
    batch = PlanBatch.repeat(plan, 3)
    assert [batch.plan(diamond_problem, row) for row in range(3)] == [plan] * 3
    batch.placement[0, 0] = 1  # the rows are copies
    assert plan.placement[0] == 0
    assert batch.placement[1, 0] == 0


def test_rows_are_selected_and_replaced_with_all_their_parts(diamond_problem: Problem) -> None:
    batch = PlanBatch.of(diamond_problem, two_plans(diamond_problem), True, True)
    swapped = batch[[1, 0]]
    assert swapped.plan(diamond_problem, 0) == batch.plan(diamond_problem, 1)
    assert len(batch[:1]) == 1
    merged = batch.replace_rows(swapped, [0])
    assert merged.plan(diamond_problem, 0) == merged.plan(diamond_problem, 1)
    assert batch.plan(diamond_problem, 0) != batch.plan(diamond_problem, 1)  # unchanged


def test_a_batch_is_evaluated_as_its_arrays_are(diamond_problem: Problem) -> None:
    batch = PlanBatch.of(diamond_problem, two_plans(diamond_problem), True, True)
    parts = batch.placement, batch.priority, batch.staging
    by_batch = simulator.judge_batch(diamond_problem, batch)
    by_arrays = simulator.judge(diamond_problem, *parts)
    assert by_batch.value.tolist() == by_arrays.value.tolist()
    assert by_batch.peak.tolist() == by_arrays.peak.tolist()


def streaming_problem(gpu_and_host: Cluster) -> Problem:
    ops = (
        Op("v", kind="weight", outputs=(5,)),
        Op("w", kind="weight", outputs=(7,)),
        Op("a", inputs=((0, 0), (1, 0))),
        Op("b", inputs=((1, 0), (2, 0))),
    )
    return Problem(Graph("streaming", ops), gpu_and_host)


def test_arrays_know_the_reader_of_each_input(gpu_and_host: Cluster) -> None:
    a = streaming_problem(gpu_and_host).arrays
    assert a.reader.tolist() == [2, 2, 3, 3]
    assert a.producer[a.inputs].tolist() == [0, 1, 1, 2]


def test_an_op_streams_the_weights_of_other_devices(gpu_and_host: Cluster) -> None:
    a = streaming_problem(gpu_and_host).arrays
    placement = np.array([1, 1, 0, 0])
    assert a.streamed_bytes(placement).tolist() == [0, 0, 12, 7]  # a's tensor is no weight
    assert a.required_staging(placement).tolist() == [12, 0]
    assert a.required_staging(np.array([0, 0, 0, 1])).tolist() == [0, 7]


def test_single_device_placements_keep_the_constraints(gpu_and_host: Cluster) -> None:
    graph = Graph(
        "g", (Op("x", kind="input"), Op("a", inputs=((0, 0),)), Op("b", runs_on=("gpu",)))
    )
    assert Problem(graph, gpu_and_host).single_device_placements().tolist() == [
        [1, 0, 0],
        [1, 1, 0],
    ]


def test_a_timeline_knows_its_bytes_sent_and_computing_devices(gpu_and_host: Cluster) -> None:
    problem = streaming_problem(gpu_and_host)
    streamed = Plan.of(problem, [1, 1, 0, 0], staging={"gpu0": 12})
    timeline = simulator.simulate(problem, streamed)
    assert timeline.bytes_sent(problem.arrays) == (0, 5 + 7 + 7)  # w once for each reader
    assert timeline.computing(problem.arrays) == [0]
    sent = simulator.simulate(problem, Plan.of(problem, [1, 1, 0, 0]))
    assert sent.bytes_sent(problem.arrays) == (5 + 7, 0)
