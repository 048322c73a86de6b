"""The critical path covers every moment of any step; loads add up to the period."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import STREAMING, plans, problems

from placewright import Cluster, Device, Graph, Link, Op, Plan, Problem, Table, simulate
from placewright.errors import PlanError
from placewright.simulator import find_critical_path, loads

ANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def told(problem, path):
    """Each segment in words: (kind, op, from, to, what the next one waited for, seconds)."""
    name = [device.name for device in problem.cluster.devices]
    return [
        (p.kind, path.op_names[p.op], name[p.source], name[p.device], p.wait_reason, p.seconds)
        for p in path.segments
    ]


@ANY
@given(st.data())
def test_every_moment_of_a_step_is_in_one_piece(data):
    streaming = data.draw(st.booleans())
    problem = data.draw(problems(kinds=STREAMING) if streaming else problems())
    device, priority, staging = data.draw(plans(problem, staged=streaming))
    timeline = simulate(problem, Plan.of(problem, device, priority, staging=staging))
    segments = find_critical_path(problem, timeline).segments
    moments = [segment.start for segment in segments] + [timeline.step_time]
    if segments:
        assert moments[0] == 0
    else:
        assert timeline.step_time == 0
    assert [segment.end for segment in segments] == moments[1:]
    assert all(segment.end > segment.start for segment in segments)
    assert sum(segment.seconds for segment in segments) == pytest.approx(timeline.step_time)
    really_ran(problem, timeline, segments)


def really_ran(problem, timeline, segments):
    """Each segment is something that the timeline has, and each wait is what it is called."""
    a, moved = problem.arrays, timeline.transfers
    rows = set(zip(a.producer[moved.tensor], moved.channel, moved.start, moved.end, strict=True))
    for at, segment in enumerate(segments):
        after = segments[at + 1] if at + 1 < len(segments) else None
        if segment.kind == "compute":
            assert timeline.plan.placement[segment.op] == segment.device
            assert (timeline.start[segment.op], timeline.end[segment.op]) == (
                segment.start,
                segment.end,
            )
        elif segment.kind == "issue":
            assert segment.wait_reason == "issuer"
            assert after is not None
            assert after.kind == "compute" or after.kind == "issue"
            assert a.issuer[segment.device] == a.issuer[after.device] >= 0
            assert segment.end == segment.start + a.launch_overhead[segment.device]
        else:
            assert (segment.op, segment.channel, segment.start, segment.end) in rows
            assert a.channel[segment.source, segment.device] == segment.channel
        assert (segment.wait_reason == "end") == (after is None)
        if segment.wait_reason == "device":
            assert segment.kind == "compute"
        if segment.wait_reason == "staging":
            assert segment.kind == "compute"
            assert timeline.plan.staging[segment.device] > 0


@ANY
@given(st.data())
def test_the_largest_load_is_the_period(data):
    streaming = data.draw(st.booleans())
    problem = data.draw(problems(kinds=STREAMING) if streaming else problems())
    device, priority, staging = data.draw(plans(problem, staged=streaming))
    plan = Plan.of(problem, device, priority, staging=staging)
    found = loads(problem, plan)
    most = [*found.device, *(found.channel if problem.overlap else ())]
    assert max(most) == pytest.approx(simulate(problem, plan).period)
    assert (found.streamed <= found.channel + 1e-12).all()
    assert staging is not None or not found.streamed.any()


def test_a_transfer_that_waits_is_told_apart_from_one_that_is_late(
    diamond_problem: Problem,
) -> None:
    timeline = simulate(diamond_problem, Plan.of(diamond_problem, [0, 0, 1, 0]))
    path = find_critical_path(diamond_problem, timeline)
    assert told(diamond_problem, path) == [
        ("compute", "top", "gpu0", "gpu0", "input", 1.0),
        ("send", "top", "gpu0", "gpu1", "input", 2.0),
        ("compute", "right", "gpu1", "gpu1", "input", 10.0),
        ("send", "right", "gpu1", "gpu0", "input", 2.0),
        ("compute", "bottom", "gpu0", "gpu0", "end", 1.0),
    ]
    assert path.seconds() == {
        ("compute", 1): 10.0,
        ("compute", 0): 2.0,
        ("send", 0): 2.0,
        ("send", 1): 2.0,
    }
    assert path.waits() == {"input": 15.0, "end": 1.0}


def test_an_op_waits_for_its_device(diamond_problem: Problem) -> None:
    timeline = simulate(diamond_problem, Plan.of(diamond_problem, [0, 0, 0, 0]))
    path = find_critical_path(diamond_problem, timeline)
    assert [(segment.op, segment.wait_reason) for segment in path.segments] == [
        (0, "input"),
        (1, "device"),  # `right` has its input, `left` has the device
        (2, "input"),
        (3, "end"),
    ]


def test_copies_wait_for_channel_and_room(layers_problem: Problem) -> None:
    # 8 bytes of x first, then w1 and w2, 50 bytes each, over a link of 2 bytes a second.
    roomy = Plan.of(layers_problem, [1, 1, 0, 1, 1, 0], staging={"gpu0": 100})
    path = find_critical_path(layers_problem, simulate(layers_problem, roomy))
    assert told(layers_problem, path) == [
        ("send", "x", "cpu", "gpu0", "channel", 4.0),
        ("stream", "w1", "cpu", "gpu0", "channel", 25.0),
        ("stream", "w2.t", "cpu", "gpu0", "input", 25.0),
        ("compute", "layer2", "gpu0", "gpu0", "end", pytest.approx(0.4)),
    ]
    tight = Plan.of(layers_problem, [1, 1, 0, 1, 1, 0], staging={"gpu0": 50})
    path = find_critical_path(layers_problem, simulate(layers_problem, tight))
    assert [segment.wait_reason for segment in path.segments] == [
        "channel",
        "input",
        "staging",
        "input",
        "end",
    ]


def test_an_issuer_is_waited_for() -> None:
    gpus = tuple(
        Device(f"gpu{at}", memory=9, launch_overhead=3.0, issuer="thread") for at in range(2)
    )
    link = Link(1.0)
    cluster = Cluster("pair", gpus, {("gpu0", "gpu1"): link, ("gpu1", "gpu0"): link})
    graph = Graph("apart", (Op("a", outputs=(1,)), Op("b", outputs=(1,))))
    costs = Table(("a", "b"), ("gpu",), np.array([[4.0], [5.0]]))
    problem = Problem(graph, cluster, costs)
    path = find_critical_path(problem, simulate(problem, Plan.of(problem, [0, 1])))
    assert told(problem, path) == [
        ("issue", "a", "gpu0", "gpu0", "issuer", 3.0),
        ("compute", "b", "gpu1", "gpu1", "end", 5.0),
    ]


def no_time(name, kind="op", inputs=(), size=1):
    return Op(name, kind, inputs, (size,))


def test_a_copy_that_takes_no_time_may_have_waited_for_its_channel() -> None:
    host, gpu = Device("cpu", "cpu", memory=99), Device("gpu0", memory=99)
    bus = {("cpu", "gpu0"): Link(1.0, 0.0, "bus"), ("gpu0", "cpu"): Link(1.0, 0.0, "bus")}
    graph = Graph(
        "bus",
        (
            no_time("x", "input", size=5),  # 5 s on the bus, ahead of any weight
            no_time("w", "weight", size=0),  # nothing to move, but not before that
            no_time("reader", inputs=((1, 0),)),
            no_time("other", inputs=((0, 0),)),
        ),
    )
    costs = Table(
        tuple(op.name for op in graph.ops), ("cpu", "gpu"), [[0, 0], [0, 0], [0, 2], [0, 0]]
    )
    problem = Problem(graph, Cluster("pair", (host, gpu), bus), costs)
    plan = Plan.of(problem, [0, 0, 1, 1], staging={"gpu0": 0})
    path = find_critical_path(problem, simulate(problem, plan))
    assert told(problem, path) == [
        ("send", "x", "cpu", "gpu0", "channel", 5.0),
        ("compute", "reader", "gpu0", "gpu0", "end", 2.0),
    ]


def test_a_copy_that_takes_no_time_may_have_waited_for_room() -> None:
    host, gpu = Device("cpu", "cpu", memory=99), Device("gpu0", memory=99)
    link = Link(float("inf"))
    graph = Graph(
        "staging",
        (
            no_time("early"),
            no_time("w1", "weight"),
            no_time("w2", "weight"),
            no_time("holds", inputs=((0, 0), (1, 0))),  # takes no time, but ends when `early` does
            no_time("waits", inputs=((2, 0),)),
        ),
    )
    cluster = Cluster("pair", (host, gpu), {("cpu", "gpu0"): link, ("gpu0", "cpu"): link})
    seconds = [[3, 3], [0, 0], [0, 0], [0, 0], [2, 2]]
    costs = Table(tuple(op.name for op in graph.ops), ("cpu", "gpu"), seconds)
    problem = Problem(graph, cluster, costs, discipline="ready")
    plan = Plan.of(problem, [0, 0, 0, 1, 1], staging={"gpu0": 1})
    path = find_critical_path(problem, simulate(problem, plan))
    assert [(path.op_names[p.op], p.seconds) for p in path.segments] == [
        ("early", 3.0),
        ("waits", 2.0),
    ]


def test_a_fused_group_is_one_piece(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, [0, 0, 0, 0], fusion=[0, 0, -1, -1])
    timeline = simulate(diamond_problem, plan)
    path = find_critical_path(diamond_problem, timeline)
    assert [(path.op_names[segment.op], segment.seconds) for segment in path.segments] == [
        ("top", 11.0),
        ("right", 10.0),
        ("bottom", 1.0),
    ]
    assert loads(diamond_problem, plan).device.tolist() == [22.0, 0.0]


def test_a_strange_timeline_is_refused(diamond_problem: Problem, layers_problem: Problem) -> None:
    timeline = simulate(diamond_problem, Plan.of(diamond_problem, [0, 0, 1, 0]))
    with pytest.raises(PlanError, match=r"the timeline has 4 ops: the graph has 6"):
        find_critical_path(layers_problem, timeline)
    moved = replace(timeline, start=timeline.start + np.array([0, 0, 0, 0.5]))
    with pytest.raises(PlanError, match=r"begins at 15\.5 s but nothing ends then"):
        find_critical_path(diamond_problem, moved)
    longer = replace(timeline, step_time=17.0)
    with pytest.raises(PlanError, match=r"begins at 17\.0 s but nothing ends then"):
        find_critical_path(diamond_problem, longer)
