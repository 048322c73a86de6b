"""`placewright diff`: what moved between two plans."""

from __future__ import annotations

import json

import pytest

import placewright as pw
from placewright.plan_diff import diff

ON = ("--on", "2xP100+cpu")


@pytest.fixture
def problem():
    return pw.Problem(pw.zoo.load("branches:modules=2"), pw.Cluster.parse("2xP100+cpu"))


@pytest.fixture
def save(problem, tmp_path):
    """Save a plan of the problem with some ops moved from gpu0, where all can be, to gpu1."""

    def saved(name, *moved, **parts):
        device = problem.legalize([0] * len(problem.graph))
        for op in moved:
            device[problem.graph.position[op]] = 1
        pw.save(pw.Plan.of(problem, device, **parts), tmp_path / name)

    return saved


def test_a_plan_is_the_same_as_itself(run, save):
    save("a.json")
    ran = run("diff", "a.json", "a.json")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "the plans are the same"
    assert run("diff", "a.json", "a.json", "--json").data["same"]


def test_ops_that_moved_are_counted_by_way_and_by_module(run, save):
    save("a.json")
    save("b.json", "modules.0.join", "modules.1.join", "head.mean")
    ran = run("diff", "a.json", "b.json")
    assert "3 of 53 ops are on another device" in ran.out
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["gpu0", "gpu1", "3"] in rows
    assert ["modules.0", "1"] in rows
    assert ["head", "1"] in rows


def test_all_lists_every_op(run, save):
    save("a.json")
    save("b.json", "modules.0.join", "head.mean")
    rows = [line.split() for line in run("diff", "a.json", "b.json", "--all").out.splitlines()]
    assert ["modules.0.join", "gpu0", "gpu1"] in rows
    assert ["head.mean", "gpu0", "gpu1"] in rows


def test_json_has_every_move(run, save):
    save("a.json", "head.mean")
    save("b.json", "modules.0.join")
    found = run("diff", "a.json", "b.json", "--json").data
    assert (found["same"], found["moved"], found["ops"]) == (False, 2, 53)
    assert found["moves"] == [
        {"op": "modules.0.join", "from": "gpu0", "to": "gpu1"},
        {"op": "head.mean", "from": "gpu1", "to": "gpu0"},
    ]
    assert found["first"] == {"file": "a.json"}


def test_figures_of_results_are_shown(run):
    run("place", "layered", *ON, "--method", "single", "-o", "a.json")
    run("place", "layered", *ON, "--method", "heft", "-o", "b.json")
    lines = run("diff", "a.json", "b.json").out.splitlines()
    assert lines[0].startswith("a.json: step time ")
    assert lines[0].endswith(", by single")
    assert lines[1].endswith(", by heft")
    assert "b.json alone sets priorities" in lines
    assert run("diff", "a.json", "b.json", "--json").data["second"]["method"] == "heft"


def test_priorities_fusion_and_staging_count_as_differences(run, save):
    count = 53
    alone = [-1] * count
    alone[2], alone[3] = 4, 4
    other = [-1] * count
    other[2], other[3] = 9, 9
    save("a.json", priority=list(range(count)), fusion=alone, staging={"gpu0": 2**20})
    save("b.json", priority=[0, 2, 1, *range(3, count)], fusion=other, staging={"gpu1": 0})
    save("c.json")
    out = run("diff", "a.json", "b.json").out
    assert "2 ops have another priority" in out
    assert "0 ops are fused with others" in out  # another number is not another group
    assert "staging buffer on gpu0: 1 MiB, then none" in out
    assert "staging buffer on gpu1: none, then 0 B" in out
    assert "2 ops are fused with others" in run("diff", "a.json", "c.json").out
    assert "a.json alone sets priorities" in run("diff", "a.json", "c.json").out
    assert run("diff", "a.json", "c.json", "--json").data["priorities_changed"] == 53


def test_ops_that_one_plan_alone_has_are_named(run, save, tmp_path):
    save("a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    del data["placement"]["head.mean"]
    data["placement"]["head.extra"] = "gpu7"
    (tmp_path / "b.json").write_text(json.dumps(data))
    ran = run("diff", "a.json", "b.json")
    assert ran.status == 0
    assert "1 op is in a.json alone: 'head.mean'" in ran.out
    assert "1 op is in b.json alone: 'head.extra'" in ran.out
    assert not run("diff", "a.json", "b.json", "--json").data["same"]


def test_devices_are_matched_by_name_not_by_number(problem):
    plan = pw.Plan.of(problem, problem.legalize([0] * len(problem.graph)))
    other = pw.Plan(plan.ops, plan.device_names[::-1], 2 - plan.placement)
    assert diff(plan, other).is_empty


def test_inner_modules_are_counted_with_those_around_them(problem):
    plan = pw.Plan.of(problem, problem.legalize([0] * len(problem.graph)))
    moved = pw.Plan.of(problem, problem.legalize([1] * len(problem.graph)))
    found = diff(plan, moved)
    assert sum(count for _, count in found.modules()) == len(found.moves)
    assert dict(found.modules(limit=3)).keys() == {"stem", "modules", "head"}
    assert len(found.modules(limit=1)) == 3  # the outermost


def test_something_else_is_no_plan(run, tmp_path):
    pw.save(pw.zoo.load("chain"), tmp_path / "graph.json")
    ran = run("diff", "graph.json", "graph.json")
    assert ran.status == 1
    assert ran.err == "placewright: graph.json: holds a graph: expected a plan or a result\n"
