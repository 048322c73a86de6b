"""`--islands` and `--journal`: several searches, and one that goes on where it was stopped."""

from __future__ import annotations

import pytest

import placewright as pw
from placewright.solvers import Auto, Islands

ON = ("--on", "2xP100+cpu")
QUICK = ("--no-explain", "--json", "--evaluations", "900")


def test_islands_are_what_the_library_finds(run):
    found = run("place", "branches", *ON, *QUICK, "--islands", "2", "--workers", "threads:1").data
    problem = pw.Problem(pw.zoo.load("branches"), pw.Cluster.parse("2xP100+cpu"))
    same = pw.solve(problem, Islands(2), pw.MaxEvaluations(900), workers="threads:1")
    assert (found["step_time"], found["evaluations"]) == (same.step_time, same.evaluations)
    assert found["method"] == "islands"


def test_a_journal_changes_no_plan_and_spares_the_work_of_the_run_before(run, tmp_path):
    options = (*ON, *QUICK, "--workers", "threads:1")
    plain = run("place", "branches", *options, "-o", "plain.json").data
    first = run("place", "branches", *options, "--journal", "a.journal", "-o", "first.json").data
    size = (tmp_path / "a.journal").stat().st_size
    again = run("place", "branches", *options, "--journal", "a.journal", "-o", "again.json").data
    assert (tmp_path / "a.journal").stat().st_size == size > 1_000
    plans = [pw.load(f"{name}.json").plan for name in ("plain", "first", "again")]
    assert plans[0] == plans[1] == plans[2]
    assert plain["step_time"] == first["step_time"] == again["step_time"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "heft", "--islands", "2"), "--islands with method 'heft': only auto runs in"),
        (("--method", "heft", "--journal", "a"), "--journal with method 'heft': only auto runs in"),
        (("--journal", "missing/a"), "missing/a: cannot be opened: no such file or directory"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_no_file(run, tmp_path, options, message):
    ran = run("place", "branches", *ON, "--evaluations", "9", *options)
    assert (ran.status != 0, ran.out) == (True, "")
    assert message in ran.err
    assert not list(tmp_path.iterdir())


def test_a_run_with_a_journal_starts_from_no_stored_plan(run, tmp_path, monkeypatch):
    """What the first run stores must not make another run of the second."""
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store.sqlite"))
    options = ("place", "branches", *ON, *QUICK, "--workers", "threads:1")
    first = run(*options, "--journal", "a.journal")
    again = run(*options, "--journal", "a.journal")
    assert (first.status, again.status, again.err) == (0, 0, "")
    assert again.data["start"] is None
    assert again.data["step_time"] == first.data["step_time"]
    assert run(*options).data["start"] is not None


def test_the_method_islands_takes_the_options_of_auto(run):
    options = ("--method", "islands", "--islands", "1", "--proposer", "none", "--fuse")
    found = run("place", "branches", *ON, *QUICK, *options, "--workers", "threads:1").data
    problem = pw.Problem(pw.zoo.load("branches"), pw.Cluster.parse("2xP100+cpu"))
    auto = Auto(fuse=True, proposers=())
    assert found["step_time"] == pw.solve(problem, auto, pw.MaxEvaluations(900)).step_time
