"""Steps in flight: what a caller sees who begins a step whenever the oldest has ended."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from placewright import Cluster, Device, Graph, Link, Op, Plan, Problem, Table, simulate
from placewright.simulator import simulate_in_flight
from placewright.simulator.steps_in_flight import WINDOWS


def problem(ops, seconds, devices=2):
    names = [f"d{at}" for at in range(devices)]
    links = {(a, b): Link(1.0, 0.0, f"{a}-net") for a in names for b in names if a != b}
    cluster = Cluster("test", tuple(Device(name, memory=10**9) for name in names), links)
    table = Table(tuple(op.name for op in ops), tuple(names), np.tile(seconds, (devices, 1)).T)
    return Problem(Graph("test", tuple(ops)), cluster, table)


def test_an_op_that_begins_a_step_on_a_busy_device_waits_for_older_steps():
    # d1 has a (1 s) and c (2 s), d0 has b (2 s) between them; the period is 3. Two steps in flight
    # end at 5 and 7. The third begins at 5, but d1 is busy with c of the second until 7: a 7 to 8,
    # b 8 to 10, c 10 to 12, and the fourth ends at 14. So it goes on: two steps every 7 s.
    ops = [
        Op("a", outputs=(0,)),
        Op("b", inputs=((0, 0),), outputs=(0,)),
        Op("c", inputs=((1, 0),), outputs=(0,)),
    ]
    given = problem(ops, [1.0, 2.0, 2.0])
    plan = Plan.of(given, [1, 0, 1])
    assert simulate(given, plan).period == 3
    flight = simulate_in_flight(given, plan, 2)
    assert flight.seconds == 7
    assert flight.interval == 7 / 2


def test_an_input_leaves_for_another_device_when_its_step_begins():
    # x of 4 bytes goes to d1 in 4 s, where a takes 1 s; two in flight: the channel takes 4 s a
    # step, and never idles, as the next input is there before the one before it has left.
    ops = [Op("x", "input", outputs=(4,)), Op("a", inputs=((0, 0),), outputs=(0,))]
    given = problem(ops, [0.0, 1.0])
    plan = Plan.of(given, [0, 1])
    assert simulate_in_flight(given, plan, 2).interval == 4
    # With b of 6 s after it: 7 s a step on d1.
    given = problem([*ops, Op("b", inputs=((1, 0),), outputs=(0,))], [0.0, 1.0, 6.0])
    assert simulate_in_flight(given, Plan.of(given, [0, 1, 1]), 2).interval == 7


def closed_loop_ends(given, placement, in_flight, steps):
    """When steps end, by a plain simulation of workers and network cards of its own."""
    ops, seconds = given.graph.ops, given.arrays.compute
    devices = range(len(given.cluster))
    sequences = [[at for at in range(len(ops)) if placement[at] == device] for device in devices]
    needs = [{(source, placement[at]) for source, _ in op.inputs} for at, op in enumerate(ops)]
    targets = [
        sorted({placement[at] for at, op in enumerate(ops) if (source, 0) in op.inputs})
        for source in range(len(ops))
    ]
    next_of, there, left = {}, set(), {}
    busy, card_free = [False for _ in devices], [0.0 for _ in devices]
    events, ends = [], []

    def begin(step):
        left[step] = len(ops)
        next_of.update({(step, device): 0 for device in devices})

    def start_ops(now):
        for device in devices:
            for step in sorted(left):
                at = next_of[step, device]
                sequence = sequences[device]
                if busy[device] or at == len(sequence):
                    continue
                op = sequence[at]
                if all((step, *need) in there for need in needs[op]):
                    busy[device], next_of[step, device] = True, at + 1
                    heapq.heappush(events, (now + seconds[op, device], 0, step, op, device))

    for step in range(in_flight):
        begin(step)
    start_ops(0.0)
    while events:
        now, is_arrival, step, op, device = heapq.heappop(events)
        if is_arrival:
            there.add((step, op, device))
        else:
            busy[device] = False
            for target in targets[op]:
                if target == device:
                    there.add((step, op, device))
                else:
                    card_free[device] = max(card_free[device], now) + ops[op].outputs[0]
                    heapq.heappush(events, (card_free[device], 1, step, op, target))
            left[step] -= 1
            while len(ends) in left and not left[len(ends)]:
                del left[len(ends)]
                ends.append(now)
                if len(ends) + in_flight <= steps:
                    begin(len(ends) + in_flight - 1)
        start_ops(now)
    return ends


@pytest.mark.parametrize("seed", range(12))
def test_the_interval_is_that_of_workers_that_take_the_oldest_step_whose_next_op_is_ready(seed):
    rng = np.random.default_rng(seed)
    count, devices = int(rng.integers(4, 16)), int(rng.integers(2, 4))
    ops = []
    for at in range(count):
        sources = rng.choice(at, min(at, int(rng.integers(0, 3))), replace=False)
        inputs = tuple((int(source), 0) for source in sources)
        ops.append(Op(f"op{at}", inputs=inputs, outputs=(int(rng.integers(1, 40)),)))
    given = problem(ops, rng.random(count) * 20, devices)
    placement = rng.integers(0, devices, count)
    in_flight = int(rng.integers(2, 5))
    ends = closed_loop_ends(given, placement.tolist(), in_flight, WINDOWS * in_flight)
    expected = (ends[-in_flight - 1] - ends[in_flight - 1]) / ((WINDOWS - 2) * in_flight)
    plan = Plan.of(given, placement)
    period = simulate(given, plan).period
    assert simulate_in_flight(given, plan, in_flight).interval == pytest.approx(
        max(expected, period)
    )
