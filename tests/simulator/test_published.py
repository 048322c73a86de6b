"""The published rules of Placeto's simulator, on toys whose sums are done by hand; in µs."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Device, Graph, Link, Op, Problem, Roofline, judge, zoo
from placewright.simulator.published import placeto_seconds


def problem(*ops: Op, devices: int = 2) -> Problem:
    """Devices that do 10⁶ FLOPs a second, so that an op of 100 FLOPs takes 100 µs."""
    made = [
        Device(f"gpu{at}", "gpu", memory=10**9, rates={"float32": 1e6}, memory_bandwidth=1e30)
        for at in range(devices)
    ]
    names = [each.name for each in made]
    links = {(one, other): Link(1e9) for one in names for other in names if one != other}
    return Problem(Graph("toy", ops), Cluster("toy", tuple(made), links), Roofline(1, 1))


def micros(problem: Problem, *device: int) -> float:
    return placeto_seconds(problem, np.array(device)) * 1e6


TWO = (
    Op("a", flops=100, outputs=(76_000,)),
    Op("b", flops=100, outputs=(1,), inputs=((0, 0),)),
)


def test_on_one_device_ops_are_five_point_seven_apart():
    """100 + 5.7 + 100 + 5.7, as the authors' own file gives."""
    assert micros(problem(*TWO), 0, 0) == pytest.approx(211.4)


def test_on_two_devices_a_transfer_takes_its_bytes_and_the_wire_rests_afterwards():
    """100 + 76,000 B at 7.6 GB/s = 10, + 100 + 5.7; the wire's 25 end before."""
    assert micros(problem(*TWO), 0, 1) == pytest.approx(215.7)


def test_one_transfer_serves_readers_on_different_devices():
    """b and c begin at 110 both; with a transfer each one would begin 35 later."""
    more = Op("c", flops=100, outputs=(1,), inputs=((0, 0),))
    assert micros(problem(*TWO, more, devices=3), 0, 1, 2) == pytest.approx(215.7)


def test_the_wire_rests_before_the_next_tensor():
    """a ends at 100 with two outputs: the first is there at 110, the second at 110 + 25 + 10."""
    ops = (
        Op("a", flops=100, outputs=(76_000, 76_000)),
        Op("b", flops=1, outputs=(1,), inputs=((0, 0),)),
        Op("c", flops=100, outputs=(1,), inputs=((0, 1),)),
    )
    assert micros(problem(*ops), 0, 1, 1) == pytest.approx(145 + 100 + 5.7)


def test_of_two_outputs_of_one_op_the_last_alone_is_paid_for():
    """The first, of 760,000 bytes, would take 100 and is not waited for; the last takes 10."""
    ops = (
        Op("a", flops=100, outputs=(760_000, 76_000)),
        Op("b", flops=100, outputs=(1,), inputs=((0, 0), (0, 1))),
    )
    assert micros(problem(*ops), 0, 1) == pytest.approx(215.7)


def test_an_op_of_no_time_leaves_its_device_free_at_once():
    ops = (Op("a", outputs=(1,)), Op("b", flops=100, outputs=(1,), inputs=((0, 0),)))
    assert micros(problem(*ops), 0, 0) == pytest.approx(105.7)


def test_it_ranks_placements_much_as_our_rules_do_though_its_times_are_others():
    on = Problem(zoo.load("branches:modules=2"), Cluster.parse("2xP100"), discipline="ready")
    rng = np.random.default_rng(0)
    plans = on.legalize(rng.integers(0, 2, (30, len(on.graph))))
    plans[0] = 0
    theirs = np.array([placeto_seconds(on, plan) for plan in plans])
    ours = judge(on, plans).value
    assert np.corrcoef(np.argsort(np.argsort(theirs)), np.argsort(np.argsort(ours)))[0, 1] > 0.3
    assert (theirs != ours).all()
