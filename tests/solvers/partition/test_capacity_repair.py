"""Repair: a plan over memory fits afterwards, little is moved, nothing gets worse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import STREAMING, plans, problems

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    Op,
    Plan,
    Problem,
    Roofline,
    simulate,
    simulator,
)
from placewright.solvers import METIS, MaxEvaluations, Scotch, repair, solve
from placewright.solvers.partition.capacity_repair import repair_rounds
from placewright.solvers.partition.movable_groups import MovableGroups


def linked(count: int, memory: int, host: int = 0) -> Cluster:
    """Equal GPUs, and a host of this memory, a tenth as fast."""
    devices = [
        Device(f"gpu{at}", memory=memory, rates={"float32": 1e3}, memory_bandwidth=1e30)
        for at in range(count)
    ]
    if host:
        devices.append(
            Device("cpu", "cpu", memory=host, rates={"float32": 1e2}, memory_bandwidth=1e30)
        )
    names = [device.name for device in devices]
    links = {(one, two): Link(1e3) for one in names for two in names if one != two}
    return Cluster("linked", tuple(devices), links)


def chain(residents: list[int], flops: float = 10) -> Graph:
    """Ops in a row that pass 1 byte, each with resident bytes of its own."""
    ops = [
        Op(
            f"op{at}",
            flops=flops,
            outputs=(1,),
            resident=size,
            inputs=((at - 1, 0),) if at else (),
        )
        for at, size in enumerate(residents)
    ]
    return Graph("chain", tuple(ops))


def network(seed: int, layers: int, training: bool) -> Graph:
    """Layers with weights, skips, and, if it trains, backward ops that read what they need."""
    rng = np.random.default_rng(seed)
    ops = [Op("x", kind="input", outputs=(40,))]
    made = [0]
    for at in range(layers):
        weight = len(ops)
        ops.append(Op(f"w{at}", kind="weight", outputs=(int(rng.lognormal(0, 0.7) * 1000),)))
        reads = dict.fromkeys([made[-1], int(rng.choice(made[-6:]))])
        inputs = ((weight, 0), *((source, 0) for source in reads))
        flops = float(rng.lognormal(0, 1) * 1e3)
        ops.append(Op(f"layer{at}", flops=flops, outputs=(40,), inputs=inputs))
        made.append(len(ops) - 1)
    if training:
        gradient = made[-1]
        for at in reversed(range(layers)):
            forward = made[at + 1]
            ops.append(
                Op(
                    f"back{at}",
                    phase="backward",
                    flops=2 * ops[forward].flops,
                    outputs=(40, ops[forward - 1].outputs[0]),
                    inputs=((gradient, 0), (forward - 1, 0), (forward, 0)),
                )
            )
            gradient = len(ops) - 1
    return Graph("network", tuple(ops))


def tight(graph: Graph, count: int, margin: float) -> Problem:
    """GPUs that together hold what one large GPU would need, and this margin more."""
    roomy = Problem(graph, linked(1, 10**9), Roofline(compute=1, memory=1))
    need = simulator.judge(roomy, np.zeros((1, len(graph)))).peak[0, 0]
    cluster = linked(count, int(need * (1 + margin) / count))
    return Problem(graph, cluster, Roofline(compute=1, memory=1))


def over(problem: Problem, device: np.ndarray) -> int:
    return int(simulator.judge(problem, device).overflow[0])


def test_a_placement_that_fits_is_left_alone(exact: Roofline) -> None:
    problem = Problem(chain([10, 10]), linked(2, 100), exact)
    given_ = np.array([0, 1], dtype=np.int32)
    assert list(repair_rounds(problem, given_)) == []
    assert repair(problem, given_).tolist() == [0, 1]


def test_the_boundary_is_shifted_rather_than_a_hole_made(exact: Roofline) -> None:
    # 6 × 20 bytes on a GPU of 110, and 2 × 20 on the other: one op must go. Taken from the middle
    # it would cut the chain twice more, from the start once more; the last before the cut, never.
    problem = Problem(chain([20] * 8), linked(2, 110), exact)
    assert repair(problem, np.array([0] * 6 + [1] * 2)).tolist() == [0] * 5 + [1] * 3


def test_what_is_quick_anywhere_goes_to_the_slow_host(exact: Roofline) -> None:
    # Either op frees enough; the second takes no time, which it does on the host, too.
    ops = (
        Op("work", flops=100, outputs=(1,), resident=60),
        Op("table", flops=0, outputs=(1,), resident=60, inputs=((0, 0),)),
    )
    problem = Problem(Graph("pair", ops), linked(1, 100, host=1000), exact)
    assert repair(problem, np.zeros(2)).tolist() == [0, 1]


def test_a_weight_moves_with_its_team(layers: Graph, gpu_and_host: Cluster) -> None:
    problem = Problem(layers, gpu_and_host)  # two weights of 50 and tensors, on 100 bytes
    device = repair(problem, problem.legalize(np.zeros(6)))
    assert over(problem, device) == 0
    assert device[1] == device[2]  # w1 and layer1
    assert device[3] == device[4] == device[5]  # w2, its view and layer2
    assert device[2] != device[5]


def test_a_weight_that_lives_apart_from_its_reader_stays_apart(exact: Roofline) -> None:
    # gpu0 is over by `big` alone; `w` is on the host and streamed to `reader`, and stays there.
    ops = (
        Op("w", kind="weight", outputs=(50,)),
        Op("reader", flops=10, outputs=(1,), inputs=((0, 0),)),
        Op("big", flops=10, outputs=(1,), resident=80, inputs=((1, 0),)),
    )
    problem = Problem(Graph("apart", ops), linked(2, 100, host=1000), exact)
    staging = np.array([50, -1, -1])
    assert repair(problem, np.array([2, 0, 0]), staging=staging).tolist() == [2, 0, 1]


def test_pieces_are_swapped_where_no_room_is_large_enough(exact: Roofline) -> None:
    # 60 + 50 on a GPU of 100, 45 + 4 on the other, whose room of 51 - 1 takes neither 60 nor 50;
    # but 50 fits in the stead of 4.
    problem = Problem(chain([60, 50, 45, 4]), linked(2, 100), exact)
    device = repair(problem, np.array([0, 0, 1, 1]))
    assert over(problem, device) == 0


def test_a_large_piece_makes_smaller_ones_move_on(exact: Roofline) -> None:
    # 90 + 80 on the first of three GPUs of 100; 30 + 30 on the others. 80 fits nowhere before one
    # of them has sent its two to the other.
    problem = Problem(chain([90, 80, 30, 15, 30, 15]), linked(3, 102), exact)
    device = repair(problem, np.array([0, 0, 1, 1, 2, 2]))
    assert over(problem, device) == 0


def test_where_nothing_can_be_done_the_placement_is_no_worse(exact: Roofline) -> None:
    problem = Problem(chain([500, 10]), linked(2, 100), exact)
    device = repair(problem, np.zeros(2))
    assert over(problem, device) == 401  # 500 alone, and the byte it makes
    pinned = Problem(chain([90, 90]), linked(2, 100), exact, Constraints(pins={"op*": "gpu0"}))
    assert repair(pinned, np.zeros(2)).tolist() == [0, 0]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 6])
@pytest.mark.parametrize("kind", [METIS, Scotch])
def test_blind_partitions_fit_where_memory_exceeds_the_need_by_a_tenth(
    kind: type, seed: int, training: bool
) -> None:
    problem = tight(network(seed, 60, training), 4, margin=0.1)
    blind, repaired = solve(problem, kind()), solve(problem, kind(repaired=True))
    assert not blind.fits
    assert repaired.fits
    # The first plan judged is the blind one; at most half of the ops are elsewhere now.
    assert (blind.plan.placement != repaired.plan.placement).mean() < 0.5
    assert repaired.objective_value < 1.25 * blind.objective_value
    assert repaired.overflow == over(problem, repair(problem, blind.plan.placement))


def test_repair_of_the_period_leaves_the_busiest_device_alone() -> None:
    # `b` would best be with its reader on the third GPU, were that not the busiest.
    ops = [
        Op("a", flops=10, outputs=(1,), resident=60),
        Op("b", flops=10, outputs=(1,), resident=60),
        Op("c", flops=90, outputs=(1,), resident=1, inputs=((1, 0),)),
    ]
    graph, costs = Graph("busy", tuple(ops)), Roofline(compute=1, memory=1)
    device = np.array([0, 0, 2])
    step = Problem(graph, linked(3, 100), costs)
    assert repair(step, device).tolist() == [0, 2, 2]
    period = Problem(graph, linked(3, 100), costs, objective="period")
    assert repair(period, device).tolist() in ([0, 1, 2], [1, 0, 2])


def test_what_pieces_hold_is_what_the_simulator_finds() -> None:
    for seed in range(4):
        problem = tight(network(seed, 40, training=True), 3, margin=0.1)
        device = np.random.default_rng(seed).integers(0, 3, len(problem.graph))
        plan = Plan.of(problem, problem.legalize(device))
        timeline = simulate(problem, plan)
        pieces = MovableGroups.of(problem, plan.placement)
        held = np.bincount(pieces.initial_device, pieces.held_bytes(timeline), 3)
        assert held == pytest.approx(timeline.peak, abs=1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_repair_keeps_the_constraints_and_is_never_worse(data: st.DataObject) -> None:
    kinds = {} if data.draw(st.booleans()) else {"kinds": STREAMING}
    problem = data.draw(problems(**kinds))
    device, priority, staging = data.draw(plans(problem))
    before = device.copy()
    repaired = repair(problem, device, priority, staging)
    assert np.array_equal(device, before)
    # Both would raise if a constraint were broken or a staging buffer too small.
    Plan.of(problem, repaired, priority, staging=staging)
    verdict = simulator.judge(
        problem,
        np.stack([device, repaired]),
        None if priority is None else np.stack([priority, priority]),
        None if staging is None else np.stack([staging, staging]),
    )
    keys = list(zip(verdict.overflow.tolist(), verdict.value.tolist(), strict=True))
    assert keys[1] <= keys[0]


def test_the_rounds_of_a_repaired_partition_are_counted() -> None:
    problem = tight(network(0, 60, True), 4, margin=0.1)
    assert solve(problem, METIS(repaired=True)).evaluations > 1
    assert solve(problem, METIS(repaired=True), MaxEvaluations(1)).evaluations == 1
