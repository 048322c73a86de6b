"""Stored plans: `place` starts from them and says so, `history` lists, shows and prunes them."""

from __future__ import annotations

import time

import pytest

import placewright as pw
from placewright import files

MODEL = ("branches:modules=1", "--on", "2xP100+cpu", "--no-explain")
SHORT = (*MODEL, "--evaluations", "40")


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    path = tmp_path / "plans" / "store.sqlite"
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(path))
    return path


def plans(run):
    return run("history", "--json").data["plans"]


def test_place_starts_from_a_stored_plan_and_says_so(run):
    first = run("place", *SHORT, "--json").data
    assert first["start"] is None
    assert not any("stored plan" in note for note in first["notes"])
    second = run("place", *SHORT, "--json").data
    assert second["start"]["seconds"] == first["step_time"]
    assert second["step_time"] <= first["step_time"]
    day = time.strftime("%Y-%m-%d", time.localtime(second["start"]["created_at"]))
    assert second["notes"][0].startswith(f"started from a stored plan of {day}: ")
    assert f"\nstarted from a stored plan of {day}: " in run("place", *SHORT).out


def test_fresh_does_not_start_from_a_stored_plan(run):
    first = run("place", *SHORT, "--json").data
    again = run("place", *SHORT, "--fresh", "--json").data
    assert again.pop("seconds") > 0
    assert first.pop("seconds") > 0
    assert again == first
    assert len(plans(run)) == 1


def test_only_a_search_starts_from_a_stored_plan(run):
    run("place", *SHORT)
    heft = run("place", *MODEL, "--method", "heft", "--json").data
    assert heft["start"] is None


def test_a_plan_that_is_named_goes_before_a_stored_one(run):
    run("place", *SHORT, "-o", "plan.json")
    data = run("place", *SHORT, "--warm-start", "plan.json", "--json").data
    assert data["start"] is None


def test_a_better_plan_is_stored_and_a_worse_one_is_not(run):
    run("place", *MODEL, "--method", "cpu-only")
    slow = plans(run)[0]["seconds"]
    run("place", *SHORT)
    (best,) = plans(run)
    assert best["seconds"] < slow
    run("place", *MODEL, "--method", "cpu-only")
    assert plans(run)[0]["seconds"] == best["seconds"]


def test_a_plan_that_fuses_ops_starts_no_search_that_does_not(run):
    run("place", *SHORT, "--fuse")
    assert run("place", *SHORT, "--json").data["start"] is None
    assert run("place", *SHORT, "--fuse", "--json").data["start"] is not None


def test_a_workload_starts_from_its_stored_plan(run, tmp_path):
    problem = pw.Problem(pw.zoo.load("chain:ops=4"), pw.Cluster.parse("2xP100+cpu"))
    workload = pw.Workload([pw.Call("one", problem), pw.Call("two", problem, count=3)])
    pw.save(workload, tmp_path / "calls.json")
    words = ("place", "calls.json", "--evaluations", "20")
    assert run(*words, "--json").data["start"] is None
    assert "\nstarted from a stored plan of 20" in run(*words).out
    (record,) = plans(run)
    assert (record["kind"], record["name"]) == ("workload", "calls.json")
    shown = run("history", record["key"][:6], "-o", "plan.json").out
    assert "sum of steps: " in shown
    assert files.load(tmp_path / "plan.json", "workload_plan").calls == ("one", "two")


@pytest.mark.parametrize("fault", ["damaged", "folder is a file", "network"])
def test_a_store_that_cannot_be_used_stops_no_search(run, own_store, fault, monkeypatch, tmp_path):
    if fault == "damaged":
        own_store.parent.mkdir()
        own_store.write_bytes(b"not a database" * 100)
    elif fault == "folder is a file":
        own_store.parent.write_text("")
    else:
        (tmp_path / "mounts").write_text(f"1 0 0:5 / {tmp_path} rw - nfs4 host:/home rw\n")
        monkeypatch.setattr("placewright.store.network_mounts.MOUNTS", tmp_path / "mounts")
    ran = run("place", *SHORT, "--json")
    assert ran.status == 0
    assert ran.data["fits"]
    assert "planning goes on without it" in ran.err
    assert run("place", *SHORT, "-q").err == ""


def test_a_store_that_cannot_be_named_is_an_error_before_the_search(run, monkeypatch):
    monkeypatch.setattr("placewright.solvers.solve", None)  # which nothing may call
    ran = run("place", *SHORT, "--store", "mysql://me:secret@host/x")
    assert ran.status == 1
    assert "expected a file, postgresql://user@host/database, or none" in ran.err
    assert "secret" not in ran.err


def test_the_store_is_named_by_an_option_or_a_file_of_defaults(run, tmp_path, own_store):
    run("place", *SHORT, "--store", "mine.sqlite")
    assert not own_store.exists()
    assert len(run("history", "--store", "mine.sqlite", "--json").data["plans"]) == 1
    assert plans(run) == []
    (tmp_path / "placewright.toml").write_text('store = "mine.sqlite"\n')
    assert len(plans(run)) == 1  # also of history, which plans nothing
    (tmp_path / "placewright.toml").write_text('store = "none"\n')
    assert plans(run) == []


def test_history_lists_plans_those_that_were_used_last_first(run):
    assert run("history").out.startswith("no plans are stored in")
    run("place", *SHORT)
    run("place", "chain:ops=3", "--on", "P100", "--method", "single", "--objective", "period")
    lines = run("history").out.splitlines()
    assert " ".join(lines[0].split()) == "key model cluster objective time bound fits date"
    assert lines[1].split()[1:4] == ["chain:ops=3", "P100", "period"]
    assert lines[2].split()[1:4] == ["branches:modules=1", "2xP100+cpu", "step"]
    assert lines[1].split()[-2:] == ["yes", time.strftime("%Y-%m-%d")]
    assert any(line.startswith("2 plans in") for line in lines)
    keys = {"key", "kind", "name", "cluster", "objective", "seconds", "bound", "overflow", "fits"}
    assert keys | {"method", "version", "created_at", "used_at"} == plans(run)[0].keys()


def test_history_shows_a_plan_and_writes_it(run, tmp_path):
    data = run("place", *SHORT, "--json").data
    (record,) = plans(run)
    ran = run("history", record["key"][:8], "-o", "plan.json")
    assert ran.out.startswith("branches:modules=1 on 2xP100+cpu\n")
    assert "plan written to plan.json" in ran.out
    result = files.load(tmp_path / "plan.json", "result")
    assert result.step_time == data["step_time"]
    again = run("simulate", *MODEL[:3], "--plan", "plan.json", "--json").data
    assert again["step_time"] == data["step_time"]
    shown = run("history", record["key"], "--json").data
    assert shown["data"]["step_time"] == data["step_time"]
    assert shown["measured"] == []


def test_history_prunes_by_age_and_by_number(run):
    for ops in (3, 4):
        run("place", f"chain:ops={ops}", "--on", "P100", "--method", "single")
    assert run("history", "--prune", "--older-than", "30d", "--json").data["removed"] == 0
    assert run("history", "--prune", "--keep", "1", "--json").data["removed"] == 1
    assert [record["name"] for record in plans(run)] == ["chain:ops=4"]
    assert "1 stored plan or measurement removed" in run("history", "--prune", "--keep", "0").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prune",), "expected --older-than or --keep, and no key"),
        (("abcd", "--prune", "--keep", "1"), "expected --older-than or --keep, and no key"),
        (("--keep", "1"), "add --prune"),
        (("-o", "plan.json"), "add its key"),
        (("--prune", "--older-than", "soon"), "--older-than: time 'soon': expected"),
        (("abcd",), "no plan has a key that begins with 'abcd'"),
    ],
)
def test_history_says_what_is_expected(run, words, message):
    ran = run("history", *words)
    assert ran.status == 1
    assert message in ran.err


def test_history_of_a_store_that_cannot_be_read_is_an_error(run, own_store):
    own_store.parent.mkdir()
    own_store.write_bytes(b"not a database" * 100)
    ran = run("history")
    assert ran.status == 1
    assert "cannot be used: file is not a database; if it is damaged, move it away" in ran.err


def test_keys_are_completed(run, monkeypatch):
    run("place", *SHORT)
    (record,) = plans(run)
    monkeypatch.setenv("_PLACEWRIGHT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"placewright history {record['key'][:3]}")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setattr("sys.argv", ["placewright"])
    assert run().out.split() == [record["key"]]


def test_measured_plans_are_shown(run, own_store):
    from placewright.store import open_store
    from placewright.store.measured_plans import store_measurement

    run("place", *SHORT, "-o", "plan.json")
    plan = files.load("plan.json", "plan")
    store_measurement(open_store(), "branches", plan, "m1", 0.5, 0.01)
    store_measurement(open_store(), "branches", plan, "m1", float("inf"), 0.0)  # it failed
    (record,) = plans(run)
    (measured,) = run("history", record["key"], "--json").data["measured"]
    assert (measured["machine"], measured["seconds"], measured["spread"]) == ("m1", 0.5, 0.01)
    assert "500 ms, spread 1 %, on machine m1" in run("history", record["key"]).out
