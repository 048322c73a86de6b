"""The caller on the first host: inputs enter there, and outputs are paid for on their way back."""

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
    simulate,
)
from placewright.runtime.distributed.caller_problem import CALLER, with_caller, without_caller

OPS = (
    Op("x", "input", outputs=(2,)),
    Op("w", "weight", outputs=(1,)),
    Op("a", inputs=((0, 0), (1, 0)), outputs=(3,)),
    Op("b", inputs=((2, 0),), outputs=(5,)),
)
"""a and b take 1 s each; a byte takes 1 s from host to host. The output is b's: 5 bytes."""


def problem(ops=OPS, devices=("one/cpu", "two/cpu"), **options):
    parts = tuple(Device(name, name[-3:], memory=10**9) for name in devices)
    links = {(a, b): Link(1.0) for a in devices for b in devices if a != b}
    seconds = np.array([[float(op.name in "ab")] * len(devices) for op in ops])
    costs = Table(tuple(op.name for op in ops), devices, seconds, **options)
    return Problem(Graph("test", ops), Cluster("hosts", parts, links), costs)


def placed(given, devices):
    return Plan.of(given, [given.cluster.position[name] for name in devices])


def test_a_plan_pays_for_inputs_and_outputs_that_go_to_another_host_and_back():
    whole = with_caller(problem())
    local = placed(whole, ["one/cpu"] * 5)
    assert simulate(whole, local).step_time == 1 + 1
    remote = placed(whole, ["one/cpu", *["two/cpu"] * 3, "one/cpu"])
    assert simulate(whole, remote).step_time == 2 + 1 + 1 + 5


def test_inputs_and_the_reader_of_the_outputs_are_pinned_to_the_first_hosts_cpu():
    whole = with_caller(problem(devices=("one/gpu", "one/cpu", "two/cpu")))
    assert whole.constraints.pins == {"x": "one/cpu", CALLER: "one/cpu"}
    assert [op.name for op in whole.graph.ops] == ["x", "w", "a", "b", CALLER]
    assert whole.graph.ops[-1].inputs == ((3, 0),)


def test_pins_of_the_problem_stay_and_states_are_with_the_caller():
    ops = (Op("cache", "state", outputs=(4,)), *OPS[:2])
    reads = Op("a", inputs=((1, 0), (0, 0)), outputs=(3,))
    given = problem((*ops, reads))
    given = Problem(
        given.graph, given.cluster, given.costs, Constraints(pins={"x": "two/cpu"}, limits={})
    )
    pins = with_caller(given).constraints.pins
    assert pins == {"x": "two/cpu", "cache": "one/cpu", "a": "one/cpu", CALLER: "one/cpu"}


def test_a_plan_without_the_caller_is_one_of_the_problem_before():
    given = problem()
    whole = with_caller(given)
    plan = Plan.of(whole, [0, 1, 1, 1, 0], priority=[0, 1, 2, 3, 4])
    back = without_caller(plan, given)
    assert back == Plan.of(given, [0, 1, 1, 1], priority=[0, 1, 2, 3])
    assert back.graph == given.graph.fingerprint
    assert without_caller(plan) == back
    assert without_caller(back) is back


def test_measured_costs_get_a_row_for_the_caller_which_takes_no_time():
    shape = (len(OPS), 2)
    given = problem(
        issue=np.ones(shape),
        spread=np.ones(shape),
        workspace=np.arange(len(OPS)),
        transfers=np.arange(4.0),
    )
    whole = with_caller(given)
    assert whole.arrays.compute[-1].tolist() == [0, 0]
    assert whole.arrays.workspace.tolist() == [0, 1, 2, 3, 0]
    assert whole.arrays.transfer[0].tolist() == [0, 1, 2, 3, 0]


def test_a_model_with_an_op_of_the_callers_name_is_refused():
    with pytest.raises(Exception, match="two ops are named 'caller'"):
        with_caller(problem((*OPS, Op(CALLER, inputs=((3, 0),)))))
