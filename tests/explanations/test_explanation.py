"""Explanations: why a plan takes its time, and what would help, in the simulator's numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import STREAMING, plans, problems
from yardstick import lengths

from placewright import Cluster, Constraints, Graph, Plan, Problem, Roofline, simulate, zoo
from placewright.explanations import explain
from placewright.explanations.cluster_upgrades import faster_device
from placewright.solvers import (
    Baselines,
    MTopo,
    SingleDevices,
    Streamed,
    bound,
    solve,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_plan_has_a_sentence_and_true_shares(data: st.DataObject) -> None:
    problem = data.draw(problems(kinds=STREAMING) if data.draw(st.booleans()) else problems())
    problem = replace(problem, objective=data.draw(st.sampled_from(["step", "period"])))
    device, priority, staging = data.draw(plans(problem))
    plan = Plan.of(problem, device, priority, staging=staging)
    why = explain(problem, plan)
    timeline = simulate(problem, plan)
    assert why.sentence
    assert "\n" not in why.sentence
    if problem.objective == "step":
        assert sum(share.seconds for share in why.shares) == pytest.approx(timeline.step_time)
    else:  # what a channel sends and what it streams are two shares
        loads: dict[str, float] = {}
        for share in why.shares:
            loads[share.location] = loads.get(share.location, 0.0) + share.seconds
        assert max(loads.values(), default=0.0) == pytest.approx(timeline.period)
    for each in why.improvements:
        assert (each.overflow_after, each.after) < (each.overflow_before, each.before)


def test_a_split_that_does_not_pay_says_what_it_would_cost(
    fork_join: Graph, slow_link: Cluster, exact: Roofline
) -> None:
    problem = Problem(fork_join, slow_link, exact)
    problem = problem.with_arrays(transfer=problem.arrays.transfer / 10)
    why = explain(problem, solve(problem, Baselines()))
    # A split sends three tensors one after the other, 10.2 s each. All on one device it is 22 s.
    assert why.sentence == (
        "splitting does not pay: the best contiguous split takes 32.6 s, "
        "30.6 s of its critical path on transfers, where no plan can gain more than 4.7 s"
    )


def test_one_device_that_is_not_best_is_not_called_so(diamond_problem: Problem) -> None:
    problem = diamond_problem.with_arrays(transfer=diamond_problem.arrays.transfer / 100)
    why = explain(problem, solve(problem, SingleDevices()))
    assert why.sentence.startswith("gpu0 does everything, though a contiguous split takes ")
    assert why.improvements[0].kind == "plan"
    assert why.improvements[0].before == 22.0


def test_the_critical_path_is_told_with_the_memory_that_forbids_better(
    layers_problem: Problem,
) -> None:
    # x is 8 bytes: both weights and x and an output are more than the 100 bytes of the GPU.
    plan = Plan.of(layers_problem, [1, 0, 0, 1, 1, 1])
    why = explain(layers_problem, plan)
    # 4 s for x, 0.4 s of layer1 on the GPU, 4 s back, 4 s of layer2 on the host
    assert why.sentence == (
        "the critical path is 32 % tensors over cpu→gpu0, 32 % tensors over gpu0→cpu and "
        "32 % compute on cpu; gpu0 alone would take 4.8 s, but lacks 16 B of memory"
    )
    assert [(s.kind, s.location, s.seconds) for s in why.shares[1:3]] == [
        ("send", "gpu0→cpu", 4.0),
        ("compute", "cpu", 4.0),
    ]


def test_streaming_says_what_is_held_and_how_busy_the_link_is(layers_problem: Problem) -> None:
    plan = Plan.of(layers_problem, [1, 0, 0, 1, 1, 0], staging={"gpu0": 50})
    why = explain(layers_problem, plan)
    assert simulate(layers_problem, plan).overflow  # 50 + 50 and the activations: does not fit
    assert why.sentence.startswith("gpu0 lacks ")
    roomy = layers_problem.with_arrays(capacity=np.array([1000, 10_000]))
    why = explain(roomy, plan)
    # 4 s of x, then 25 s of w2, and 0.4 s of layer2: 25 of 29.4 s
    assert why.sentence.startswith(
        "gpu0 holds 50 B of 100 B of weights, and the link cpu→gpu0 is busy 85 % of the step "
        "streaming others to it; the critical path is 85 % weights over cpu→gpu0"
    )
    faster = next(each for each in why.improvements if each.kind == "plan")
    assert faster.after == pytest.approx(4.8)  # everything on the GPU, which fits now


def test_the_period_is_the_busiest_ones(diamond_problem: Problem) -> None:
    problem = replace(diamond_problem, objective="period")
    why = explain(problem, Plan.of(problem, [0, 0, 1, 0]))
    assert why.sentence == (
        "gpu0 is busy with its ops for all of the period; next is gpu1, busy 83 % of it"
    )
    assert why.critical_path is None
    assert [(s.location, s.seconds) for s in why.shares[:2]] == [("gpu0", 12.0), ("gpu1", 10.0)]
    slow = problem.with_arrays(transfer=problem.arrays.transfer * 10)
    why = explain(slow, Plan.of(problem, [0, 0, 1, 0]))
    assert why.sentence.startswith("the link gpu0→gpu1 is busy sending tensors for all of the")
    assert any(each.kind == "link" for each in why.improvements)


def test_a_plan_at_its_bound_says_that_none_is_faster(chain: Graph, one_device: Cluster) -> None:
    problem = Problem(chain, one_device, Roofline(1, 1))
    why = explain(problem, solve(problem, SingleDevices()))
    assert why.sentence == (
        "the critical path is 100 % compute on gpu0; no plan can be faster (critical path)"
    )
    assert [str(each) for each in why.improvements] == ["gpu0 twice as fast: 6 s → 3 s (−50 %)"]
    assert why.improvements[0].same_plan


def test_gains_are_what_the_simulator_says_of_the_changed_cluster() -> None:
    problem = Problem(
        zoo.load("transformer:tokens=512"),
        Cluster.parse("V100+cpu"),
        constraints=Constraints(limits={"gpu0": 3 * 2**30}),
    )
    result = solve(problem, Streamed())
    why = explain(problem, result)
    kinds = {each.kind: each for each in why.improvements}
    (link,) = [
        each for each in why.improvements if each.location == "cpu→gpu0" and each.kind == "link"
    ]
    pair = ("cpu", "gpu0")
    links = problem.cluster.links
    wide = {**links, pair: replace(links[pair], bandwidth=2 * links[pair].bandwidth)}
    faster = replace(problem, cluster=replace(problem.cluster, links=wide))
    assert link.before == result.step_time
    again = solve(faster, Streamed(), warm_start=result.plan)
    assert link.after == pytest.approx(again.step_time)
    assert kinds["memory"].change == "1 GiB more on gpu0"  # a quarter of 3 GiB, rounded up
    limits = Constraints(limits={"gpu0": 4 * 2**30})
    roomy = solve(replace(problem, constraints=limits), Streamed(), warm_start=result.plan)
    assert kinds["memory"].after == pytest.approx(roomy.step_time)
    assert not kinds["memory"].same_plan
    assert [each.gain for each in why.improvements] == sorted(
        (e.gain for e in why.improvements), reverse=True
    )
    assert [each.kind for each in why.best_improvements] == list(
        dict.fromkeys(e.kind for e in why.improvements)
    )


def test_what_does_not_fit_is_helped_by_a_host_and_by_memory() -> None:
    problem = Problem(
        zoo.load("offload"),
        Cluster.parse("P100"),
        constraints=Constraints(limits={"gpu0": 2 * 2**30}),
    )
    why = explain(problem, solve(problem, SingleDevices()))
    assert why.sentence == "gpu0 lacks 3.5 GiB of memory: the plan holds 5.5 GiB at its peak there"
    host, enough, little = why.improvements
    streamed = solve(replace(problem, cluster=Cluster.parse("P100+cpu")), Streamed())
    assert str(host).startswith("adding a host of 256 GiB (P100+cpu): it fits, ")
    assert host.after <= streamed.step_time
    assert str(enough).startswith("4 GiB more on gpu0: it fits, ")
    assert {each.kind for each in why.improvements} == {"host", "memory"}
    assert str(little) == "512 MiB more on gpu0: 3.5 GiB → 3 GiB over memory"


def test_new_plans_may_come_from_elsewhere(diamond_problem: Problem) -> None:
    asked: list[Problem] = []

    def replan(problem: Problem) -> Plan:
        asked.append(problem)
        return Plan.of(problem, [0, 1, 1, 0])

    why = explain(diamond_problem, Plan.of(diamond_problem, [0, 0, 1, 0]), replan)
    assert asked[0] is diamond_problem
    twice = faster_device(diamond_problem, 1).apply(diamond_problem).arrays.compute
    assert any(np.array_equal(each.arrays.compute, twice) for each in asked)
    (gpu1,) = [each for each in why.improvements if each.location == "gpu1"]
    # 16 s with the plan; on a faster gpu1 `left` is the last: 1 + 10 + 1 s
    assert (gpu1.before, gpu1.after, gpu1.same_plan) == (16.0, 12.0, True)


def test_a_fused_plan_is_explained_as_it_runs(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, [0, 0, 0, 0], fusion=[0, 0, 0, -1])
    why = explain(diamond_problem, plan)
    assert why.critical_path is not None
    assert len(why.critical_path) == 2
    faster = next(each for each in why.improvements if each.location == "gpu0")
    assert faster.after <= 11.0  # half of 22 s


def test_a_result_brings_its_bound(diamond_problem: Problem) -> None:
    result = solve(diamond_problem, Baselines())
    assert explain(diamond_problem, result) == explain(diamond_problem, result.plan)
    near = replace(result, bound=result.step_time * 0.99, bound_name="made up")
    told = explain(diamond_problem, near).sentence
    assert told.endswith("; no plan can gain more than 1.0 % (made up)")
    assert bound(diamond_problem).seconds == pytest.approx(14.0)


def test_a_thousand_ops_are_explained_in_little_time() -> None:
    problem = Problem(zoo.load("layered:ops=1000"), Cluster.parse("4xV100+cpu"))
    result = solve(problem, MTopo())
    assert lengths(lambda: explain(problem, result), limit=9) < 9
