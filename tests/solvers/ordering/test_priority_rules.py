"""Priority rules and order search: an order made for a placement beats the graph's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import random_problem
from strategies import placements, plans, problems

from placewright import Cluster, Graph, MaxEvaluations, Op, Plan, Problem, simulate, simulator, zoo
from placewright.errors import ConfigError
from placewright.simulator.reference import plan_order
from placewright.solvers import HEFT, OrderSearch, Search, Stop, solve
from placewright.solvers.ordering.critical_chain import CriticalChain
from placewright.solvers.ordering.latest_start import latest_starts
from placewright.solvers.ordering.priority_rules import (
    critical_path_first,
    memory_lean_order,
    non_delay_times,
    rule_priorities,
    senders_first,
)
from placewright.transforms.path_lengths import PathLengths

if TYPE_CHECKING:
    from placewright import Roofline
    from placewright.problem import Discipline


def plain_levels(problem: Problem, device: np.ndarray) -> list[float]:
    """Bottom levels op by op, from the last to the first."""
    a = problem.arrays
    level = [0.0] * a.ops
    for op in range(a.ops - 1, -1, -1):
        ahead = 0.0
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]:
                way = a.link_class[device[op], device[reader]]
                sending = float(a.transfer[way, tensor]) if way >= 0 else 0.0
                if a.scheduled[reader]:
                    ahead = max(ahead, sending + level[reader])
        level[op] = float(a.compute[op, device[op]]) + ahead if a.scheduled[op] else 0.0
    return level


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_bottom_levels_of_many_placements_are_those_of_each(data: st.DataObject) -> None:
    problem = data.draw(problems())
    rows = np.stack([data.draw(placements(problem)) for _ in range(3)])
    levels = PathLengths(problem.arrays).bottom_levels(rows)
    for row, found in zip(rows, levels, strict=True):
        assert found.tolist() == pytest.approx(plain_levels(problem, row))


@pytest.fixture
def pipe(two_devices: Cluster, exact: Roofline) -> Problem:
    """Graph order first does what nobody waits for: long (8 s), then feed (1 s), tail elsewhere."""
    graph = Graph(
        "pipe",
        (
            Op("long", flops=8, outputs=(1,)),
            Op("feed", flops=1, outputs=(1,)),
            Op("tail", flops=6, outputs=(1,), inputs=((1, 0),)),
        ),
    )
    return Problem(graph, two_devices, exact)


APART = np.array([0, 0, 1], dtype=np.int32)


def test_the_rules_of_a_small_plan_by_hand(pipe: Problem) -> None:
    flow, rows = PathLengths(pipe.arrays), APART[None]
    sent = float(pipe.arrays.transfer[pipe.arrays.link_class[0, 1], 1])
    # feed takes 1 s, its tensor `sent`, tail 6 s: less than long's 8 s if the link is quick.
    assert critical_path_first(flow, rows)[0].tolist() == [-8.0, -(7.0 + sent), -6.0]
    assert flow.time_to_send(rows)[0].tolist() == [np.inf, 0.0, np.inf]
    assert senders_first(flow, rows)[0].argmin() == 1
    # From the end: tail starts 6 s before it, feed 1 s and the transfer earlier, and long, with
    # which feed shares a device, has the 8 s before the end or the 8 s before feed.
    latest = latest_starts(pipe, APART, np.array([8.0, 9.0, 16.0]))
    assert latest.tolist() == [-8.0, -max(8.0, 6.0 + sent) - 1.0, -6.0]


def test_an_order_for_the_placement_beats_the_graphs(pipe: Problem) -> None:
    graph_order = simulate(pipe, Plan.of(pipe, APART)).step_time
    sent = float(pipe.arrays.transfer[pipe.arrays.link_class[0, 1], 1])
    assert graph_order == 8 + 1 + sent + 6
    result = solve(pipe, OrderSearch(Plan.of(pipe, APART)), MaxEvaluations(40))
    assert result.step_time == max(1 + 8, 1 + sent + 6)  # feed first, then long beside tail
    assert result.plan.placement.tolist() == APART.tolist()


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_rules_hold_for_any_problem_and_give_finite_numbers(data: st.DataObject) -> None:
    problem = data.draw(problems())
    device, priority, staging = data.draw(plans(problem))
    rules = rule_priorities(problem, device, staging)
    for name, row in rules.items():
        assert row.shape == (problem.arrays.ops,), name
        assert np.isfinite(row).all(), name
    turn = problem.arrays.scheduled
    start, _ = non_delay_times(problem, device, priority, staging)
    # Producers start no later than their readers, so the starts are a plan's order as they stand.
    order = plan_order(problem.arrays, start.tolist())
    assert order == sorted(np.flatnonzero(turn).tolist(), key=lambda op: (start[op], op))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_backward_schedule_is_one(data: st.DataObject) -> None:
    """Readers, sends and the ops of a device come after each other, counted from the end."""
    problem = data.draw(problems())
    device = data.draw(placements(problem))
    a = problem.arrays
    start = latest_starts(problem, device, np.array(plain_levels(problem, device)) * -1)
    seconds = a.compute[np.arange(a.ops), device]
    for op in np.flatnonzero(a.scheduled).tolist():
        assert start[op] + seconds[op] <= 1e-9  # nothing ends after the end
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]]:
            source = a.producer[tensor]
            if a.scheduled[source]:
                way = a.link_class[device[source], device[op]]
                sending = a.transfer[way, tensor] if way >= 0 else 0.0
                assert start[source] + seconds[source] + sending <= start[op] + 1e-9
    for place in range(a.devices):
        mine = np.flatnonzero(a.scheduled & (device == place) & (seconds > 0))
        mine = mine[np.argsort(start[mine])]
        assert (start[mine][:-1] + seconds[mine][:-1] <= start[mine][1:] + 1e-9).all()


def test_the_memory_lean_order_holds_fewer_bytes(one_device: Cluster, exact: Roofline) -> None:
    """Four big tensors, each of which shrinks to one byte: shrink each before making the next."""
    big = [Op(f"big{at}", flops=1, outputs=(50,)) for at in range(4)]
    small = [Op(f"small{at}", flops=1, outputs=(1,), inputs=((at, 0),)) for at in range(4)]
    last = Op("last", flops=1, outputs=(1,), inputs=tuple((4 + at, 0) for at in range(4)))
    problem = Problem(Graph("wide", (*big, *small, last)), one_device, exact)
    lean = memory_lean_order(problem)
    verdict = simulator.judge(problem, np.zeros((2, 9)), np.stack([np.arange(9), lean]))
    assert verdict.peak[:, 0].tolist() == [4 * 50 + 1, 3 * 1 + 50 + 1]


@pytest.mark.parametrize("discipline", ["in order", "ready"])
@pytest.mark.parametrize("name", ["layered:ops=300", "series-parallel:ops=300", "cifar10"])
def test_the_rules_gain_on_wide_graphs(name: str, discipline: Discipline) -> None:
    problem = Problem(zoo.load(name), Cluster.parse("4xP100+cpu"), discipline=discipline)
    search = Search(problem, Stop(), seed=0)
    HEFT(contended=True).run(search)
    assert search.best is not None
    device = search.best.placement
    rules = rule_priorities(problem, device)
    rows = np.stack(list(rules.values()))
    value = simulator.judge(problem, np.repeat(device[None], len(rows), 0), rows).value
    step = dict(zip(rules, value, strict=True))
    assert min(step["latest start"], step["latest start, never idle"]) < step["graph order"]


@pytest.mark.parametrize("discipline", ["in order", "ready"])
def test_searching_goes_on_from_the_best_rule_and_keeps_the_devices(discipline: Discipline) -> None:
    problem = Problem(
        zoo.load("layered:ops=120"), Cluster.parse("4xP100+cpu"), discipline=discipline
    )
    start = solve(problem, HEFT(contended=True)).plan
    device = start.placement
    rows = np.stack(list(rule_priorities(problem, device).values()))
    rules = simulator.judge(problem, np.repeat(device[None], len(rows), 0), rows).value.min()
    result = solve(problem, OrderSearch(start, max_plans=800), seed=1)
    assert result.step_time < rules
    assert np.array_equal(result.plan.placement, device)


def test_it_takes_the_best_plan_of_the_search_with_its_staging() -> None:
    problem = random_problem(4, ops=9)
    staging = np.full(problem.arrays.devices, 10_000, dtype=np.int64)
    start = Plan.of(problem, problem.legalize(np.zeros(9, dtype=np.int32)), staging=staging)
    result = solve(problem, OrderSearch(max_plans=50), warm_start=start)
    assert np.array_equal(result.plan.placement, start.placement)
    assert result.plan.staging is not None
    assert result.key <= simulate_key(problem, start)


def simulate_key(problem: Problem, plan: Plan) -> tuple[int, float]:
    timeline = simulate(problem, plan)
    return timeline.overflow, timeline.step_time


def test_a_fused_plan_stays_fused() -> None:
    problem = Problem(zoo.load("branches:modules=2"), Cluster.parse("2xP100"))
    a = problem.arrays
    device = problem.legalize(np.arange(a.ops) % 2)
    fusion = np.full(a.ops, -1, dtype=np.int32)
    for op in range(a.ops):  # the first pair of an op and its only reader on one device
        tensors = a.readers[a.first_reader[a.first_tensor[op]] :][:1]
        reader = int(tensors[0]) if len(tensors) else op
        kinds = {problem.graph.ops[op].kind, problem.graph.ops[reader].kind}
        alone = a.first_reader[a.first_tensor[op] + 1] - a.first_reader[a.first_tensor[op]] == 1
        if alone and device[op] == device[reader] and kinds <= {"relu", "convolution", "norm"}:
            fusion[[op, reader]] = 0
            break
    assert (fusion == 0).sum() == 2
    start = Plan.of(problem, device, fusion=fusion)
    result = solve(problem, OrderSearch(start))
    assert result.plan.fusion is not None
    assert np.array_equal(result.plan.fusion, fusion)
    assert result.step_time <= simulate(problem, start).step_time
    assert result.evaluations > 5


def test_the_period_of_a_plan_that_fits_is_left_alone() -> None:
    problem = Problem(zoo.load("layered:ops=40"), Cluster.parse("2xP100"), objective="period")
    start = Plan.of(problem, np.arange(40) % 2)
    assert solve(problem, OrderSearch(start)).evaluations < 20  # the plan and the rules


def test_orders_less_bytes_over_come_first(one_device: Cluster, exact: Roofline) -> None:
    """Where memory is short the order that needs less wins, whatever it takes."""
    big = [Op(f"big{at}", flops=1, outputs=(50,)) for at in range(4)]
    small = [Op(f"small{at}", flops=1, outputs=(1,), inputs=((at, 0),)) for at in range(4)]
    cluster = replace(one_device, devices=(replace(one_device.devices[0], memory=60),))
    problem = Problem(Graph("wide", (*big, *small)), cluster, exact)
    start = Plan.of(problem, np.zeros(8))
    assert simulate(problem, start).overflow > 0
    assert solve(problem, OrderSearch(start, max_plans=60)).fits


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_pulling_and_pushing_leave_all_other_ops_in_their_order(data: st.DataObject) -> None:
    problem = data.draw(problems())
    device, _, staging = data.draw(plans(problem))
    a, rng = problem.arrays, np.random.default_rng(0)
    keys = np.arange(a.ops, dtype=np.float64)
    chain = CriticalChain.of(problem, device, keys, staging)
    assert (
        sorted(op for line in chain.device_ops for op in line)
        == np.flatnonzero(a.scheduled).tolist()
    )
    assert set(chain.blocked_ops.tolist()) <= set(np.flatnonzero(a.scheduled).tolist())
    for moved in (
        chain.pull_earlier(keys, rng, critical=True),
        chain.pull_earlier(keys, rng, critical=False),
        chain.push_later(keys, rng),
    ):
        same = moved == keys
        assert (moved[~same] < keys[~same]).all() or (~same).sum() == 1
        assert np.isfinite(moved).all()


def test_an_op_on_the_critical_chain_is_pulled_forward(pipe: Problem) -> None:
    keys = np.arange(3, dtype=np.float64)
    chain = CriticalChain.of(pipe, APART, keys)
    assert chain.blocked_ops.tolist() == [1]  # feed waited for long, and tail for feed
    assert chain.pull_earlier(keys, np.random.default_rng(0), critical=True).tolist() == [
        0,
        -0.5,
        2,
    ]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Schedule of 0 plans: expected 1 or more"):
        OrderSearch(max_plans=0)
    with pytest.raises(ConfigError, match=r"patience 0: expected 1 or more of each"):
        OrderSearch(patience=0)
