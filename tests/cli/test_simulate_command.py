"""`placewright simulate`: a plan that is there already, judged."""

from __future__ import annotations

import json

import pytest

import placewright as pw
from placewright import files

ON = ("--on", "2xP100+cpu")


def test_a_plan_that_was_written_has_the_same_figures_again(run):
    placed = run("place", "fork-join", *ON, "-o", "plan.json", "--json").data
    again = run("simulate", "fork-join", *ON, "--plan", "plan.json", "--json").data
    for key in ("method", "step_time", "period", "bound", "fits", "devices", "best_single"):
        assert again[key] == placed[key]
    assert again["evaluations"] == 1


def test_the_same_tables_are_shown(run):
    run("place", "fork-join", *ON, "-o", "plan.json")
    ran = run("simulate", "fork-join", *ON, "--plan", "plan.json", "--trace", "trace.json")
    assert ran.status == 0
    assert "\ndevice " in ran.out
    assert "\nmemory " in ran.out
    assert "trace written to trace.json" in ran.out


def test_a_bare_plan_needs_no_method(run, tmp_path):
    problem = pw.Problem(pw.zoo.load("diamond"), pw.Cluster.parse("2xP100+cpu"))
    pw.save(pw.Plan.of(problem, [0, 0, 1, 0]), tmp_path / "bare.json")
    ran = run("simulate", "diamond", *ON, "--plan", "bare.json")
    assert ran.out.splitlines()[1].split(",")[0].startswith("step time ")
    assert " by " not in ran.out.splitlines()[1]
    found = run("simulate", "diamond", *ON, "--plan", "bare.json", "--json").data
    assert found["method"] == "given"
    timeline = pw.simulate(problem, files.load(tmp_path / "bare.json", "plan"))
    assert found["step_time"] == timeline.step_time


def test_a_split_of_a_workload_is_a_plan(run, workload, split):
    found = run("simulate", workload, "--plan", split, "--objective", "period", "--json").data
    # The second device computes 6 + 2 ms and pays 1 ms for what it receives.
    assert found["period"] == pytest.approx((6 + 2 + 1) / 1000)
    assert found["method"] == "split"
    shown = run("simulate", workload, "--plan", split, "--objective", "period").out
    # 12 ms on one accelerator against 9
    assert "period 9 ms by split, 1.33× faster than gpu0 alone (12 ms)" in shown


def test_a_plan_that_does_not_fit_is_an_answer(run):
    run("place", "offload", "--on", "P100+cpu", "--method", "single", "-o", "plan.json")
    ran = run("simulate", "offload", "--on", "P100+cpu", "--limit", "2GiB", "--plan", "plan.json")
    assert ran.status == 0
    assert "does not fit" in ran.out


def test_a_plan_that_breaks_a_pin_is_refused_by_name(run):
    run("place", "chain:ops=3", *ON, "--method", "single", "-o", "plan.json")
    ran = run("simulate", "chain:ops=3", *ON, "--plan", "plan.json", "--pin", "op1=cpu")
    assert ran.status == 1
    assert ran.err == (
        "placewright: plan.json: op 'op1' is on 'gpu0': the constraints allow it on cpu\n"
    )


def test_a_staging_buffer_that_is_too_small_is_enlarged_and_said(run, tmp_path, caplog):
    options = ("--on", "P100+cpu", "--limit", "3GiB")
    run("place", "offload", *options, "--method", "streamed", "-o", "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())["plan"]
    data["staging"] = {"gpu0": 7}
    (tmp_path / "small.json").write_text(json.dumps(data))
    ran = run("simulate", "offload", *options, "--plan", "small.json")
    assert ran.status == 0
    assert "the staging buffer on gpu0 is 7 B, and an op streams 352 MiB of weights" in caplog.text
    data["staging"] = {"gpu0": 352 * 2**20}
    (tmp_path / "enough.json").write_text(json.dumps(data))
    assert run("simulate", "offload", *options, "--plan", "enough.json").out == ran.out


def test_a_staging_room_beyond_all_memory_is_said_in_a_line(run, tmp_path):
    run("place", "chain:ops=3", *ON, "--method", "single", "-o", "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())["plan"]
    data["staging"] = {"gpu0": 2**63 - 1}
    (tmp_path / "huge.json").write_text(json.dumps(data))
    ran = run("simulate", "chain:ops=3", *ON, "--plan", "huge.json")
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err == (
        "placewright: huge.json: the plan stages 9223372036854775807 bytes on 'gpu0': "
        "expected 0 to 2**50 bytes, or -1 for none\n"
    )


def test_steps_in_flight_are_shown_beside_the_step(run):
    run("place", "chain", *ON, "--method", "balanced", "--objective", "period", "-o", "plan.json")
    asked = ("simulate", "chain", *ON, "--plan", "plan.json", "--in-flight", "4")
    flight = run(*asked, "--json").data["in_flight"]
    assert flight["steps"] == 4
    assert flight["interval"] == pytest.approx(run(*asked, "--json").data["period"])
    assert "4 steps in flight: " in run(*asked).out
    assert run(*asked[:-1], "1").status == 2
