"""The library's verbs: what the command line does can be said in Python, in typed words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import placewright as pw
from placewright.cli import main
from placewright.errors import ConfigError, PlanError
from placewright.solvers import Auto, CautiousChoice

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def problem():
    cluster = pw.Cluster.parse("2xP100+cpu")
    return pw.Problem(pw.zoo.load("branches:modules=2"), cluster, limits={"gpu0": "8GiB"})


@pytest.fixture(scope="module")
def result(problem):
    return pw.solve(problem, stop=pw.MaxEvaluations(300))


def test_sizes_may_be_text(problem):
    assert problem.constraints.limits == {"gpu0": 8 * 2**30}
    assert pw.Constraints(limits={"gpu0": "4GiB", "cpu": 7}).limits == {"gpu0": 4 * 2**30, "cpu": 7}
    both = pw.Problem(problem.graph, problem.cluster, limits={"gpu1": "1 MB"})
    assert both.constraints == pw.Constraints(limits={"gpu1": 10**6})
    with pytest.raises(ConfigError, match="size '4 gigs': expected"):
        pw.Constraints(limits={"gpu0": "4 gigs"})
    assert pw.units.parse_bytes("1KiB") == 1024


def test_solve_is_what_place_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["place", "layered:ops=600,seed=1", "--on", "4xP100+cpu", "--evaluations", "1500"]
    with pytest.raises(SystemExit):
        main([*words, "--no-explain", "--json"])
    placed = json.loads(capsys.readouterr().out)
    problem = pw.Problem(pw.zoo.load("layered:ops=600,seed=1"), pw.Cluster.parse("4xP100+cpu"))
    result = pw.solve(problem, stop=pw.MaxEvaluations(1500))
    assert (result.step_time, result.found_by) == (placed["step_time"], placed["found_by"])


def test_a_budget_is_text_or_seconds(problem):
    for budget in ("0.1s", 0.1):
        assert pw.solve(problem, budget=budget).seconds < 15  # 30 without a budget
    few = pw.solve(problem, Auto(), pw.MaxEvaluations(5), budget="1 min")
    assert few.evaluations == 5
    with pytest.raises(ConfigError, match="time 'soon': expected"):
        pw.solve(problem, budget="soon")


def test_an_interrupted_search_keeps_its_best_plan_on_request(problem):
    class Interrupted(pw.solvers.RandomSearch):
        def run(self, search):
            super().run(search)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pw.solve(problem, Interrupted())
    result = pw.solve(problem, Interrupted(), keep_interrupted=True)
    assert result.interrupted
    assert result.evaluations == 100


def test_measured_costs_are_chosen_from_cautiously(monkeypatch):
    graph, cluster = pw.zoo.load("chain:ops=4"), pw.Cluster.parse("P100+cpu")
    seconds = np.ones((len(graph), 2))
    names = tuple(op.name for op in graph.ops)
    asked = []
    choose = CautiousChoice.__call__
    monkeypatch.setattr(
        CautiousChoice, "__call__", lambda self, search: asked.append(1) or choose(self, search)
    )
    for machine, select, times in (("m", None, 1), ("", None, 0), ("m", "best", 0)):
        table = pw.Table(names, ("gpu", "cpu"), seconds, machine=machine)
        asked.clear()
        pw.solve(pw.Problem(graph, cluster, table), Auto(), pw.MaxEvaluations(50), select=select)
        assert len(asked) == times


def test_a_plan_is_evaluated(problem, result):
    again = pw.evaluate(problem, result.plan)
    assert (again.solver, again.evaluations) == ("given", 1)
    for figure in ("step_time", "period", "bound", "overflow"):
        assert getattr(again, figure) == getattr(result, figure)
    assert again.timeline.step_time == result.step_time
    slower = pw.Problem(problem.graph, problem.cluster, pw.Roofline(compute=0.01))
    saved = pw.evaluate(slower, result)
    assert saved.step_time > result.step_time
    assert (saved.solver, saved.history, saved.seed) == ("auto", result.history, result.seed)
    with pytest.raises(PlanError, match="plan"):
        pw.evaluate(pw.Problem(pw.zoo.load("chain"), problem.cluster), result.plan)


def test_a_method_for_another_runtime_is_evaluated_on_its_terms():
    cluster = pw.Cluster.parse("V100+cpu")
    problem = pw.Problem(pw.zoo.load("offload"), cluster, limits={"gpu0": "3GiB"})
    result = pw.solve(problem, pw.solvers.Accelerate())
    assert pw.evaluate(problem, result).step_time == result.step_time
    assert pw.evaluate(problem, result.plan).step_time < result.step_time


def test_methods_are_compared(problem):
    comparison = pw.compare(problem, ["heft", pw.solvers.RoundRobin()])
    assert [each.solver for each in comparison.results] == ["heft", "round-robin"]
    assert comparison.best.key == min(each.key for each in comparison.results)
    assert comparison.single_device.solver == "single"
    assert comparison.default is not None
    assert comparison.bound.seconds <= comparison.best.step_time
    ratio = comparison.single_device.step_time / comparison.best.step_time
    assert comparison.speedup(comparison.best) == ratio
    text = str(comparison)
    assert f"* {comparison.best.solver}" in text
    assert "best single device: " in text
    with pytest.raises(ConfigError, match="expert"):
        pw.compare(problem, ["expert"])
    everything = pw.compare(problem, stop=pw.MaxEvaluations(20))
    assert [name for name, _ in everything.skipped] == ["expert"]
    assert everything.single_device is everything.results[0]


def test_terminal_and_page_say_the_same(problem, result, tmp_path):
    explanation = pw.explain(problem, result)
    assert str(explanation).startswith(explanation.sentence)
    pw.report(result, tmp_path / "r.html", explanation=explanation)
    page = (tmp_path / "r.html").read_text()
    assert explanation.sentence.split(";")[0].replace("→", "\\u2192")[:40] in page
    pw.report(pw.compare(problem, ["heft"]), tmp_path / "c.html")
    pw.save(result, tmp_path / "r.json")
    loaded = pw.load(tmp_path / "r.json", "result")
    with pytest.raises(PlanError, match="give it as problem="):
        pw.report([loaded], tmp_path / "l.html")
    pw.report([loaded], tmp_path / "l.html", problem=problem)
    assert pw.plot(result, "graph").svg.startswith("<svg")
    assert pw.diff(result, loaded).is_empty


@pytest.mark.slow
def test_a_model_is_profiled_and_placed_on_this_machine(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval()
    profile = pw.profile(model, torch.rand(4, 64), workers=1, budget=0.5, limits={"cpu": "1GiB"})
    assert profile.costs.machine == profile.machine.machine.key
    problem = profile.problem()
    assert problem.constraints.limits == {"cpu": 2**30}
    assert problem.graph is profile.graph
    result = pw.solve(problem, stop=pw.MaxEvaluations(10))
    assert result.step_time > 0
    assert profile.problem(limits={"cpu": "2GiB"}).constraints.limits == {"cpu": 2**31}


SCRIPT = """
import placewright as pw

graph = pw.zoo.load("transformer:blocks=8,tokens=512")
problem = pw.Problem(graph, pw.Cluster.parse("V100+cpu"), limits={"gpu0": "3GiB"})
result = pw.solve(problem, budget="10s", seed=0)
timeline = pw.simulate(problem, result.plan)
pw.plot(result, "timeline").save("step.svg")
comparison = pw.compare(problem, ["heft", pw.solvers.Auto()], stop=pw.MaxTime(1))
explanation: pw.Explanation = pw.explain(problem, comparison.best)
pw.report(comparison, "r.html", explanation=explanation)
pw.reporting.save_trace(problem, timeline, "trace.json")
moved: int = len(pw.diff(result, pw.evaluate(problem, result.plan)).moves)
recipe = pw.training.find_recipe("colocrl")
size: int = pw.units.parse_bytes("4GiB")
reveal_type(pw.zoo.load)
reveal_type(pw.profile)
"""


@pytest.mark.slow
def test_a_users_script_is_typed(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml"),
            *("--no-incremental", "--follow-imports=silent", "script.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Any" not in ran.stdout.splitlines()[0]
    assert "-> placewright.profiling.model_profile.Profile" in ran.stdout
