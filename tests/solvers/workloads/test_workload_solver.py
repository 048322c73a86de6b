"""Solving workloads: no worse than simple plans, the same for a seed, `auto` for one call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attack.tiny_workloads import best_workload_plan, tiny_workload
from attack.workload_oracle import baseline_keys

from placewright import (
    Call,
    Cluster,
    Gap,
    MaxEvaluations,
    MaxTime,
    Plan,
    Problem,
    Table,
    Workload,
    WorkloadPlan,
    WorkloadResult,
    evaluate,
    simulator,
    solve,
    zoo,
)
from placewright.errors import ConfigError, PlanError
from placewright.solvers import Accelerate, Auto, Balanced, SingleDevices, Streamed, bound
from placewright.solvers.bounds.shared_memory import shared_memory_bound
from placewright.solvers.cautious_choice import SLOW_HOST, scale_host, simulated_key
from placewright.solvers.search import phase_name
from placewright.solvers.stop import Stop
from placewright.solvers.workloads.call_plans import (
    pin_weights,
    residency_of,
    transferred_plans,
)
from placewright.solvers.workloads.call_turns import CallTurns
from placewright.solvers.workloads.workload_search import WorkloadSearch, workload_bound
from placewright.workload_plan import own_plan


def generate(
    cluster: str = "V100+cpu",
    limit: str = "0.7GiB",
    blocks: int = 4,
    prompts: tuple[int, ...] = (256,),
    new_tokens: int = 64,
) -> Workload:
    """Prefill and decode of a decoder of 1.4 GiB; 0.7 GiB of the GPU may be used by default."""
    parsed = Cluster.parse(cluster)
    limits = {device.name: limit for device in parsed.devices if device.kind == "gpu"}

    def problem(text: str) -> Problem:
        return Problem(zoo.load(f"transformer:blocks={blocks},{text}"), parsed, limits=limits)

    calls = [
        Call(f"prefill {tokens}", problem(f"tokens={tokens}"), 1 / len(prompts))
        for tokens in prompts
    ]
    return Workload([*calls, Call("decode", problem("tokens=1,context=256"), new_tokens)])


@pytest.fixture(scope="module")
def workload() -> Workload:
    return generate()


EFFORT = MaxEvaluations(60_000)


@pytest.fixture(scope="module")
def result(workload: Workload):
    return solve(workload, Auto(), EFFORT)


def test_weights_are_common_and_the_rest_is_chosen_per_call(workload: Workload, result):
    """Prefill streams what does not fit; decode computes it on the host, next to the weights."""
    assert result.fits
    for name, device in result.plan.weights.items():
        for call, plan in zip(workload.calls, result.plan.plans, strict=True):
            if name in call.problem.graph.position:
                position = call.problem.graph.position[name]
                assert plan.device_names[plan.placement[position]] == device
    work = [
        plan.placement[call.problem.arrays.scheduled]
        for call, plan in zip(workload.calls, result.plan.plans, strict=True)
    ]
    assert (work[0] == 0).mean() > 0.8  # prefill on the GPU
    assert (work[1] == 1).mean() > 0.3  # of decode a part on the host
    assert result.plan.plans[0].staging is not None


def test_it_is_no_worse_than_either_calls_weights_imposed_on_the_other(workload: Workload, result):
    """With simple plans of the other call; where that is searched as long, by 2 % at most."""
    for at, problem in enumerate(workload.problems):
        own = solve(problem, Auto(exact=False), MaxEvaluations(10_000)).plan
        residency = residency_of(workload, at, own)
        simple = WorkloadSearch(workload, Stop(), 0).judge_residency(residency, {at: own})
        assert result.key <= simple.key
        plans = [own] * len(workload)
        other = 1 - at
        pinned = pin_weights(workload, other, residency)
        plans[other] = solve(pinned, Auto(exact=False), MaxEvaluations(10_000)).plan
        owned = [own_plan(workload, index, plan) for index, plan in enumerate(plans)]
        imposed = evaluate(workload, WorkloadPlan.of(workload, owned))
        assert result.fits
        assert result.objective_value <= 1.02 * imposed.objective_value


@pytest.mark.parametrize("solver", [SingleDevices(), Streamed(), Balanced(), Accelerate()])
def test_it_is_no_worse_than_a_method_on_all_calls(workload: Workload, result, solver):
    baseline = solve(workload, solver)
    assert baseline.solver == phase_name(solver)
    assert result.key <= baseline.key
    assert evaluate(workload, baseline.plan).key == baseline.key


@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 40))]
)
def test_it_is_no_worse_than_simple_plans_of_tiny_workloads(seed: int):
    workload = tiny_workload(seed)
    result = solve(
        workload, Auto(first_evaluations=50), MaxEvaluations(2_500), seed, cautious=False
    )
    for name, key in baseline_keys(workload).items():
        assert result.key <= key, name
    assert evaluate(workload, result.plan).key == result.key


def test_the_same_seed_and_evaluations_give_the_same_plan(workload: Workload):
    first, again = (solve(workload, Auto(), MaxEvaluations(8_000), seed=3) for _ in range(2))
    assert first.plan == again.plan
    assert first.evaluations == again.evaluations
    assert [entry[::2] for entry in first.history] == [entry[::2] for entry in again.history]


@pytest.mark.parametrize("seed", range(4))
def test_a_turn_is_no_worse_than_the_plans_of_other_placements_of_the_weights(seed: int):
    """Each call's ops stay where they are under the other placement, and the weights move."""
    workload = tiny_workload(seed)
    search = WorkloadSearch(workload, MaxEvaluations(5_000), seed)
    for device in range(len(workload.cluster.devices)):
        positions, problem = workload.weight_positions[0], workload.problems[0]
        placement = problem.legalize(np.full(len(problem.graph), device, dtype=np.int32))
        search.judge_residency(placement[positions])
    best, *others = sorted(search.by_residency, key=lambda name: search.by_residency[name].key)
    expected = []
    for at in range(len(workload)):
        pinned = pin_weights(workload, at, search.by_residency[best].residency)
        rows = [
            transferred_plans(pinned, search.by_residency[name].calls[at].plan) for name in others
        ]
        verdicts = [simulator.judge_batch(pinned, batch) for batch in rows]
        for batch in rows:
            assert all(
                pinned.arrays.allowed[np.arange(pinned.arrays.ops), row].all()
                for row in batch.placement
            )
        expected.append(
            [
                (
                    int((verdict.peak[row] - pinned.arrays.capacity).clip(0).sum()),
                    float(verdict.value[row]),
                )
                for verdict in verdicts
                for row in range(len(verdict.value))
            ]
        )
    CallTurns(search, Auto(first_evaluations=20)).run(best, 0.5)
    for call, keys in zip(search.by_residency[best].calls, expected, strict=True):
        assert all((call.overflow, call.value) <= key for key in keys)


def test_one_call_is_what_auto_finds_for_its_problem():
    call = generate().calls[1]
    alone = solve(call.problem, Auto(), MaxEvaluations(3_000), seed=5)
    result = solve(Workload([call]), Auto(), MaxEvaluations(3_000), seed=5)
    assert result.plan.plans == (alone.plan,)
    assert result.calls[0].step_time == alone.step_time
    assert result.objective_value == call.count * alone.step_time
    assert result.bound == call.count * alone.bound
    assert result.evaluations == alone.evaluations


def test_several_prompt_lengths_are_several_calls():
    workload = generate(prompts=(32, 128, 512), new_tokens=32)
    result = solve(workload, Auto(), MaxEvaluations(8_000))
    assert result.fits
    assert len(result.calls) == 4
    assert result.objective_value >= result.bound > 0
    seconds = [call.step_time for call in result.calls]
    assert seconds[0] < seconds[2]


def test_a_workload_that_fits_one_device_takes_it_and_stops_at_the_bound():
    cluster = Cluster.parse("2xV100+cpu")
    graphs = [zoo.load(f"transformer:blocks=2,tokens={tokens}") for tokens in (64, 1)]
    workload = Workload(
        [Call(str(at), Problem(graph, cluster), 8) for at, graph in enumerate(graphs)]
    )
    result = solve(workload, Auto(), MaxEvaluations(50_000))
    assert result.fits
    single = solve(workload, SingleDevices())
    assert result.objective_value <= single.objective_value


def test_a_warm_start_is_no_worse_than_itself(workload: Workload, result):
    again = solve(workload, Auto(), MaxEvaluations(2), warm_start=result.plan)
    assert again.key == result.key
    assert again.found_by == "start"


def test_the_stop_rules_hold(workload: Workload):
    few = solve(workload, Auto(), MaxEvaluations(10))
    assert few.evaluations < 200
    assert len(few.plan) == 2
    near = solve(workload, Auto(), Gap(1.0) | MaxEvaluations(50_000))
    assert near.gap <= 1.0
    brief = solve(workload, Auto(), MaxTime(0.0))
    assert brief.evaluations < 200


def test_progress_is_called_with_a_search_that_has_the_best(workload: Workload):
    keys = []
    solve(workload, Auto(), MaxEvaluations(500), progress=lambda search: keys.append(search.key))
    assert keys == sorted(keys, reverse=True)


def test_what_a_workload_cannot_have_is_refused(workload: Workload):
    with pytest.raises(ConfigError, match="fused ops"):
        solve(workload, Auto(fuse=True))
    with pytest.raises(ConfigError, match="expected a solver"):
        solve(workload, Auto)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="select with a workload"):
        solve(workload, select=lambda search: search.top_plans[0])  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="seed -1"):
        solve(workload, seed=-1)
    with pytest.raises(ConfigError, match="as the stop rule"):
        WorkloadSearch(workload, 5, 0)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="instead of a workload's plan"):
        solve(workload, warm_start=result_of_one_call(workload))


def result_of_one_call(workload: Workload):
    return solve(workload.calls[0].problem, SingleDevices()).plan


def test_plans_that_disagree_on_weights_are_not_evaluated_as_one():
    workload = generate(blocks=1)
    search = WorkloadSearch(workload, Stop(), 0)
    plans = [
        solve(problem, SingleDevices(), MaxEvaluations(1)).plan for problem in workload.problems
    ]
    decode = workload.problems[1]
    host = Plan.of(decode, decode.single_device_placements()[1])
    with pytest.raises(PlanError, match="has weights on other devices than that of 'prefill 256'"):
        search.judge([plans[0], host])


def test_the_bound_is_no_less_than_the_weighted_sum_of_the_calls_bounds(workload: Workload):
    total = sum(
        count * bound(problem).seconds
        for count, problem in zip(workload.counts, workload.problems, strict=True)
    )
    assert workload_bound(workload).seconds >= total * (1 - 1e-12)
    unlimited = workload_bound(workload, fits_only=False)
    assert unlimited.seconds <= workload_bound(workload).seconds
    assert unlimited.name.startswith("calls: ")


def test_calls_that_compete_for_memory_have_a_higher_bound_than_each_alone():
    """Encoder and decoder of 1.4 GiB each: alone either could have all of the GPU's memory."""
    cluster = Cluster.parse("V100+cpu")
    decoder = zoo.load("transformer:blocks=4,tokens=1")
    encoder = zoo.load("transformer:blocks=4,tokens=128")
    renamed = [replace(op, name=f"encoder.{op.name}") for op in encoder.ops]
    graphs = replace(encoder, ops=tuple(renamed)), decoder
    calls = [
        Call(str(at), Problem(graph, cluster, limits={"gpu0": "0.9GiB"}), count)
        for at, (graph, count) in enumerate(zip(graphs, (1, 16), strict=True))
    ]
    workload = Workload(calls)
    alone = sum(
        count * bound(problem).seconds
        for count, problem in zip(workload.counts, workload.problems, strict=True)
    )
    assert workload_bound(workload).name == "shared memory"
    assert workload_bound(workload).seconds > alone * 1.01
    result = solve(workload, Auto(), MaxEvaluations(10_000))
    assert result.fits
    assert result.gap >= 0


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_of_a_tiny_workload_beats_the_shared_memory_bound(seed: int):
    workload = tiny_workload(seed)
    best = best_workload_plan(workload, seed)
    seconds = shared_memory_bound(
        workload.problems, workload.counts.tolist(), list(workload.weights)
    )
    assert not best.fits or seconds <= best.value


def test_where_times_were_measured_the_host_must_gain_enough():
    """Measured here: the plan may be slower by simulation, and is no slower with a slow host."""
    calls = []
    for call in generate(blocks=2, limit="0.3GiB").calls:
        problem = call.problem
        table = Table(
            tuple(problem.graph.position),
            tuple(problem.cluster.position),
            problem.arrays.compute,
            machine="measured",
        )
        calls.append(replace(call, problem=replace(problem, costs=table)))
    workload = Workload(calls)
    cautious = solve(workload, Auto(), MaxEvaluations(10_000))
    best = solve(workload, Auto(), MaxEvaluations(10_000), select="best")
    assert cautious.fits
    assert best.objective_value <= cautious.objective_value

    def means(result: WorkloadResult) -> float:
        return sum(
            count * (call.objective_value * simulated_key(slow, call.plan)[1]) ** 0.5
            for count, call, slow in zip(
                result.counts,
                result.calls,
                [scale_host(problem, *SLOW_HOST) for problem in workload.problems],
                strict=True,
            )
        )

    assert means(cautious) <= means(best) * (1 + 1e-9)
