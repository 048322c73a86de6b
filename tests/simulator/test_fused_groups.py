"""Plans with fused groups, judged in batches, equal the contracted problem bit for bit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import fusible_problems, needed_staging, plans

from placewright import (
    Cluster,
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
from placewright.simulator import period, reference
from placewright.transforms import contract, fuse

ANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@ANY
@given(st.data())
def test_a_fused_batch_equals_the_contracted_problems_bit_for_bit(data):
    problem = data.draw(fusible_problems())
    device, priority, staging = data.draw(plans(problem))
    levels = st.lists(st.integers(0, 3), min_size=problem.arrays.ops, max_size=problem.arrays.ops)
    urgency = np.array([data.draw(levels) for _ in range(3)])
    rows = np.repeat(device[None], 3, axis=0)
    fusion = fuse(problem, rows, urgency)
    contracted = [
        contract(problem, Plan.of(problem, device, priority, fusion=row)) for row in fusion
    ]
    if staging is not None:  # a fused op needs room for the weights of all its members
        for place in np.flatnonzero(staging >= 0):
            needs = [
                needed_staging(small.problem, small.plan.placement, place) for small in contracted
            ]
            staging[place] = max(staging[place], *needs)
    verdict = judge(
        problem,
        rows,
        None if priority is None else np.repeat(priority[None], 3, axis=0),
        None if staging is None else np.repeat(staging[None], 3, axis=0),
        threads=data.draw(st.sampled_from([1, 3])),
        fusion=fusion,
    )
    for at, small in enumerate(contracted):
        in_order = problem.discipline == "in order"
        plan, arrays = small.plan, small.problem.arrays
        trace = reference.run(arrays, in_order, plan.placement, plan.priority, staging)
        assert verdict.step_time[at] == trace.step_time
        assert verdict.peak[at].tolist() == trace.peak
        staging_rows = None if staging is None else staging.tolist()
        assert verdict.period[at] == period.reference_period(
            arrays, plan.placement.tolist(), staging_rows, problem.overlap
        )


@ANY
@given(st.data())
def test_any_groups_are_judged_or_refused_as_the_contraction_does(data):
    problem = data.draw(fusible_problems(most=8))
    device = data.draw(plans(problem))[0]
    ops = problem.arrays.ops
    group = np.array(data.draw(st.lists(st.sampled_from([-1, 0, 10**6]), min_size=ops)))[:ops]
    try:
        small = contract(problem, Plan.of(problem, device, fusion=group))
    except PlanError as error:
        with pytest.raises(PlanError, match=f"^{re.escape(str(error))}$"):
            judge(problem, device, fusion=group)
        return
    verdict = judge(problem, device, fusion=group)
    assert verdict.step_time[0] == simulate(small.problem, small.plan).step_time
    assert (
        verdict.step_time[0] == simulate(problem, Plan.of(problem, device, fusion=group)).step_time
    )


def chain(kinds: list[str], moved: int = 0, size: int = 4) -> Problem:
    ops = tuple(
        Op(f"op{at}", kind, ((at - 1, 0),) if at else (), (size,), flops=1, bytes_moved=moved)
        for at, kind in enumerate(kinds)
    )
    return Problem(Graph("chain", ops), Cluster.parse("2xP100"))


def test_two_heavy_ops_are_not_one_group():
    problem = chain(["matmul", "relu", "matmul"])
    message = "ops 'op0' and 'op2' are fused: a fused group holds one matrix product"
    for refuse in (simulate, lambda p, plan: judge(p, plan.placement, fusion=plan.fusion)):
        with pytest.raises(PlanError, match=f"^{message}"):
            refuse(problem, Plan.of(problem, [0, 0, 0], fusion=[0, 0, 0]))


def test_groups_of_the_wrong_shape_are_refused():
    problem = chain(["relu", "relu"])
    with pytest.raises(PlanError, match=r"fused groups of shape \(1, 3\): expected \(1, 2\)"):
        judge(problem, [[0, 0]], fusion=[[0, 0, 0]])


def test_a_fused_op_needs_room_for_all_the_weights_its_members_stream():
    ops = (
        Op("v", "weight", outputs=(5,)),
        Op("w", "weight", outputs=(7,)),
        Op("a", "add", ((0, 0),), (1,)),
        Op("b", "add", ((1, 0), (2, 0)), (1,)),
    )
    problem = Problem(Graph("two", ops), Cluster.parse("2xP100"))
    device, fusion = [1, 1, 0, 0], [-1, -1, 2, 2]
    assert judge(problem, device, staging=[7, -1]).overflow[0] == 0
    with pytest.raises(PlanError, match=r"op 'a' streams 12 B .* staging buffer has 7 B"):
        judge(problem, device, staging=[7, -1], fusion=fusion)
    assert judge(problem, device, staging=[12, -1], fusion=fusion).overflow[0] == 0


def test_measured_workspaces_stay_when_ops_are_fused():
    problem = chain(["relu", "relu", "relu"], size=1)
    names = tuple(op.name for op in problem.graph.ops)
    table = Table(names, ("gpu",), np.ones((3, 1)), workspace=[100, 60, 5])
    measured = replace(problem, costs=table)
    fused = judge(measured, [0, 0, 0], fusion=[0, 0, -1])
    assert fused.peak[0, 0] == 100 + 1  # the group's workspace and what it hands on
    assert simulate(measured, Plan.of(measured, [0] * 3, fusion=[0, 0, -1])).peak[0] == 101


KINDS = ["elementwise", "cast", "view", "reduce", "matmul", "gather", "weight"]
SHARES = [0.35, 0.1, 0.2, 0.1, 0.05, 0.05, 0.15]


def memory_bound(rng: np.random.Generator, ops: int = 40) -> Problem:
    """A graph in which traffic is all that takes time, full of views, in-place ops and inputs that
    are read twice or by several members."""
    made: list[Op] = []
    for at in range(ops):
        kind = str(rng.choice(KINDS, p=SHARES)) if at > 3 else "weight"
        sources = rng.integers(max(0, at - 10), at, size=rng.integers(1, 4)) if at > 3 else []
        inputs = () if kind == "weight" else tuple((int(source), 0) for source in sources)
        in_place = inputs and (kind == "view" or rng.random() < 0.3)
        made.append(
            Op(
                f"op{at}",
                kind,
                inputs,
                (int(rng.integers(0, 20)),),
                bytes_moved=0 if kind == "view" else int(rng.integers(0, 60)),
                workspace=int(rng.integers(0, 9)),
                aliases=((0, int(rng.integers(len(inputs)))),) if in_place else (),
            )
        )
    device = Device("d0", "gpu", "", 10**9, 0, {"float32": 1e30}, 3.0, 0.5)
    devices = (device, replace(device, name="d1", memory_bandwidth=7.0))
    links = {("d0", "d1"): Link(5.0, 0.25), ("d1", "d0"): Link(4.0)}
    outputs = ((ops - 1, 0),) if rng.random() < 0.5 else None  # then what nobody reads is lost
    return Problem(Graph("bound", tuple(made), outputs), Cluster("two", devices, links))


@pytest.mark.parametrize("seed", range(12))
def test_batches_of_larger_memory_bound_plans_equal_their_contractions(seed):
    rng = np.random.default_rng(seed)
    problem = memory_bound(rng)
    ops, plans = problem.arrays.ops, 12
    device = problem.legalize((rng.random((plans, ops)) < 0.25).astype(np.int32))
    device[:, ~problem.arrays.scheduled] = rng.integers(0, 2)  # weights on one side, to be sent
    device = device[:, problem.arrays.unit_head]
    urgency = rng.integers(0, 6, size=(plans, ops))
    fusion = fuse(problem, device, urgency)
    assert (fusion >= 0).sum() > plans * ops / 4
    priority = rng.integers(0, 9, size=(plans, ops)).astype(float) if seed % 2 else None
    staging = np.full((plans, 2), 10**6) if seed % 3 == 0 else None
    verdict = judge(problem, device, priority, staging, fusion=fusion)
    for at in range(plans):
        order = None if priority is None else priority[at]
        room = None if staging is None else staging[at]
        small = contract(problem, Plan.of(problem, device[at], order, fusion[at], room))
        timeline = simulate(small.problem, small.plan)
        assert verdict.step_time[at] == timeline.step_time
        assert verdict.period[at] == timeline.period
        assert verdict.peak[at].tolist() == timeline.peak.tolist()
