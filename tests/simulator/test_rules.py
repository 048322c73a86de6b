"""Each rule of the simulator on a case small enough to work out by hand."""

from __future__ import annotations

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
    Table,
    judge,
    simulate,
)
from placewright.errors import PlanError
from placewright.simulator import simulate_in_flight

BIG = 10**9


def cluster(count=2, latency=0.0, bandwidth=1.0, channel="", **device):
    """`count` GPUs; a tensor of n bytes takes latency + n / bandwidth seconds."""
    devices = tuple(Device(f"d{at}", memory=BIG, **device) for at in range(count))
    names = [place.name for place in devices]
    links = {(s, t): Link(bandwidth, latency, channel) for s in names for t in names if s != t}
    return Cluster("test", devices, links)


def problem(ops, seconds, place=None, outputs=None, **how):
    """Ops with the given seconds on every device."""
    place = place or cluster()
    graph = Graph("test", tuple(ops), outputs)
    table = Table(
        tuple(op.name for op in ops),
        tuple(device.name for device in place.devices),
        np.tile(np.array(seconds, dtype=float)[:, None], (1, len(place))),
    )
    return Problem(graph, place, table, **how)


def run(given, device, priority=None, staging=None, fusion=None):
    return simulate(given, Plan.of(given, device, priority, fusion, staging))


def test_a_device_runs_one_op_at_a_time():
    timeline = run(problem([Op("a"), Op("b")], [2, 3]), [0, 0])
    assert timeline.start.tolist() == [0, 2]
    assert timeline.step_time == 2 + 3


def test_devices_run_side_by_side():
    assert run(problem([Op("a"), Op("b")], [2, 3]), [0, 1]).step_time == 3


def test_in_order_waits_for_the_head_of_the_line_and_ready_does_not():
    # b waits for a's tensor of 4 bytes until 1 + 4 = 5; c could run at 0.
    ops = [Op("a", outputs=(4,)), Op("b", inputs=((0, 0),)), Op("c")]
    assert run(problem(ops, [1, 1, 2]), [0, 1, 1]).start.tolist() == [0, 5, 6]
    ready = problem(ops, [1, 1, 2], discipline="ready")
    assert run(ready, [0, 1, 1]).start.tolist() == [0, 5, 0]


def test_the_plans_order_follows_priorities_but_never_puts_a_reader_first():
    ops = [Op("a"), Op("b", inputs=((0, 0),)), Op("c")]
    # By priority b, c, a: b must wait for a, so c goes first, then a, then b.
    timeline = run(problem(ops, [1, 1, 1]), [0, 0, 0], priority=[9, 0, 5])
    assert timeline.start.tolist() == [1, 2, 0]


def test_ready_without_priorities_takes_what_became_ready_first():
    # d1 is busy with x until 10; b's tensor arrives at 1 + 6 = 7, c's at 2 + 3 + 1 (its queue) ...
    ops = [
        Op("x"),
        Op("p", outputs=(6,)),
        Op("q", outputs=(1,)),
        Op("b", inputs=((1, 0),)),
        Op("c", inputs=((2, 0),)),
    ]
    place = cluster(3)
    given = problem(ops, [10, 1, 2, 1, 1], place, discipline="ready")
    # p on d0, q on d2: p's 6 bytes arrive at 7, q's 1 byte at 3, so c is ready before b.
    assert run(given, [1, 0, 2, 1, 1]).start.tolist() == [0, 0, 0, 11, 10]
    # With priorities the smaller one goes first, whatever came first.
    assert run(given, [1, 0, 2, 1, 1], priority=[0, 0, 0, 1, 2]).start.tolist()[3:] == [10, 11]


def test_a_tensor_is_sent_once_to_each_other_device():
    ops = [Op("a", outputs=(5,)), *(Op(f"r{at}", inputs=((0, 0),)) for at in range(3))]
    timeline = run(problem(ops, [1, 1, 1, 1], cluster(3)), [0, 1, 1, 2])
    moved = timeline.transfers
    assert list(zip(moved.source.tolist(), moved.target.tolist(), strict=True)) == [(0, 1), (0, 2)]
    assert moved.start.tolist() == [1, 1]  # two links, two channels
    assert moved.end.tolist() == [6, 6]


def test_a_shared_channel_serves_one_transfer_at_a_time():
    ops = [Op("a", outputs=(5,)), Op("r", inputs=((0, 0),)), Op("s", inputs=((0, 0),))]
    timeline = run(problem(ops, [1, 1, 1], cluster(3, channel="bus")), [0, 2, 1])
    # Handed over together: the smaller receiving device first, whatever the readers' order.
    assert timeline.transfers.target.tolist() == [1, 2]
    assert timeline.transfers.start.tolist() == [1, 6]
    assert timeline.step_time == 1 + 5 + 5 + 1


def test_latency_is_paid_by_every_transfer():
    ops = [Op("a", outputs=(4,)), Op("b", inputs=((0, 0),))]
    # 1 + (0.5 + 4 / 2) + 1
    assert run(problem(ops, [1, 1], cluster(latency=0.5, bandwidth=2.0)), [0, 1]).step_time == 4.5


def test_weights_take_no_turn_and_are_resident_once():
    ops = [Op("w", "weight", outputs=(7,)), Op("a", inputs=((0, 0),)), Op("b", inputs=((0, 0),))]
    timeline = run(problem(ops, [0, 1, 1]), [0, 0, 0])
    assert timeline.step_time == 2
    assert timeline.peak.tolist() == [7, 0]


def test_a_view_of_a_weight_counts_as_the_weight():
    ops = [
        Op("w", "weight", outputs=(7,)),
        Op("v", "view", ((0, 0),), (3,), aliases=((0, 0),)),
        Op("a", inputs=((1, 0),)),
    ]
    given = problem(ops, [0, 0, 1])
    assert run(given, [0, 0, 0]).peak.tolist() == [7, 0]
    # Read elsewhere the view is sent with its own 3 bytes: 3 + 1 seconds.
    assert run(given, [0, 0, 1]).step_time == 3 + 1
    with pytest.raises(PlanError, match="ops 'w' and 'v' must share a device"):
        Plan.of(given, [0, 1, 1])


def test_a_weight_elsewhere_without_staging_is_sent_once_and_held_to_its_last_reader():
    ops = [Op("w", "weight", outputs=(4,)), Op("a", inputs=((0, 0),)), Op("b", inputs=((0, 0),))]
    timeline = run(problem(ops, [0, 1, 1]), [0, 1, 1])
    assert timeline.step_time == 4 + 1 + 1
    assert timeline.peak.tolist() == [4, 4]
    assert len(timeline.transfers) == 1


def streamed_chain(count, size):
    """Blocks in a chain, each with a weight of `size` bytes."""
    ops: list[Op] = []
    for at in range(count):
        ops.append(Op(f"w{at}", "weight", outputs=(size,)))
        before = ((len(ops) - 2, 0),) if at else ()
        ops.append(Op(f"b{at}", inputs=(*before, (len(ops) - 1, 0))))
    return ops


def test_streamed_weights_are_prefetched_as_far_as_the_room_goes():
    # Weights on d1, blocks on d0: 3 copies of 2 s each, blocks of 3 s.
    ops, device = streamed_chain(3, 2), [1, 0, 1, 0, 1, 0]
    given = problem(ops, [0, 3] * 3)
    # Room for one: copy, run, copy, run, …
    assert run(given, device, staging={"d0": 2}).step_time == 3 * (2 + 3)
    # Room for two: the next copy runs under the block: 2 + 3 * 3.
    timeline = run(given, device, staging={"d0": 4})
    assert timeline.step_time == 2 + 3 * 3
    assert timeline.transfers.start.tolist() == [0, 2, 5]  # the third waits for b0's room
    assert timeline.transfers.reader.tolist() == [1, 3, 5]
    assert timeline.peak.tolist() == [4, 6]  # the room; the weights at home


def test_a_weight_is_streamed_anew_for_each_reader():
    ops = [Op("w", "weight", outputs=(2,)), Op("a", inputs=((0, 0),)), Op("b", inputs=((0, 0),))]
    timeline = run(problem(ops, [0, 1, 1]), [1, 0, 0], staging={"d0": 2})
    assert timeline.transfers.reader.tolist() == [1, 2]
    assert timeline.step_time == 2 + 1 + 2 + 1


def test_a_room_too_small_for_one_op_is_malformed():
    given = problem(streamed_chain(2, 5), [0, 1] * 2)
    with pytest.raises(
        PlanError,
        match="op 'b0' streams 5 B of weights to 'd0', whose staging buffer has 4 B",
    ):
        run(given, [1, 0, 1, 0], staging={"d0": 4})


def test_room_is_reserved_in_the_plans_order():
    # The large weight of the first reader does not fit beside the small one's: it holds that up.
    ops = [
        Op("small", "weight", outputs=(1,)),
        Op("large", "weight", outputs=(4,)),
        Op("first", inputs=((1, 0),)),
        Op("second", inputs=((0, 0),)),
        Op("third", inputs=((1, 0),)),
    ]
    timeline = run(problem(ops, [0, 0, 1, 1, 1]), [1, 1, 0, 0, 0], staging={"d0": 5})
    # At 0 room for 4 + 1; third's 4 wait until first ends at 5 and gives back 4.
    assert timeline.transfers.reader.tolist() == [2, 3, 4]
    assert timeline.transfers.start.tolist() == [0, 4, 5]
    assert timeline.step_time == 5 + 4 + 1


def test_a_tensor_interrupts_a_streamed_weight_which_then_resumes():
    ops = [
        Op("w", "weight", outputs=(6,)),
        Op("a", outputs=(2,)),
        Op("b", inputs=((1, 0),)),
        Op("c", inputs=((0, 0), (2, 0))),
    ]
    # w and a on d1, b and c on d0: the copy runs 0 to 1, a's tensor 1 to 3, the copy 3 to 8.
    timeline = run(problem(ops, [0, 1, 1, 1]), [1, 1, 0, 0], staging={"d0": 6})
    moved = timeline.transfers
    rows = zip(moved.reader.tolist(), moved.start.tolist(), moved.end.tolist(), strict=True)
    assert list(rows) == [(3, 0, 1), (-1, 1, 3), (3, 3, 8)]
    assert timeline.step_time == 8 + 1


def test_an_issuer_spaces_the_starts_of_its_devices():
    place = cluster(2, issuer="thread", launch_overhead=1.0)
    timeline = run(problem([Op("a"), Op("b"), Op("c")], [5, 5, 0], place), [0, 1, 1])
    assert timeline.start.tolist() == [0, 1, 6]  # c takes no time and needs no issuer


def test_outputs_live_until_the_last_reader_and_the_last_send():
    # a's 4 bytes: on d0 from 0 until the send ends at 1 + 4; on d1 from 1 until b ends at 6.
    ops = [Op("a", outputs=(4,)), Op("b", inputs=((0, 0),), outputs=(0,))]
    timeline = run(problem(ops, [1, 1]), [0, 1])
    memory = timeline.memory
    rows = list(
        zip(memory.device.tolist(), memory.time.tolist(), memory.used.tolist(), strict=True)
    )
    assert rows == [(0, 0, 4), (1, 0, 0), (1, 1, 4), (0, 5, 0), (1, 6, 0)]


def test_unread_outputs_go_when_their_op_ends_and_graph_outputs_stay():
    ops = [Op("a", outputs=(3, 5)), Op("b", outputs=(2,))]
    assert run(problem(ops, [1, 1], outputs=()), [0, 0]).peak.tolist() == [8, 0]
    # a's second output stays: 5 + b's 2, against 3 + 5 at first.
    kept = problem(ops, [1, 1], outputs=((0, 1), (1, 0)))
    assert run(kept, [0, 0]).memory.used.tolist() == [8, 0, 7]


def test_workspace_is_held_while_the_op_runs():
    ops = [Op("a", workspace=9, outputs=(1,)), Op("b", inputs=((0, 0),), outputs=(2,))]
    assert run(problem(ops, [1, 1]), [0, 0]).memory.used.tolist() == [10, 0, 3, 2]


def test_an_alias_takes_no_memory_and_keeps_its_source_alive():
    ops = [
        Op("a", outputs=(4,)),
        Op("v", "view", ((0, 0),), (4,), aliases=((0, 0),)),
        Op("b", outputs=(1,)),
        Op("c", inputs=((1, 0),), outputs=(0,)),
    ]
    given = problem(ops, [1, 0, 1, 1], outputs=())
    # 4 from a's start to c's end, 1 while b runs.
    assert run(given, [0] * 4).memory.used.tolist() == [4, 0, 5, 4, 0]
    # Sent elsewhere the view has its full bytes there, and a's memory is held to the send's end.
    apart = run(given, [0, 0, 0, 1])
    assert apart.peak.tolist() == [5, 4]
    assert apart.step_time == 1 + 4 + 1


def test_inputs_are_on_the_host_and_take_no_turn():
    devices = (Device("gpu", memory=BIG), Device("host", "cpu", memory=BIG))
    links = {("gpu", "host"): Link(1.0), ("host", "gpu"): Link(2.0)}
    place = Cluster("test", devices, links)
    ops = [Op("x", "input", outputs=(4,)), Op("a", inputs=((0, 0),), outputs=(0,))]
    given = problem(ops, [0, 1], place)
    assert run(given, given.legalize(np.array([0, 0]))).step_time == 4 / 2 + 1
    with pytest.raises(PlanError, match="op 'x' is on 'gpu': the constraints allow it on host"):
        Plan.of(given, [0, 0])
    pinned = problem(ops, [0, 1], place, constraints=Constraints(pins={"x": "gpu"}))
    assert run(pinned, [0, 0]).step_time == 1


def test_states_are_read_where_they_are():
    ops = [Op("cache", "state", outputs=(8,)), Op("a", inputs=((0, 0),))]
    given = problem(ops, [0, 1])
    assert run(given, [1, 1]).peak.tolist() == [0, 8]
    with pytest.raises(PlanError, match="ops 'cache' and 'a' must share a device"):
        Plan.of(given, [1, 0])


def test_overflow_is_data():
    place = Cluster("test", (Device("d0", memory=10, reserve=4),), {})
    timeline = run(problem([Op("a", outputs=(9,))], [1], place), [0])
    assert not timeline.fits
    assert timeline.overflow == 9 - (10 - 4)


def test_the_period_is_the_largest_load_of_a_device_or_channel():
    ops = [Op("a", outputs=(9,)), Op("b", inputs=((0, 0),)), Op("c", inputs=((0, 0),))]
    given = problem(ops, [1, 2, 2])
    assert run(given, [0, 1, 1]).period == 9  # the channel
    assert run(given, [0, 0, 0]).period == 1 + 2 + 2


def test_without_overlap_devices_pay_for_their_transfers_and_hosts_do_not():
    devices = (Device("g0", memory=BIG), Device("g1", memory=BIG), Device("h", "cpu", memory=BIG))
    names = ["g0", "g1", "h"]
    links = {(s, t): Link(1.0) for s in names for t in names if s != t}
    ops = [Op("a", outputs=(3,)), *(Op(f"r{at}", inputs=((0, 0),)) for at in range(3))]
    given = problem(ops, [1, 1, 1, 1], Cluster("test", devices, links), overlap=False)
    # a on g0 is read twice on g1 and once on h: g0 pays 1 + 3, g1 pays 1 + 1 + 3, h pays 1.
    assert run(given, [0, 1, 1, 2]).period == 5
    assert judge(given, [[2, 1, 1, 2]]).period[0] == 1 + 1 + 3


def test_a_fused_group_is_one_op_without_its_inner_launches():
    ops = [
        Op("a", outputs=(4,)),
        Op("b", inputs=((0, 0),), outputs=(4,)),
        Op("c", inputs=((1, 0),), outputs=(2,)),
    ]
    given = problem(ops, [2, 2, 2], cluster(2, launch_overhead=0.5))
    timeline = run(given, [0, 0, 0], fusion=[7, 7, -1])
    assert timeline.step_time == (2 + 2 - 0.5) + 2
    assert timeline.start.tolist() == [0, 0, 3.5]
    assert timeline.peak.tolist() == [4 + 2, 0]  # a's tensor is never stored
    assert timeline.busy.tolist() == [5.5, 0]


def test_fusing_around_another_op_is_a_cycle():
    ops = [Op("a"), Op("b", inputs=((0, 0),)), Op("c", inputs=((1, 0),))]
    with pytest.raises(
        PlanError, match="the plan's fusion makes a cycle: graph 'test' has a cycle"
    ):
        run(problem(ops, [1, 1, 1]), [0, 0, 0], fusion=[0, -1, 0])


def test_a_fused_group_is_on_one_device_and_of_kinds_that_fuse():
    ops = [Op("w", "weight"), Op("a", inputs=((0, 0),)), Op("b", inputs=((1, 0),))]
    given = problem(ops, [0, 1, 1])
    with pytest.raises(PlanError, match="ops 'a' and 'b' are fused but on 'd0' and 'd1'"):
        run(given, [0, 0, 1], fusion=[-1, 0, 0])
    with pytest.raises(PlanError, match="op 'w' of kind 'weight' is in a fused group"):
        run(given, [0, 0, 0], fusion=[0, 0, -1])


def test_steps_in_flight_overlap_and_hold_memory_of_several_steps():
    # a on d0 takes 2, its tensor 1 byte 1 s, b on d1 takes 2: one step 5, then one every 2.
    ops = [
        Op("w", "weight", outputs=(10,)),
        Op("a", inputs=((0, 0),), outputs=(1,)),
        Op("b", inputs=((1, 0),), outputs=(3,)),
    ]
    given = problem(ops, [0, 2, 2])
    plan = Plan.of(given, [0, 0, 1])
    assert simulate(given, plan).step_time == 5
    flight = simulate_in_flight(given, plan, 4)
    assert flight.seconds == 5 + 3 * 2
    assert flight.interval == 2 == simulate(given, plan).period
    assert flight.peak[1] >= 4 * 3  # four graph outputs live to the end
    assert flight.peak[0] <= 10 + 2  # the weight is there once
    with pytest.raises(PlanError, match="1 steps in flight: expected at least 2"):
        simulate_in_flight(given, plan, 1)


def test_a_device_with_first_and_last_ops_begins_the_next_step_while_it_waits():
    # a and c on d0 take 1 each, b on d1 takes 2, tensors of no bytes: the period is 2, a step 4.
    ops = [
        Op("a", outputs=(0,)),
        Op("b", inputs=((0, 0),), outputs=(0,)),
        Op("c", inputs=((1, 0),), outputs=(0,)),
    ]
    given = problem(ops, [1, 2, 1])
    plan = Plan.of(given, [0, 1, 0])
    assert simulate(given, plan).period == 2
    flight = simulate_in_flight(given, plan, 8)
    assert flight.seconds == 4 + 7 * 2


def test_wrong_shapes_are_refused_with_a_sentence():
    given = problem([Op("a"), Op("b")], [1, 1])
    with pytest.raises(PlanError, match="a plan has 3 ops: the graph has 2"):
        judge(given, [[0, 0, 0]])
    with pytest.raises(PlanError, match=r"priorities of shape \(1, 1\): expected \(1, 2\)"):
        judge(given, [[0, 0]], [[1.0]])
    with pytest.raises(PlanError, match="a priority is not a number"):
        judge(given, [[0, 0]], [[1.0, float("nan")]])
    with pytest.raises(PlanError, match="a plan names device number 2: expected 0 to 1"):
        judge(given, [[0, 0], [0, 2]])
    other = problem([Op("a")], [1])
    with pytest.raises(PlanError, match="the plan has 1 ops: graph 'test' has 2"):
        simulate(given, Plan.of(other, [0]))


def test_a_plan_of_other_devices_or_ops_is_refused_with_the_way_out():
    ops = [Op("a"), Op("b")]
    three = cluster(3)
    turned = Cluster("turned", three.devices[::-1], three.links)
    given = problem(ops, [1, 1], three)
    for made in (None, [0, 0]):  # with fused ops and without
        plan = Plan.of(problem(ops, [1, 1], turned), [0, 0], fusion=made)
        message = "for devices d2, d1, d0: the problem has d0, d1, d2: fit it with files.plan_for"
        with pytest.raises(PlanError, match=message):
            simulate(given, plan)
        with pytest.raises(PlanError, match=message):
            simulate_in_flight(given, plan, 2)
    other = Plan.of(problem([Op("b"), Op("a")], [1, 1], three), [0, 0])
    with pytest.raises(PlanError, match="the plan has op 'b' where graph 'test' has 'a': fit it"):
        simulate(given, other)
    many = Plan.of(problem(ops, [1, 1], cluster(12)), [0, 0])
    with pytest.raises(
        PlanError, match=r"d6, d7, \.\.\. \(12 in all\): the problem has d0, d1, d2"
    ):
        simulate(given, many)
    with pytest.raises(PlanError, match="found None instead of a plan: make one with"):
        simulate(given, None)
