"""Starts of searches: a stored plan is judged again, and keys tell problems apart."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import placewright as pw
from placewright.simulator import RULES_VERSION, reference
from placewright.simulator.plan_key import problem_key
from placewright.store import open_store
from placewright.store.search_start import find_start, find_workload_start, store_result

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def file_store(tmp_path):
    return open_store(tmp_path / "store.sqlite")


def test_a_result_is_stored_and_found_with_the_time_it_has(store, diamond_problem):
    assert find_start(store, diamond_problem) is None
    result = pw.solve(diamond_problem, pw.solvers.HEFT())
    assert store_result(store, diamond_problem, result, "diamond")
    start = find_start(store, diamond_problem)
    assert (start.seconds, start.overflow) == (14.0, 0)  # 1 + 10 + 2 + 1: the other half hides
    assert start.plan == result.plan
    assert start.text == f"started from a stored plan of {start.record.day}: 14 s"
    again = pw.solve(diamond_problem, pw.solvers.SingleDevices(), warm_start=start.plan)
    assert again.step_time == 14.0


def test_a_worse_result_is_not_stored(file_store, diamond_problem):
    best = pw.solve(diamond_problem, pw.solvers.HEFT())
    worse = pw.solve(diamond_problem, pw.solvers.SingleDevices())  # 22 s
    assert store_result(file_store, diamond_problem, worse, "diamond")
    assert store_result(file_store, diamond_problem, best, "diamond")
    assert not store_result(file_store, diamond_problem, worse, "diamond")
    assert find_start(file_store, diamond_problem).seconds == 14.0


def test_a_stored_time_that_is_not_the_plans_own_is_not_believed(
    file_store, diamond_problem, caplog
):
    result = pw.solve(diamond_problem, pw.solvers.SingleDevices())
    store_result(file_store, diamond_problem, result, "diamond")
    (record,) = file_store.list_plans()
    data = file_store.get_plan(record.key).data
    file_store.put_plan(replace(record, seconds=1.0, data=data))  # a time that no plan has
    start = find_start(file_store, diamond_problem)
    assert start.seconds == 22.0
    assert "is removed: it was stored with 1 s and takes 22 s" in caplog.text
    assert find_start(file_store, diamond_problem) is None
    assert store_result(file_store, diamond_problem, result, "diamond")


@pytest.mark.parametrize("damage", ["nothing", "another op", "another device", "not placed"])
def test_a_plan_that_is_not_of_the_problem_is_removed(file_store, diamond_problem, damage, caplog):
    result = pw.solve(diamond_problem, pw.solvers.HEFT())
    store_result(file_store, diamond_problem, result, "diamond")
    (record,) = file_store.list_plans()
    data = file_store.get_plan(record.key).data
    placement = data["plan"]["placement"]
    if damage == "nothing":
        data = {}
    elif damage == "another op":
        placement["more"] = "gpu0"
    elif damage == "another device":
        placement["left"] = "gpu7"
    else:
        del placement["left"]
    assert file_store.put_plan(replace(record, seconds=1.0, data=data))
    assert find_start(file_store, diamond_problem) is None
    assert "is removed: " in caplog.text
    assert file_store.list_plans() == []


def test_a_result_of_another_runtime_is_not_stored(file_store):
    cluster = pw.Cluster.parse("V100+cpu")
    problem = pw.Problem(pw.zoo.load("offload"), cluster, limits={"gpu0": "3GiB"})
    result = pw.solve(problem, pw.solvers.Accelerate())
    assert not store_result(file_store, problem, result, "offload")
    assert file_store.list_plans() == []


def test_a_plan_of_a_workload_is_stored_and_found(file_store, layers_problem):
    calls = [pw.Call("prefill", layers_problem), pw.Call("decode", layers_problem, count=3)]
    workload = pw.Workload(calls)
    result = pw.solve(workload, stop=pw.MaxEvaluations(20))
    assert find_workload_start(file_store, workload) is None
    assert store_result(file_store, workload, result, "layers")
    start = find_workload_start(file_store, workload)
    assert (start.overflow, start.seconds) == result.key
    assert start.plan == result.plan
    other = pw.Workload([calls[0], replace(calls[1], count=4)])
    assert find_workload_start(file_store, other) is None
    for each in (workload, pw.Workload(calls[:1])):
        plan = pw.WorkloadPlan.of(each, [layers_problem_plan(layers_problem)] * len(each))
        warm = pw.solve(each, pw.solvers.CpuOnly(), warm_start=plan)
        assert warm.objective_value <= pw.evaluate(each, plan).objective_value


def layers_problem_plan(problem):
    return pw.solve(problem, pw.solvers.HEFT()).plan


def changed_problems(problem):
    """The problem with each part changed."""
    graph, cluster = problem.graph, problem.cluster
    slow = replace(problem.costs, compute=0.5)
    names = tuple(op.name for op in graph.ops)
    devices = tuple(replace(device, memory=999) for device in cluster.devices)
    heavier = (replace(graph.ops[0], flops=2.0), *graph.ops[1:])
    return {
        "costs": replace(problem, costs=slow),
        "a table of the same times but one": replace(
            problem, costs=pw.Table(names, ("gpu0", "gpu1"), np.full((4, 2), 3.0))
        ),
        "limits": replace(problem, constraints=pw.Constraints(limits={"gpu0": 500})),
        "pins": replace(problem, constraints=pw.Constraints(pins={"left": "gpu0"})),
        "colocation": replace(problem, constraints=pw.Constraints(colocate=(("left", "right"),))),
        "objective": replace(problem, objective="period"),
        "discipline": replace(problem, discipline="ready"),
        "overlap": replace(problem, overlap=False),
        "graph": replace(problem, graph=pw.Graph("diamond", heavier)),
        "cluster": replace(problem, cluster=replace(cluster, devices=devices)),
        "what if": problem.with_arrays(compute=problem.arrays.compute * 3),
    }


def test_a_key_differs_in_everything_that_a_plan_depends_on(diamond_problem, monkeypatch):
    keys = {name: problem_key(each) for name, each in changed_problems(diamond_problem).items()}
    keys["nothing"] = problem_key(diamond_problem)
    keys["fused ops"] = problem_key(diamond_problem, fuse=True)
    monkeypatch.setattr("placewright.simulator.plan_key.RULES_VERSION", RULES_VERSION + 1)
    keys["rules"] = problem_key(diamond_problem)
    assert len(set(keys.values())) == len(keys)


def test_a_key_is_the_same_for_the_same_problem(diamond_problem):
    renamed = replace(
        diamond_problem,
        graph=replace(diamond_problem.graph, name="x"),
        cluster=replace(diamond_problem.cluster, name="y"),
    )
    assert problem_key(renamed) == problem_key(diamond_problem)
    known = replace(diamond_problem, constraints=pw.Constraints(limits={"gpu0": 1000}))
    assert problem_key(known) == problem_key(diamond_problem)  # its memory is 1000 bytes anyway


def test_rules_that_change_have_another_version():
    """Where a rule means something else, raise RULES_VERSION; then write the new digest here."""
    digest = hashlib.sha256(reference.__doc__.encode()).hexdigest()[:16]
    assert (RULES_VERSION, digest) == (1, "eab6f7fa1923c9cd")


def test_solve_and_compare_open_no_store(tmp_path):
    code = """
import sys, placewright as pw
problem = pw.Problem(pw.zoo.load("chain:ops=4"), pw.Cluster.parse("2xP100+cpu"))
pw.solve(problem, stop=pw.MaxEvaluations(30))
pw.compare(problem, ["heft"])
pw.evaluate(problem, pw.solve(problem, pw.solvers.HEFT()))
print([name for name in sys.modules if "placewright.store" in name or "sqlite" in name])
"""
    environment = {"PLACEWRIGHT_STORE": str(tmp_path / "store.sqlite"), "PATH": ""}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


def test_benchmarks_say_which_store_they_use():
    """None, or one of their own: what a user has stored must not change a figure."""
    calls = []
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_place = isinstance(node, ast.Call) and ast.unparse(node.func) == "pw.place"
            if is_place:
                calls.append((path.name, "store" in {word.arg for word in node.keywords}))
    assert calls
    assert all(says for _, says in calls), calls
