"""Waits and the critical path: no gap in it, whatever the problem, and the right cause by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import STREAMING, plans, problems

from placewright import Cluster, Device, Graph, Link, Op, Plan, Problem, Table, simulate
from placewright.simulator import waits as w
from placewright.simulator.waits import find_waits


def check_path(problem, timeline):
    """Each part of the path begins when the one before it ends, from 0 to the step time."""
    found = find_waits(problem, timeline)
    moved, until = timeline.transfers, 0.0
    launch = problem.arrays.launch_overhead[timeline.plan.placement]
    previous = None
    for what, at in found.path:
        times = timeline if what == "op" else moved
        kind, of = (found.ops if what == "op" else found.sends)[at]
        if previous is None:
            assert (kind, of) == (w.NOTHING, -1)
            assert times.start[at] == 0
        elif kind == w.ISSUER:
            assert times.start[at] == timeline.start[of] + launch[of]
        else:
            assert times.start[at] == until
            assert (("op" if kind in w.OP_WAITS else "send"), of) == previous
        until, previous = times.end[at], (what, at)
    if problem.arrays.scheduled.any():
        assert until == timeline.step_time
    return found


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_critical_path_has_no_gap(data):
    problem = data.draw(problems(kinds=data.draw(st.sampled_from([STREAMING, *[("op",) * 3]]))))
    device, priority, staging = data.draw(plans(problem))
    check_path(problem, simulate(problem, Plan.of(problem, device, priority, staging=staging)))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_critical_path_has_no_gap_whatever_the_ops(data):
    problem = data.draw(problems())
    device, priority, staging = data.draw(plans(problem, staged=data.draw(st.booleans())))
    timeline = simulate(problem, Plan.of(problem, device, priority, staging=staging))
    check_path(problem, timeline)


def test_the_split_diamond_waits_for_its_transfers(diamond_problem: Problem, split_timeline):
    # top 0-1, sent 1-3, right 3-13 on the other device, sent back 13-15, bottom 15-16
    found = check_path(diamond_problem, split_timeline)
    assert found.path == [("op", 0), ("send", 0), ("op", 2), ("send", 1), ("op", 3)]
    assert found.ops == [(w.NOTHING, -1), (w.INPUT, 0), (w.ARRIVAL, 0), (w.ARRIVAL, 1)]
    assert found.sends == [(w.INPUT, 0), (w.INPUT, 2)]


def test_a_second_transfer_waits_for_the_wire(fork_join, two_devices, exact):
    # fork makes tensors of 3 and 4 bytes at 1 s, both read on the other device
    problem = Problem(fork_join, two_devices, exact)
    timeline = simulate(problem, Plan.of(problem, [0, 1, 1, 1, 1, 1]))
    found = check_path(problem, timeline)
    assert found.sends == [(w.INPUT, 0), (w.CHANNEL_BUSY, 0)]


def test_a_streamed_weight_waits_for_room(layers_problem: Problem):
    # Both weights on the host, and room for one of them: 50 bytes at 2 a second
    plan = Plan.of(layers_problem, [1, 1, 0, 1, 1, 0], staging={"gpu0": 50})
    timeline = simulate(layers_problem, plan)
    found = check_path(layers_problem, timeline)
    streamed = np.flatnonzero(timeline.transfers.reader >= 0)
    assert found.sends[streamed[1]] == (w.STAGING, 2)


def test_an_op_waits_for_the_thread_that_launches_it():
    # a runs from 0 and b, once a is launched, from 0.25 s; both end at 1 s. Then c is launched
    # until 1.25 s, and d by the same thread after it.
    devices = (
        Device(
            "d0",
            rates={"float32": 1.0},
            memory_bandwidth=1e30,
            launch_overhead=0.25,
            issuer="thread",
        ),
        Device(
            "d1",
            rates={"float32": 1.0},
            memory_bandwidth=1e30,
            launch_overhead=0.0,
            issuer="thread",
        ),
    )
    link = Link(1.0)
    cluster = Cluster("two", devices, {("d0", "d1"): link, ("d1", "d0"): link})
    names = ("a", "b", "c", "d")
    seconds = np.array([[1, 1], [1, 0.75], [1, 1], [1, 1]])
    table = Table(names, ("d0", "d1"), seconds)
    problem = Problem(Graph("g", tuple(Op(name, outputs=(0,)) for name in names)), cluster, table)
    timeline = simulate(problem, Plan.of(problem, [0, 1, 0, 1]))
    found = check_path(problem, timeline)
    assert found.path[-1] == ("op", 3)
    assert found.ops[3] == (w.ISSUER, 2)
