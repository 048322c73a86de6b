"""`--robust`: the best few plans under wrong costs, and the choice among them."""

from __future__ import annotations

import pytest

import placewright as pw
from placewright.solvers import Baselines, RobustChoice

ON = ("--on", "2xP100+cpu")
ROBUST = ("--robust", "--cost-trials", "20")


def test_place_shows_the_plans_it_chose_from(run):
    ran = run("place", "layered:ops=60", *ON, *ROBUST)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    at = lines.index("with costs perturbed by ±20 % (20 trials):")
    header = "plan by as planned median 95 % worst tenth worst"
    assert " ".join(lines[at + 1].split()) == header
    assert lines[at + 2].startswith("* ")
    assert sum(line.startswith("* ") for line in lines[at + 2 : at + 10]) == 1
    assert "* has the fewest trials over memory, then smallest mean of the worst tenth" in lines
    assert max(map(len, lines)) <= 80


def test_json_is_what_the_library_chooses(run):
    options = (*ROBUST, "--cost-noise", "0.4", "--seed", "3")
    found = run("place", "layered:ops=60", *ON, "--method", "baselines", *options, "--json").data
    problem = pw.Problem(pw.zoo.load("layered:ops=60"), pw.Cluster.parse("2xP100+cpu"))
    choose = RobustChoice(trials=20, spread=0.4, seed=3)
    same = pw.solve(problem, Baselines(), seed=3, select=choose)
    assert found["step_time"] == same.step_time
    plans = found["robust"]["plans"]
    assert plans[0]["nominal"] == found["step_time"]
    assert [plan["tail"] for plan in plans] == sorted(plan["tail"] for plan in plans)
    assert {(plan["trials"], plan["spread"]) for plan in plans} == {(20, 0.4)}
    for plan in plans:
        assert plan["median"] <= plan["p95"] <= plan["worst"]


def test_compare_scores_every_method_and_marks_the_most_robust(run):
    options = ("compare", "layered:ops=60", *ON, "--methods", "single,m-etf,cpu-only", *ROBUST)
    found = run(*options, "--json").data
    tails = {each["method"]: each["robustness"]["tail"] for each in found["methods"]}
    assert found["best"] == min(tails, key=lambda name: tails[name])
    assert found["rule"].startswith("fewest trials over memory")
    lines = run(*options).out.splitlines()
    assert "* best by robustness to cost errors, see below" in lines
    starred = [line.split()[1] for line in lines if line.startswith("* ")]
    assert starred == [found["best"], "best", found["best"], "has"]


def test_without_the_option_nothing_is_said(run):
    found = run("compare", "diamond", *ON, "--methods", "single", "--json").data
    assert "rule" not in found
    assert "robustness" not in found["methods"][0]
    assert "robust" not in run("place", "diamond", *ON, "--json").data


def test_a_robust_choice_is_not_called_the_fastest(run, monkeypatch):
    """Everything on one device is chosen here though a faster plan was tried."""
    monkeypatch.setattr(RobustChoice, "rank", lambda self, search: _gpu0_first(rank(self, search)))
    ran = run("place", "branches:modules=2", *ON, *ROBUST)
    assert "everything on " in ran.out
    assert "nothing tried is faster" not in ran.out


rank = RobustChoice.rank


def _gpu0_first(ranked):
    """Everything but the input on the first device goes before the rest."""
    return sorted(ranked, key=lambda each: set(each.candidate.plan.placement[1:].tolist()) != {0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cost-trials", "5"), "--cost-trials 5: it needs --robust: add that"),
        (("--cost-noise", "0.1"), "--cost-noise 0.1: it needs --robust: add that"),
        (("--robust", "--cost-noise", "1.5"), "a spread of 1.5: expected from 0 to below 1"),
    ],
)
def test_nonsense_is_refused(run, options, message):
    ran = run("place", "diamond", *ON, *options)
    assert ran.status == 1
    assert message in ran.err
