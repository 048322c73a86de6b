"""`placewright compare`: a row a method, the best marked, and what to hold them against."""

from __future__ import annotations

import sys

import pytest

import placewright as pw
from placewright import files
from placewright.solvers import METHODS, ON_REQUEST

LEFT_OUT = {*ON_REQUEST, "expert"}  # not run unasked; and there is an expert for networks alone

ON = ("--on", "2xP100+cpu")


def test_every_method_has_a_row_and_the_best_is_marked(run):
    ran = run("compare", "branches:modules=2", *ON)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    header = "method step time period vs gpu0 gap fits evaluations seconds"
    assert lines[2].split() == header.split()
    table = [line for line in lines[3:] if line.endswith(tuple("0123456789")) and "ms" in line]
    assert {line[2:].split()[0] for line in table} == set(METHODS) - LEFT_OUT
    assert table[0].startswith("* ")  # the best comes first
    assert sum(line.startswith("* ") for line in table) == 1
    assert any(line.startswith("* best by step time") for line in lines)
    assert any(line.startswith("best single device: gpu0, ") for line in lines)
    assert any(line.startswith("lower bound: ") for line in lines)
    assert max(map(len, lines)) <= 80


def test_json_has_a_list_of_methods(run):
    found = run("compare", "diamond", *ON, "--json").data
    assert found["model"] == "diamond:ops=4,seed=0,weights=false"
    assert found["cluster"] == "2xP100+cpu"
    times = {each["method"]: each["step_time"] for each in found["methods"]}
    assert set(times) == set(METHODS) - LEFT_OUT
    assert times[found["best"]] == min(times.values())
    assert found["best_single"]["step_time"] == times["single"]
    assert all(each["bound"] == found["bound"] for each in found["methods"])
    assert all(each["devices"] for each in found["methods"])
    assert [each["method"] for each in found["skipped"]] == ["expert"]


def test_a_placed_model_is_no_worse_than_any_method_of_the_comparison(run):
    compared = run("compare", "layered", *ON, "--evaluations", 2_000, "--json").data["methods"]
    placed = run("place", "layered", *ON, "--evaluations", 2_000, "--json").data
    assert placed["step_time"] <= min(each["step_time"] for each in compared)


def test_methods_are_chosen_by_name(run):
    found = run("compare", "diamond", *ON, "--methods", "heft, single", "--json").data
    assert sorted(each["method"] for each in found["methods"]) == ["heft", "single"]


def test_a_method_that_cannot_do_the_problem_is_left_out_with_its_reason(run):
    ran = run("compare", "diamond", "--on", "2xP100")
    assert ran.status == 0
    reasons = "cpu-only (cluster '2xP100' has no cpu); expert (no expert's placement is known"
    assert f"skipped: {reasons}" in " ".join(ran.out.split())
    found = run("compare", "diamond", "--on", "2xP100", "--json").data
    assert [each["method"] for each in found["skipped"]] == ["cpu-only", "expert"]
    asked = run("compare", "diamond", "--on", "2xP100", "--methods", "single,cpu-only")
    assert asked.status == 1
    assert asked.err == (
        "placewright: cluster '2xP100' has no cpu: add one, or choose another method\n"
    )


def test_a_method_whose_package_is_missing_is_left_out_with_the_command_to_install_it(
    run, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    ran = run("compare", "diamond", *ON)
    assert ran.status == 0
    missing = "pymetis is not installed: pip install 'placewright[partition]'"
    assert "metis (pymetis is not installed)" in " ".join(ran.out.split())
    found = run("compare", "diamond", *ON, "--json").data
    skipped = {each["method"]: each["reason"] for each in found["skipped"]}
    assert skipped["metis"] == missing
    assert "kahip" not in skipped
    asked = run("compare", "diamond", *ON, "--methods", "single,metis")
    assert (asked.status, asked.err) == (1, f"placewright: {missing}\n")


def test_the_best_plan_goes_to_a_file(run, tmp_path):
    found = run("compare", "layered", *ON, "-o", "best.json", "--trace", "t.json", "--json").data
    best = files.load(tmp_path / "best.json", "result")
    assert best.solver == found["best"]
    assert (tmp_path / "t.json").exists()


def test_every_plan_goes_into_a_folder(run, tmp_path):
    (tmp_path / "plans").mkdir()
    ran = run("compare", "diamond", *ON, "-o", "plans")
    assert sorted(path.stem for path in (tmp_path / "plans").iterdir()) == sorted(
        set(METHODS) - LEFT_OUT
    )
    assert files.load(tmp_path / "plans" / "heft.json", "result").solver == "heft"
    assert "plan written to plans/heft.json" in ran.out


def test_what_does_not_fit_is_said_beneath(run):
    ran = run("compare", "offload", "--on", "P100", "--limit", "2GiB")
    assert ran.status == 0
    assert ran.out.startswith("no plan fits: the closest one is first, and no time can be had\n")
    assert "\n*" not in ran.out
    # 16 weights of 352 MiB are 5.5 GiB
    assert ", out of memory by 3.5 GiB" in ran.out
    assert "out of memory: single 3.5 GiB" in ran.out


def test_the_methods_that_were_done_before_an_interruption_are_shown(run, monkeypatch):
    class Hasty(pw.solvers.RandomSearch):
        def run(self, search):
            raise KeyboardInterrupt

    monkeypatch.setitem(METHODS, "random", Hasty)
    ran = run("compare", "diamond", *ON, "--json")
    assert ran.status == 130
    assert {each["method"] for each in ran.data["methods"]} == {"single", "cpu-only", "accelerate"}
    assert ran.data["interrupted"]
    assert "interrupted: " in run("compare", "diamond", *ON).out
    first = run("compare", "diamond", *ON, "--methods", "random,single")
    assert (first.status, first.out) == (130, "")


@pytest.mark.parametrize("objective", ["step", "period"])
def test_the_best_is_best_by_the_objective(run, objective):
    options = ("--objective", objective, "--no-cautious", "--json")
    found = run("compare", "layered", *ON, *options).data
    key = "step_time" if objective == "step" else "period"
    figures = {each["method"]: each[key] for each in found["methods"]}
    assert figures[found["best"]] == min(figures.values())


def test_a_plan_that_gains_only_with_fast_hand_overs_is_not_the_best(run):
    options = ("compare", "layered", *ON, "--objective", "period", "--methods", "single,cuts,auto")
    ran = run(*options)
    assert "* best by period, of plans whose gain survives slow hand-overs" in ran.out
    bold, found = run(*options, "--no-cautious", "--json").data, run(*options, "--json").data
    figures = {each["method"]: each["period"] for each in bold["methods"]}
    assert figures[bold["best"]] == min(figures.values())
    assert "criterion" not in bold
    assert found["criterion"] == "period, of plans whose gain survives slow hand-overs"
    notes = {each["method"]: each["notes"] for each in found["methods"]}
    assert notes["auto"][0].startswith("a split predicted 1.")
    assert notes["single"] == []
