"""Chrome traces: what Perfetto needs is there, and the arrows and tracks are the timeline's own."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

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
    zoo,
)
from placewright.errors import FileError
from placewright.reporting import chrome_trace, save_trace
from placewright.solvers import MaxEvaluations, Streamed, solve

DEVICES, CHANNELS = 1, 2


def nanoseconds(event, key="ts"):
    """As Perfetto reads a time: microseconds times 1000, cut off."""
    return int(event[key] * 1000)


def of_kind(trace, kind):
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def names(trace):
    """Process and track → name."""
    found = {}
    for event in of_kind(trace, "M"):
        if event["name"] == "thread_name":
            found[event["pid"], event["tid"]] = event["args"]["name"]
    return found


def slices(trace):
    """Track → its (start, end, event), in order of time."""
    tracks = defaultdict(list)
    for event in of_kind(trace, "X"):
        start = nanoseconds(event)
        tracks[event["pid"], event["tid"]].append((start, start + nanoseconds(event, "dur"), event))
    return {track: sorted(found, key=lambda each: each[:2]) for track, found in tracks.items()}


def check(trace):
    """Raise unless Perfetto would show every event where it belongs."""
    json.dumps(trace, allow_nan=False)
    known = names(trace)
    for event in trace["traceEvents"]:
        assert event["ph"] in "MXiCsf"
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        assert event["name"]
        if event["ph"] != "C":
            assert (event["pid"], event["tid"]) in known, "a track without a name"
        if event["ph"] == "X":
            assert event["dur"] > 0
        if event["ph"] == "i":
            assert event["s"] == "t"
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    times = [event["ts"] for event in trace["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)
    tracks = slices(trace)
    for found in tracks.values():
        for (_, end, _), (start, _, _) in pairwise(found):
            assert end <= start, "two slices of one track overlap"
    check_arrows(trace, tracks)


def check_arrows(trace, tracks):
    starts = {event["id"]: event for event in of_kind(trace, "s")}
    ends = {event["id"]: event for event in of_kind(trace, "f")}
    assert len(starts) == len(of_kind(trace, "s"))
    assert starts.keys() == ends.keys()
    place = {id(event): at for at, event in enumerate(trace["traceEvents"])}
    for number, start in starts.items():
        end = ends[number]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        assert end["bp"] == "e"
        for event in (start, end):
            track = tracks[event["pid"], event["tid"]]
            around = [each for each in track if each[0] <= nanoseconds(event) < each[1]]
            assert len(around) == 1, "an arrow that hangs in the air"
            assert place[id(around[0][2])] < place[id(event)], "an arrow before its slice"


def random_plan(problem, seed):
    a = problem.arrays
    device = np.random.default_rng(seed).integers(0, a.devices, size=a.ops)
    return Plan.of(problem, problem.legalize(device))


@pytest.fixture
def interrupted(gpu_and_host, exact) -> tuple[Problem, Plan]:
    """A weight of 20 bytes streams at 2 bytes a second; after 2 s a tensor of 4 goes ahead."""
    graph = Graph(
        "interrupted",
        (
            Op("w", kind="weight", outputs=(20,)),
            Op("a", kind="embed", flops=2, outputs=(4,), module="inner"),
            Op("b", flops=10, outputs=(1,), inputs=((1, 0), (0, 0))),
        ),
    )
    problem = Problem(graph, gpu_and_host, exact)
    return problem, Plan.of(problem, [1, 1, 0], staging={"gpu0": 20})


@pytest.mark.parametrize("name", ["fork-join", "branches:modules=2", "layered:weights=true"])
@pytest.mark.parametrize("cluster", ["2xP100+cpu", "3xV100-nvlink", "cpu"])
@pytest.mark.parametrize("discipline", ["in order", "ready"])
def test_the_trace_of_any_plan_is_one_that_perfetto_shows(name, cluster, discipline):
    problem = Problem(zoo.load(name), Cluster.parse(cluster), discipline=discipline)
    timeline = simulate(problem, random_plan(problem, seed=1))
    trace = chrome_trace(problem, timeline)
    check(trace)
    taking_turns = int(problem.arrays.scheduled.sum())
    ops = [e for e in trace["traceEvents"] if e["ph"] in "Xi" and e["pid"] == DEVICES]
    assert len(ops) == taking_turns
    sends = [e for e in trace["traceEvents"] if e["ph"] in "Xi" and e["pid"] == CHANNELS]
    assert len(sends) == len(timeline.transfers)
    last = max(start + length for start, length, _ in ends_of(trace))
    assert last == pytest.approx(timeline.step_time * 1e6, rel=1e-6)


def ends_of(trace):
    return [(e["ts"], e.get("dur", 0), e) for e in trace["traceEvents"] if e["ph"] in "Xi"]


def test_streamed_weights_of_a_model_larger_than_the_gpu_are_shown():
    # 8 blocks of 352 MiB, 1 GiB for them on the GPU
    limit = Constraints(limits={"gpu0": 2 * 2**30})
    problem = Problem(zoo.load("offload:blocks=8"), Cluster.parse("P100+cpu"), constraints=limit)
    result = solve(problem, Streamed(), stop=MaxEvaluations(20))
    trace = chrome_trace(problem, simulate(problem, result.plan))
    check(trace)
    streamed = [e for e in of_kind(trace, "X") if e["args"].get("streamed")]
    assert streamed
    assert {e["args"]["from"] for e in streamed} == {"cpu"}
    assert all(e["args"]["bytes"] == 352 * 2**20 for e in streamed)


def test_a_tensor_interrupts_a_streamed_weight_and_every_part_is_shown(interrupted):
    problem, plan = interrupted
    trace = chrome_trace(problem, simulate(problem, plan))
    check(trace)
    (wire,) = [track for track in slices(trace) if track[0] == CHANNELS]
    assert names(trace)[wire] == "cpu->gpu0"
    parts = [(e["name"], start, end) for start, end, e in slices(trace)[wire]]
    # a is ready after 2 s and takes 4 / 2 = 2 s; the weight has 10 - 2 = 8 s to go.
    second = 10**9
    assert parts == [
        ("w → gpu0", 0, 2 * second),
        ("a → gpu0", 2 * second, 4 * second),
        ("w → gpu0", 4 * second, 12 * second),
    ]
    assert [e["args"]["streamed"] for _, _, e in slices(trace)[wire]] == [True, False, True]
    assert slices(trace)[wire][0][2]["args"]["reader"] == "b"


def test_arrows_lead_from_producer_over_transfer_to_reader(interrupted):
    problem, plan = interrupted
    trace = chrome_trace(problem, simulate(problem, plan))
    tracks = slices(trace)

    def at(event):
        return next(
            e["name"]
            for start, end, e in tracks[event["pid"], event["tid"]]
            if start <= nanoseconds(event) < end
        )

    starts = {event["id"]: at(event) for event in of_kind(trace, "s")}
    ends = {event["id"]: at(event) for event in of_kind(trace, "f")}
    arrows = sorted((starts[number], ends[number]) for number in starts)
    # Only the last part of the weight's copy lets b begin; the weight itself takes no turn.
    assert arrows == [("a", "a → gpu0"), ("a → gpu0", "b"), ("w → gpu0", "b")]
    part = next(e for e in of_kind(trace, "s") if starts[e["id"]].startswith("w"))
    assert part["ts"] > 4e6


def test_an_op_says_what_it_is(interrupted):
    problem, plan = interrupted
    trace = chrome_trace(problem, simulate(problem, plan))
    op = next(e for e in of_kind(trace, "X") if e["name"] == "a")
    assert op["args"] == {
        "kind": "embed",
        "module": "inner",
        "phase": "forward",
        "flops": 2,
        "seconds": 2.0,
    }
    assert (op["ts"], op["dur"]) == (0, 2_000_000)
    assert names(trace)[op["pid"], op["tid"]] == "cpu"
    assert trace["otherData"] == {
        "graph": "interrupted",
        "cluster": "gpu_and_host",
        "step_time": 13.0,
        "period": 12.0,
    }


def test_memory_is_counted_against_its_limit_to_the_end_of_the_step(interrupted):
    problem, plan = interrupted
    trace = chrome_trace(problem, simulate(problem, plan))
    counters = [e for e in of_kind(trace, "C") if e["name"] == "gpu0 memory (bytes)"]
    assert [(e["ts"] / 1e6, e["args"]["used"]) for e in counters] == [
        (0, 20),  # the staging room, for the whole step
        (2, 24),  # and a's tensor, from the start of its send
        (12, 25),  # and b's output
        (13, 21),  # a's tensor has been read
        (13, 21),  # the end of the step
    ]
    assert {e["args"]["limit"] for e in counters} == {100}


def test_memory_without_a_limit_has_no_line_for_one(interrupted):
    problem, plan = interrupted
    host = Device("cpu", "cpu", memory=2**62, rates={"float32": 1.0}, memory_bandwidth=1e30)
    cluster = Cluster("open", (problem.cluster.devices[0], host), problem.cluster.links)
    problem = Problem(problem.graph, cluster, problem.costs)
    trace = chrome_trace(problem, simulate(problem, plan))
    assert {
        (e["name"], "limit" in e["args"]) for e in of_kind(trace, "C") if "cpu" in e["name"]
    } == {("cpu memory (bytes)", False)}


def test_an_op_that_takes_no_time_is_an_instant(one_device):
    graph = Graph(
        "viewed",
        (
            Op("a", flops=1, outputs=(4,)),
            Op("v", kind="view", inputs=((0, 0),), outputs=(4,), aliases=((0, 0),)),
        ),
    )
    problem = Problem(graph, one_device)
    trace = chrome_trace(problem, simulate(problem, Plan.of(problem, [0, 0])))
    check(trace)
    assert [event["name"] for event in of_kind(trace, "i")] == ["v"]


def test_a_fused_group_is_one_slice(diamond_problem):
    plan = Plan.of(diamond_problem, [0, 0, 1, 0], fusion=[5, 5, -1, -1])
    trace = chrome_trace(diamond_problem, simulate(diamond_problem, plan))
    check(trace)
    ops = [event for event in of_kind(trace, "X") if event["pid"] == DEVICES]
    assert [event["name"] for event in ops] == ["top and 1 more", "right", "bottom"]
    assert ops[0]["args"]["fused"] == ["top", "left"]
    assert ops[0]["args"]["flops"] == 11


def test_names_are_data(one_device):
    odd = 'quote " tag <b> back\\slash \n é [red]'
    problem = Problem(Graph("odd", (Op(odd, flops=1),)), one_device)
    trace = chrome_trace(problem, simulate(problem, Plan.of(problem, [0])))
    again = json.loads(json.dumps(trace))
    assert of_kind(again, "X")[0]["name"] == odd


def test_short_ops_on_odd_nanoseconds_do_not_overlap():
    # 1.001 µs each: cutting 1000 times the microseconds of a sum can lose a nanosecond.
    count = 3000
    ops = tuple(
        Op(f"op{at}", flops=1001, inputs=((at - 1, 0),) if at else ()) for at in range(count)
    )
    cluster = Cluster(
        "one", (Device("gpu0", memory=10, rates={"float32": 1e9}, memory_bandwidth=1e30),), {}
    )
    problem = Problem(Graph("short", ops), cluster, Roofline(compute=1, memory=1))
    trace = chrome_trace(problem, simulate(problem, Plan.of(problem, np.zeros(count))))
    check(trace)
    (track,) = slices(trace).values()
    assert [start for start, _, _ in track] == [1001 * at for at in range(count)]


def test_links_that_share_a_channel_share_a_track(shared_wire, exact):
    graph = Graph(
        "spread",
        (
            Op("a", flops=1, outputs=(4,)),
            Op("b", flops=1, inputs=((0, 0),)),
            Op("c", flops=1, inputs=((0, 0),)),
        ),
    )
    problem = Problem(graph, shared_wire, exact)
    trace = chrome_trace(problem, simulate(problem, Plan.of(problem, [2, 0, 1])))
    check(trace)
    channels = {name for (process, _), name in names(trace).items() if process == CHANNELS}
    assert channels == {"down"}


def test_a_trace_is_saved_zipped_where_the_name_says_so(tmp_path, diamond_problem):
    timeline = simulate(diamond_problem, Plan.of(diamond_problem, [0, 0, 1, 0]))
    save_trace(diamond_problem, timeline, tmp_path / "trace.json")
    save_trace(diamond_problem, timeline, str(tmp_path / "trace.json.gz"))
    plain = json.loads((tmp_path / "trace.json").read_text())
    assert plain == json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    check(plain)


def test_a_trace_that_cannot_be_written_is_a_file_error(tmp_path, diamond_problem):
    timeline = simulate(diamond_problem, Plan.of(diamond_problem, [0, 0, 1, 0]))
    with pytest.raises(FileError, match=r"trace.json: cannot be written: no such file"):
        save_trace(diamond_problem, timeline, tmp_path / "nowhere" / "trace.json")


def test_the_checks_of_this_file_can_fail(interrupted):
    problem, plan = interrupted

    def broken(kind, match, **change):
        trace = chrome_trace(problem, simulate(problem, plan))
        check(trace)
        next(e for e in of_kind(trace, kind) if e["pid"] == CHANNELS).update(change)
        with pytest.raises(AssertionError, match=match):
            check(trace)

    broken("X", "two slices of one track overlap", dur=2.1e6)
    broken("X", "a track without a name", tid=7)
    broken("s", "an arrow that hangs in the air", tid=1, pid=DEVICES)
    broken("f", "keys", id=99)


def test_a_link_of_no_length_makes_instants_without_arrows(one_device, exact):
    free = Link(float("inf"))
    places = (
        one_device.devices[0],
        Device("gpu1", memory=1000, rates={"float32": 1.0}, memory_bandwidth=1e30),
    )
    cluster = Cluster("free", places, {("gpu0", "gpu1"): free, ("gpu1", "gpu0"): free})
    graph = Graph("two", (Op("a", flops=1, outputs=(4,)), Op("b", flops=1, inputs=((0, 0),))))
    problem = Problem(graph, cluster, exact)
    trace = chrome_trace(problem, simulate(problem, Plan.of(problem, [0, 1])))
    check(trace)
    assert [event["name"] for event in of_kind(trace, "i")] == ["a → gpu1"]
    assert not of_kind(trace, "s")
