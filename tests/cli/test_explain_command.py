"""`placewright explain`: what moving an op would do."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import placewright as pw
from placewright.errors import MissingDependency
from placewright.training import proposers
from placewright.training.go.proposer import GoProposer

ON = ("--on", "2xP100+cpu")


@pytest.fixture
def placed(run):
    """A plan of a small network that is far from the best, as a result file."""
    run("place", "branches", *ON, "--method", "round-robin", "-o", "plan.json")
    return pw.files.load("plan.json")


@pytest.fixture
def problem():
    return pw.Problem(pw.zoo.load("branches"), pw.Cluster.parse("2xP100+cpu"))


def test_an_op_is_shown_on_every_other_device(run, placed, problem):
    name = problem.graph.ops[-1].name
    found = run("explain", "plan.json", "--op", name, "--json").data
    assert found["op"] == name
    assert found["value"] == placed.step_time
    devices = [device.name for device in problem.cluster.devices]
    assert sorted([found["device"], *(move["device"] for move in found["moves"])]) == sorted(
        devices
    )
    at = problem.graph.position[name]
    for move in found["moves"]:
        if found["moves_with"]:
            break
        device = placed.plan.placement.copy()
        device[at] = devices.index(move["device"])
        timeline = pw.simulate(problem, pw.Plan.of(problem, device, placed.plan.priority))
        assert move["value"] == timeline.step_time
    asked = ["pair", "go"] if find_spec("torch") else ["pair"]
    assert [policy["policy"] for policy in found["policies"]] == asked
    for policy in found["policies"]:
        likely = policy["likely"]
        assert sum(likely.values()) == pytest.approx(1)
        assert likely[policy["prefers"]] == policy["sure"] == max(likely.values())
    assert found["critical"] == (found["on_path"] != "no")
    assert found["slack"] is None or found["slack"] >= 0


def test_the_table_tells_the_same(run, placed, problem):
    name = problem.graph.ops[-1].name
    found = run("explain", "plan.json", "--op", name, "--json").data
    ran = run("explain", "plan.json", "--op", name)
    assert ran.status == 0
    assert f"{found['device']} (now)" in ran.out
    assert "policy pair would" in ran.out
    assert "critical path" in ran.out
    assert all(f"\n{move['device']} " in ran.out for move in found["moves"])


def test_without_an_op_the_best_moves_are_listed(run, placed, problem):
    found = run("explain", "plan.json", "--json").data
    values = [move["value"] for move in found["moves"]]
    assert 0 < len(values) <= 10
    assert values == sorted(values)
    assert all(value < placed.step_time for value in values)
    assert len({move["op"] for move in found["moves"]}) == len(values)
    assert found["tried"] == found["of"]
    assert found["where"] == "on the critical path"
    shown = run("explain", "plan.json").out
    assert "op " in shown
    assert all(move["op"].split(".")[-1] in shown for move in found["moves"])


def test_where_no_move_gains_it_says_so(run):
    run("place", "chain", "--on", "P100", "-o", "alone.json")
    assert "no such move gains" in run("explain", "alone.json").out
    assert run("explain", "alone.json", "--json").data["moves"] == []


def test_the_nearest_name_is_offered(run, placed, problem):
    name = problem.graph.ops[-1].name
    ran = run("explain", "plan.json", "--op", f"{name}x")
    assert ran.status == 1
    assert f"has no op '{name}x': did you mean '{name}'?" in ran.err


def test_a_bare_plan_needs_to_be_told_its_model(run, placed, problem):
    pw.save(placed.plan, "bare.json")
    assert "does not name its problem" in run("explain", "bare.json").err
    told = run("explain", "bare.json", "--model", "branches", *ON, "--json").data
    assert told["moves"] == run("explain", "plan.json", "--json").data["moves"]


def test_a_pin_typed_now_is_kept_to(run, placed, problem):
    op = problem.graph.ops[-1].name
    where = problem.cluster.devices[placed.plan.placement[-1]].name
    found = run("explain", "plan.json", "--op", op, "--pin", f"{op}={where}", "--json").data
    assert [move["allowed"] for move in found["moves"]] == [False, False]
    assert found["policies"][0]["likely"][where] == pytest.approx(1)
    assert "not allowed" in run("explain", "plan.json", "--op", op, "--pin", f"{op}={where}").out


def test_without_a_policy_it_says_so(run, placed, problem, monkeypatch):
    monkeypatch.setattr(proposers, "ADVISERS", {})
    ran = run("explain", "plan.json", "--op", problem.graph.ops[-1].name)
    assert "no policy that ships can say what it prefers" in ran.out


def test_without_torch_only_policies_that_need_none_are_asked(run, placed, problem, monkeypatch):
    def missing():
        raise MissingDependency("torch", "torch")

    monkeypatch.setattr(GoProposer, "shipped", missing)
    ran = run("explain", "plan.json", "--op", problem.graph.ops[-1].name)
    assert "policy pair would" in ran.out
    assert "policy go is not asked: torch is not installed" in ran.out
