"""One op explained: moves are judged as the simulator judges them, slack is what may be lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import fusible_problems, plans

from placewright import Cluster, Constraints, Graph, Op, Plan, Problem, Roofline, simulate
from placewright.explanations import explain_op, neighbours
from placewright.explanations.moves import move_mask
from placewright.transforms import fuse


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_move_is_what_the_simulator_says_of_the_moved_plan(data):
    problem = data.draw(fusible_problems(most=9))
    device, priority, staging = data.draw(plans(problem))
    fusion = None
    if staging is None and data.draw(st.booleans()):
        fusion = fuse(problem, device, np.ones(problem.arrays.ops))
    plan = Plan.of(problem, device, priority, fusion, staging)
    op = data.draw(st.integers(0, problem.arrays.ops - 1))
    found = explain_op(problem, plan, op)
    assert sorted(move.device for move in found.moves) == sorted(
        set(range(len(problem.cluster))) - {int(device[op])}
    )
    along = move_mask(problem, plan, op)
    for move in found.moves:
        moved = np.where(along, move.device, device)
        if move.value is None:
            assert not problem.arrays.allowed[along, move.device].all()
            continue
        groups = fusion
        if fusion is not None:  # a group that would be on two devices is dissolved
            apart = {g for g in fusion.tolist() if g >= 0 and len(set(moved[fusion == g])) > 1}
            groups = np.where(np.isin(fusion, list(apart)), -1, fusion)
            assert move.unfused_count == int(((fusion >= 0) & (groups < 0)).sum())
        if staging is not None:
            continue  # rooms may have grown
        timeline = simulate(problem, Plan.of(problem, moved, priority, groups))
        assert move.value == timeline.step_time
        assert move.overflow == timeline.overflow
    keys = [move.key for move in found.moves]
    assert keys == sorted(keys)


@pytest.fixture
def fork(two_devices: Cluster, exact: Roofline) -> Problem:
    """a (1 s) feeds b (5 s) and c (2 s) on other devices, d (1 s) joins them; 1 byte a second."""
    ops = (
        Op("a", flops=1, outputs=(1,)),
        Op("b", flops=5, inputs=((0, 0),), outputs=(1,)),
        Op("c", flops=2, inputs=((0, 0),), outputs=(1,)),
        Op("d", flops=1, inputs=((1, 0), (2, 0))),
    )
    return Problem(Graph("fork", ops), two_devices, exact)


def test_slack_is_how_much_longer_an_op_may_take(fork: Problem) -> None:
    plan = Plan.of(
        fork, [0, 0, 1, 0]
    )  # 1 + 5 + 1; c runs from 2 to 4 and is needed at 6, sent in 1
    slow = explain_op(fork, plan, 2)
    assert slow.on_path == "no"
    assert slow.slack == pytest.approx(1.0, abs=1e-5)
    assert (slow.start, slow.end) == (2, 4)
    assert [(each.op, each.start, each.end) for each in slow.incoming] == [(0, 1, 2)]
    assert [(each.op, each.start, each.end) for each in slow.outgoing] == [(2, 4, 5)]
    critical = explain_op(fork, plan, 1)
    assert critical.on_path == "runs"
    assert critical.slack == 0.0
    # With c on gpu0 the step is 1 + 5 + 2 + 1.
    assert [(move.device, move.value) for move in slow.moves] == [(0, 9.0)]
    assert slow.moves[0].relative_change == pytest.approx(9 / 7 - 1)


def test_what_nothing_waits_for_may_take_a_whole_step(fork: Problem) -> None:
    ops = (*fork.graph.ops, Op("e", outputs=(1,)))
    problem = replace(fork, graph=Graph("fork", ops))
    assert explain_op(problem, Plan.of(problem, [0, 0, 0, 0, 1]), 4).slack == float("inf")


def test_the_moves_that_gain_most_come_first(fork: Problem) -> None:
    plan = Plan.of(
        fork, [0, 0, 0, 0]
    )  # 9 s; with c elsewhere 7, with b elsewhere 1 + 1 + 5 + 1 + 1
    found = neighbours(fork, plan)
    assert (found.tried_ops, found.binding_ops, found.location) == (4, 4, "on the critical path")
    assert [(move.op, move.device, move.value) for move in found.improving_moves] == [(2, 1, 7.0)]
    assert found.moves[0].follower_count == 0


def test_for_a_period_the_ops_that_bind_it_are_moved(fork: Problem) -> None:
    pipelined = replace(fork, objective="period")
    device = neighbours(pipelined, Plan.of(pipelined, [0, 0, 0, 0]))
    assert device.location == "on gpu0, the busiest device"
    # b elsewhere: 1 + 2 + 1 and 5; c elsewhere: 1 + 5 + 1; a or d elsewhere: 8
    assert [(move.op, move.value) for move in device.improving_moves] == [
        (1, 5.0),
        (2, 7.0),
        (0, 8.0),
        (3, 8.0),
    ]
    ops = tuple(replace(op, outputs=(9,)) for op in fork.graph.ops)
    heavy = replace(pipelined, graph=Graph("heavy", ops))
    wire = neighbours(heavy, Plan.of(heavy, [0, 0, 1, 1]))  # a's and b's tensors: 18 s on the wire
    assert wire.location == "at the ends of the busiest channel"
    assert wire.binding_ops == 4
    # With a, b or d on the other side one tensor is left to go each way; with c still two.
    found = [(move.op, move.device, move.value) for move in wire.improving_moves]
    assert found == [(0, 1, 9.0), (1, 1, 9.0), (3, 0, 9.0)]


def test_weights_move_with_their_reader_and_stay_where_a_plan_keeps_them_apart() -> None:
    ops = (Op("w", "weight", outputs=(8,)), Op("a", "matmul", ((0, 0),), (1,)))
    problem = Problem(Graph("small", ops), Cluster.parse("2xP100"))
    together, apart = Plan.of(problem, [0, 0]), Plan.of(problem, [1, 0])
    assert explain_op(problem, together, 1).followers == (0,)
    assert explain_op(problem, apart, 1).followers == ()
    weight = explain_op(problem, together, 0)
    assert weight.followers == ()
    assert weight.slack is None
    sent = explain_op(problem, apart, 0)
    assert sent.on_path == "sent"
    pinned = replace(problem, constraints=Constraints(pins={"a": "gpu0"}))
    assert [move.value for move in explain_op(pinned, Plan.of(pinned, [0, 0]), 1).moves] == [None]


def test_a_staging_room_grows_with_what_is_moved_to_it() -> None:
    ops = (
        Op("v", "weight", outputs=(1,)),
        Op("w", "weight", outputs=(8,)),
        Op("a", "matmul", ((0, 0),), (1,)),
        Op("b", "matmul", ((1, 0), (2, 0)), (1,)),
    )
    problem = Problem(Graph("staged", ops), Cluster.parse("2xP100+cpu"))
    plan = Plan.of(problem, [2, 2, 0, 1], staging=[1, 8, -1])
    (there, _) = explain_op(problem, plan, 3).moves
    assert there.value is not None  # a room of 1 byte would not hold w
    grown = simulate(problem, Plan.of(problem, [2, 2, 0, 0], staging=[8, 8, -1]))
    assert min(move.value for move in explain_op(problem, plan, 3).moves) <= grown.step_time
    assert grown.step_time in [move.value for move in explain_op(problem, plan, 3).moves]


def test_a_fused_op_is_explained_with_its_group(fork: Problem) -> None:
    ops = tuple(replace(op, kind="relu") for op in fork.graph.ops)
    problem = replace(fork, graph=Graph("fork", ops))
    plan = Plan.of(problem, [0, 0, 1, 0], fusion=[7, 7, -1, -1])
    found = explain_op(problem, plan, 1)
    assert found.fused_with == (0,)
    assert (found.start, found.end) == (0, 6)
    assert found.on_path == "runs"
    assert found.slack == 0.0
    (move,) = found.moves
    assert move.unfused_count == 2  # a and b on two devices are one op no more
    assert move.value == simulate(problem, Plan.of(problem, [0, 1, 1, 0])).step_time
