"""Workloads: what calls share, what is refused, and what a plan of all calls is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import placewright as pw
from placewright import (
    Call,
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    Op,
    Plan,
    Problem,
    Roofline,
    Table,
    Workload,
    WorkloadPlan,
    evaluate,
    simulate,
)
from placewright.errors import PlanError, ProblemError
from placewright.workload_plan import own_plan, unused_staging

GPU, CPU = 0, 1


@pytest.fixture
def cluster() -> Cluster:
    """A GPU of 100 bytes with a host beside it."""
    devices = (
        Device("gpu0", memory=100, rates={"float32": 2.0}, memory_bandwidth=1e9),
        Device("cpu", "cpu", memory=1000, rates={"float32": 1.0}, memory_bandwidth=1e9),
    )
    links = {pair: Link(10.0) for pair in (("gpu0", "cpu"), ("cpu", "gpu0"))}
    return Cluster("gpu and host", devices, links)


def encoder() -> Graph:
    """A weight of 50 bytes of its own, and one of 30 that both calls read."""
    return Graph(
        "encoder",
        (
            Op("shared", "weight", outputs=(30,)),
            Op("encode.w", "weight", outputs=(50,)),
            Op("encode", inputs=((0, 0), (1, 0)), outputs=(4,), flops=8),
        ),
    )


def decoder(cache: int = 10) -> Graph:
    """The shared weight, one of 20 bytes of its own, and a cache."""
    return Graph(
        "decoder",
        (
            Op("shared", "weight", outputs=(30,)),
            Op("decode.w", "weight", outputs=(20,)),
            Op("cache", "state", outputs=(cache,)),
            Op("decode", inputs=((0, 0), (1, 0), (2, 0)), outputs=(4,), flops=2),
        ),
    )


@pytest.fixture
def workload(cluster: Cluster) -> Workload:
    return Workload(
        [
            Call("encode", Problem(encoder(), cluster, Roofline(1, 1))),
            Call("decode", Problem(decoder(), cluster, Roofline(1, 1)), 10),
        ]
    )


def everywhere(workload: Workload, device: int) -> list[Plan]:
    return [
        Plan.of(call.problem, np.full(len(call.problem.graph), device)) for call in workload.calls
    ]


def test_weights_and_states_are_shared_by_name(workload: Workload):
    assert list(workload.weights) == ["shared", "encode.w", "decode.w", "cache"]
    assert repr(workload) == "Workload(encode x1, decode x10, 4 weights and states)"
    assert workload.position("decode") == 1
    with pytest.raises(ProblemError, match="no call 'decoder': did you mean 'decode'"):
        workload.position("decoder")


def test_weights_of_other_calls_occupy_their_device(workload: Workload):
    """On the GPU: 30 + 50 + 20 + 10 = 110 bytes in both calls, and 4 more for the output."""
    result = evaluate(workload, WorkloadPlan.of(workload, everywhere(workload, GPU)))
    assert [call.devices[GPU].peak for call in result.calls] == [114, 114]
    assert result.overflow == 14
    assert not result.fits
    assert result.objective_value == 8 / 2 + 10 * (2 / 2)
    assert simulate(workload.calls[0].problem, result.plan["encode"]).peak[GPU] == 84


def test_the_overflow_is_that_of_the_worst_call_on_each_device(cluster: Cluster):
    """The calls' ops need 5 and 40 bytes besides the weight of 80: 20 over, not 20 + 0."""
    calls = []
    for name, size in (("small", 5), ("large", 40)):
        ops = (
            Op("w", "weight", outputs=(80,)),
            Op("x", inputs=((0, 0),), outputs=(0,), workspace=size),
        )
        calls.append(Call(name, Problem(Graph(name, ops), cluster)))
    workload = Workload(calls)
    result = evaluate(workload, WorkloadPlan.of(workload, everywhere(workload, GPU)))
    assert [call.overflow for call in result.calls] == [0, 20]
    assert result.overflow == 20


def test_a_call_that_has_all_weights_keeps_its_problem(cluster: Cluster):
    calls = [Call(name, Problem(decoder(), cluster)) for name in ("long", "short")]
    workload = Workload(calls)
    assert [full is call.problem for full, call in zip(workload.problems, calls, strict=True)] == [
        True,
        True,
    ]


def test_a_state_occupies_its_largest_size_in_all_calls(cluster: Cluster):
    calls = [Call(str(size), Problem(decoder(size), cluster, Roofline(1, 1))) for size in (10, 25)]
    workload = Workload(calls)
    result = evaluate(workload, WorkloadPlan.of(workload, everywhere(workload, GPU)))
    assert [call.devices[GPU].peak for call in result.calls] == [30 + 20 + 25 + 4] * 2


def test_a_weight_on_two_devices_is_refused(workload: Workload):
    plans = [everywhere(workload, GPU)[0], everywhere(workload, CPU)[1]]
    message = "weight 'shared' is on 'gpu0' in call 'encode' and on 'cpu' in call 'decode'"
    with pytest.raises(PlanError, match=message):
        WorkloadPlan.of(workload, plans)


def test_a_plan_has_a_plan_for_each_call(workload: Workload):
    plans = everywhere(workload, CPU)
    plan = WorkloadPlan.of(workload, {"decode": plans[1], "encode": plans[0]})
    assert plan == WorkloadPlan.of(workload, plans)
    assert plan["decode"] == plans[1]
    assert plan.weights == dict.fromkeys(workload.weights, "cpu")
    assert repr(plan) == "WorkloadPlan(encode, decode; weights on gpu0: 0, cpu: 4)"
    with pytest.raises(PlanError, match="1 plans for 2 calls"):
        WorkloadPlan.of(workload, plans[:1])
    with pytest.raises(PlanError, match="plans and calls differ in 'decode'"):
        WorkloadPlan.of(workload, {"encode": plans[0]})
    with pytest.raises(PlanError, match="plans and calls differ in 'verify'"):
        WorkloadPlan.of(workload, {"encode": plans[0], "decode": plans[1], "verify": plans[1]})
    with pytest.raises(PlanError, match="call 'encode': the plan has 4 ops"):
        WorkloadPlan.of(workload, plans[::-1])
    with pytest.raises(PlanError, match="no call 'encod'"):
        _ = plan["encod"]


def test_plans_with_all_weights_and_back(workload: Workload):
    placement = [GPU, CPU, GPU], [GPU, CPU, GPU, GPU]
    plans = [
        Plan.of(call.problem, row, np.arange(len(row))[::-1], staging={"gpu0": 60})
        for call, row in zip(workload.calls, placement, strict=True)
    ]
    plan = WorkloadPlan.of(workload, plans)
    full = plan.full_plans(workload)
    assert full[0].placement.tolist() == [GPU, CPU, GPU, CPU, GPU]  # decode.w, then the cache
    assert full[1].placement.tolist() == [GPU, CPU, GPU, GPU, CPU]
    assert tuple(own_plan(workload, at, each) for at, each in enumerate(full)) == plan.plans


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": (31,)}, r"weight \(30 bytes, float32\) 'shared' in call 'encode' and"),
        ({"resident": 8}, r"weight \(38 bytes, float32\) in call 'decode'"),
        ({"dtype": "int8"}, "what calls share by name must be the same; rename one"),
        ({"kind": "state"}, r"state \(30 bytes, float32\) in call 'decode'"),
    ],
)
def test_a_weight_that_is_another_in_another_call_is_refused(
    cluster: Cluster, change: dict[str, object], message: str
):
    graph = decoder()
    other = replace(graph, ops=(replace(graph.ops[0], **change), *graph.ops[1:]))  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=message):
        Workload(
            [Call("encode", Problem(encoder(), cluster)), Call("decode", Problem(other, cluster))]
        )


def test_an_op_with_the_name_of_a_weight_is_refused(cluster: Cluster):
    other = Graph("other", (Op("encode.w"),))
    calls = [Call("encode", Problem(encoder(), cluster)), Call("other", Problem(other, cluster))]
    message = "op 'encode.w' of call 'other' has the name of a weight of call 'encode'"
    with pytest.raises(ProblemError, match=message):
        Workload(calls)


def test_calls_share_cluster_limits_and_objective(cluster: Cluster):
    first = Problem(encoder(), cluster)
    others = {
        "cluster": Problem(decoder(), replace(cluster, devices=cluster.devices[::-1])),
        "limits": Problem(decoder(), cluster, limits={"gpu0": 50}),
        "objective": Problem(decoder(), cluster, objective="period"),
        "discipline": Problem(decoder(), cluster, discipline="ready"),
        "overlap": Problem(decoder(), cluster, overlap=False),
    }
    for what, problem in others.items():
        with pytest.raises(ProblemError, match=f"calls 'a' and 'b' differ in {what}"):
            Workload([Call("a", first), Call("b", problem)])


def test_malformed_calls_are_refused(cluster: Cluster):
    problem = Problem(encoder(), cluster)
    for count in (0, -1, float("inf"), float("nan"), "3", None):
        with pytest.raises(ProblemError, match="expected a number above 0"):
            Call("encode", problem, count)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="expected Problem"):
        Call("encode", encoder())  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="expected a text"):
        Call("", problem)
    with pytest.raises(ProblemError, match="two calls have one name: a, a"):
        Workload([Call("a", problem), Call("a", problem)])
    for calls in ([], [problem]):
        with pytest.raises(ProblemError, match="expected one call or more"):
            Workload(calls)  # type: ignore[arg-type]


def test_constraints_of_one_call_hold_for_its_weights_in_all(cluster: Cluster):
    """Patterns of one call say nothing about weights that only the other has."""
    pinned = Problem(encoder(), cluster, constraints=Constraints(pins={"shared": "cpu"}))
    forbidding = Problem(decoder(), cluster, constraints=Constraints(forbid={"*.w": ("gpu0",)}))
    workload = Workload([Call("encode", pinned), Call("decode", forbidding)])
    allowed = {
        name: [
            problem.arrays.allowed[problem.graph.position[name]].tolist()
            for problem in workload.problems
        ]
        for name in workload.weights
    }
    assert allowed == {
        "shared": [[False, True]] * 2,
        "encode.w": [[True, True]] * 2,
        "decode.w": [[False, True]] * 2,
        "cache": [[True, True]] * 2,
    }
    with pytest.raises(
        PlanError, match="op 'shared' is on 'gpu0': the constraints allow it on cpu"
    ):
        WorkloadPlan.of(workload, everywhere(workload, GPU))


def test_constraints_that_contradict_between_calls_are_refused(cluster: Cluster):
    calls = [
        Call(name, Problem(graph, cluster, constraints=Constraints(pins={"shared": device})))
        for name, graph, device in (("a", encoder(), "cpu"), ("b", decoder(), "gpu0"))
    ]
    with pytest.raises(ProblemError, match="no device is left for weight 'shared'"):
        _ = Workload(calls).problems


def test_weights_that_one_call_keeps_together_are_together_in_all(cluster: Cluster):
    together = Constraints(colocate=(("shared", "decode.w"),))
    calls = [
        Call("encode", Problem(encoder(), cluster)),
        Call("decode", Problem(decoder(), cluster, constraints=together)),
    ]
    workload = Workload(calls)
    groups = dict(zip(workload.weights, workload.weight_groups.tolist(), strict=True))
    assert groups["shared"] == groups["decode.w"] != groups["encode.w"]
    a, position = workload.problems[0].arrays, workload.problems[0].graph.position
    assert a.unit[position["shared"]] == a.unit[position["decode.w"]]


def test_measured_costs_have_no_row_for_weights_of_other_calls(cluster: Cluster):
    graph = encoder()
    table = Table(
        tuple(graph.position),
        ("gpu0", "cpu"),
        np.array([[0.0, 0.0], [0.0, 0.0], [3.0, 5.0]]),
        issue=np.zeros((3, 2)),
        spread=np.zeros((3, 2)),
        transfers=np.ones(3),
        workspace=np.array([0, 0, 7]),
    )
    calls = [
        Call("encode", Problem(graph, cluster, table)),
        Call("decode", Problem(decoder(), cluster)),
    ]
    workload = Workload(calls)
    result = evaluate(workload, WorkloadPlan.of(workload, everywhere(workload, GPU)))
    assert result["encode"].step_time == 3.0
    assert result["encode"].devices[GPU].peak == 110 + 4 + 7


def test_a_result_prints_each_call(workload: Workload):
    result = evaluate(workload, WorkloadPlan.of(workload, everywhere(workload, CPU)), "hand")
    lines = str(result).splitlines()
    assert lines[0].startswith("hand: sum of step times 2.8e+04 ms, bound ")
    assert lines[1] == "  encode: 1 x 8000 ms"
    assert lines[4] == "  decode: 10 x 2000 ms"
    assert result.bound <= result.objective_value
    with pytest.raises(PlanError, match="no call 'x'"):
        _ = result["x"]
    with pytest.raises(PlanError, match="instead of a workload's plan"):
        evaluate(workload, result.calls[0].plan)  # type: ignore[call-overload]


def test_calls_share_one_staging_buffer_of_the_largest_size(cluster: Cluster) -> None:
    ops = (
        Op("weight", "weight", outputs=(40,)),
        Op("x", "input", outputs=(10,)),
        Op("product", inputs=((0, 0), (1, 0)), outputs=(10,)),
        Op("end", inputs=((2, 0),), outputs=(10,)),
    )
    problem = Problem(Graph("streamed", ops), cluster)
    workload = Workload((Call("long", problem), Call("short", problem, 3)))
    rows = np.array([CPU, CPU, GPU, GPU], dtype=np.int32)

    def result_of(*sizes: int) -> pw.WorkloadResult:
        plans = [Plan.of(problem, rows, staging={"gpu0": size}) for size in sizes]
        return evaluate(workload, WorkloadPlan.of(workload, plans))

    assert result_of(40, 40).peaks["gpu0"] == 60
    wide = result_of(40, 75)
    assert [call.devices[GPU].peak for call in wide.calls] == [60, 95]
    assert wide.peaks["gpu0"] == 95  # in both calls the buffer has 75 bytes
    assert wide.fits
    assert result_of(75, 40).peaks == wide.peaks
    assert result_of(40, 90).overflow == 90 + 20 - 100
    assert unused_staging(wide.plan.plans) == [[35, 0], [0, 0]]


def test_a_call_without_staging_has_the_other_calls_buffer_beside_it(cluster: Cluster) -> None:
    streaming = Graph(
        "streaming",
        (Op("weight", "weight", outputs=(40,)), Op("x", inputs=((0, 0),), outputs=(10,))),
    )
    large = Graph("large", (Op("a", outputs=(90,)), Op("b", inputs=((0, 0),), outputs=(5,))))
    problems = Problem(streaming, cluster), Problem(large, cluster)
    workload = Workload((Call("streaming", problems[0]), Call("large", problems[1])))
    plans = [
        Plan.of(problems[0], np.array([CPU, GPU], dtype=np.int32), staging={"gpu0": 40}),
        Plan.of(problems[1], np.array([GPU, GPU], dtype=np.int32)),
    ]
    result = evaluate(workload, WorkloadPlan.of(workload, plans))
    assert all(call.fits for call in result.calls)  # each by itself
    assert result.overflow == 95 + 40 - 100
