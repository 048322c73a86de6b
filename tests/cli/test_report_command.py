"""`placewright report`, and `--report` of `place` and `compare`: the page is that of the files."""

from __future__ import annotations

import json

import pytest

import placewright as pw
from placewright import files
from placewright.cli.problem_options import ProblemOptions
from placewright.errors import ConfigError
from placewright.units import format_seconds

MODEL = "branches:modules=2"
ON = ("--on", "2xP100+cpu")


@pytest.fixture
def page(tmp_path):
    """The data that a page is drawn from."""

    def read(name="report.html"):
        text = (tmp_path / name).read_text()
        return json.loads(text.partition('id="data">')[2].partition("</script>")[0])

    return read


def test_place_writes_a_page_about_its_own_plan(run, page):
    ran = run("place", MODEL, *ON, "--report", "page.html", "--json")
    found, shown = ran.data, page("page.html")
    best = shown["methods"][shown["answer"]]
    assert shown["model"] == MODEL
    assert best["name"] == "auto"
    assert (best["step_time"], best["bound"]) == (found["step_time"], found["bound"])
    assert [each["name"] for each in shown["methods"]] == ["auto", "single", "accelerate"]
    assert shown["methods"][shown["single"]]["step_time"] == found["best_single"]["step_time"]
    assert shown["single_device"] == found["best_single"]["device"]
    assert len(shown["helps"]) >= 1
    assert all("→" in words for words in shown["helps"])


def test_a_slow_method_is_not_hidden_behind_a_better_baseline(run, page):
    run("place", MODEL, *ON, "--method", "cpu-only", "--report", "page.html")
    shown = page("page.html")
    best, single = shown["methods"][shown["answer"]], shown["methods"][shown["single"]]
    assert best["name"] == "cpu-only"
    assert single["value"] < best["value"]


def test_compare_writes_a_page_of_all_methods(run, page):
    ran = run("compare", MODEL, *ON, "--report", "page.html")
    assert "report written to page.html: open it in a browser" in ran.out
    shown = page("page.html")
    names = [each["name"] for each in shown["methods"]]
    left_out = {*pw.solvers.ON_REQUEST, "expert"}
    assert names == [name for name in pw.solvers.METHODS if name not in left_out]
    assert [each[0] for each in shown["skipped"]] == ["expert"]
    assert all(each["plan"] is not None for each in shown["methods"])


def test_a_page_is_made_again_from_what_was_saved(run, page, tmp_path):
    folder = tmp_path / "plans"
    folder.mkdir()
    options = ("--limit", "gpu0=2GiB", "--pin", "head.*=gpu1", "--objective", "period")
    run("compare", MODEL, *ON, *options, "-o", "plans", "--report", "first.html")
    first = page("first.html")
    saved = [str(folder / f"{each['name']}.json") for each in first["methods"]]  # of ties the first
    assert sorted(saved) == sorted(map(str, folder.glob("*.json")))
    ran = run("report", *saved, "-o", "again.html")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "report written to again.html: open it in a browser\n"
    again = page("again.html")
    methods = {each.pop("name"): each for each in first["methods"]}
    for each in again["methods"]:
        before = methods[each.pop("name")]
        for data in (each, before):
            data.pop("plan")
        assert each == before
    assert again["objective"] == "period"
    for key in ("ops", "graph", "devices", "channels", "sentence", "tick"):
        assert again[key] == first[key]


def test_a_result_file_says_what_was_asked_for(run, tmp_path):
    run("place", MODEL, *ON, "--limit", "8GiB", "--reserve", "gpu0=2GiB", "-o", "plan.json")
    result = files.load(tmp_path / "plan.json", "result")
    assert result.options == {
        "model": MODEL,
        "on": "2xP100+cpu",
        "limit": ("8GiB",),
        "reserve": ("gpu0=2GiB",),
    }


def test_a_plan_without_a_problem_asks_for_it(run, page, tmp_path):
    problem = pw.Problem(pw.zoo.load(MODEL), pw.Cluster.parse("2xP100+cpu"))
    plan = pw.Plan.of(problem, problem.legalize([0] * len(problem.graph)))
    pw.save(plan, tmp_path / "mine.json")
    ran = run("report", "mine.json")
    assert ran.status == 1
    assert ran.err == (
        "placewright: mine.json: does not name its problem: give the model with --model "
        "and the cluster with --on, as when it was made\n"
    )
    assert run("report", "mine.json", "--model", MODEL, *ON).status == 0
    assert page()["methods"][0]["name"] == "mine"
    assert page()["methods"][0]["step_time"] == pw.simulate(problem, plan).step_time


def test_another_model_or_cluster_is_refused(run):
    run("place", MODEL, *ON, "-o", "plan.json")
    ran = run("report", "plan.json", "--model", "branches:modules=3", *ON)
    assert ran.status == 1
    assert "plan.json: was made for another graph than" in ran.err
    assert "name the one it was made for with --model" in ran.err
    ran = run("report", "plan.json", "--on", "4xP100+cpu")
    assert "plan.json: was made for another cluster than '4xP100+cpu' is now" in ran.err


def test_figures_that_are_no_longer_so_are_noted(run, page, tmp_path):
    run("place", MODEL, *ON, "-o", "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    true = data["step_time"]
    data["step_time"] = true / 2
    (tmp_path / "plan.json").write_text(json.dumps(data))
    ran = run("report", "plan.json", "--json")
    (note,) = ran.data["notes"]
    assert note == (
        f"plan.json took {format_seconds(true / 2)} when it was saved, "
        f"{format_seconds(true)} here: costs, limits or rules are not the same"
    )
    assert page()["notes"] == [note]
    assert ran.data["methods"][0]["step_time"] == true


def test_two_results_of_one_method_are_told_apart(run, page):
    for seed in (1, 2):
        run("place", MODEL, *ON, "--method", "random", "--seed", seed, "-o", f"seed{seed}.json")
    run("report", "seed1.json", "seed2.json", "-o", "both.html")
    names = [each["name"] for each in page("both.html")["methods"]]
    assert names[:2] == ["random (seed1)", "random (seed2)"]


def test_accelerate_is_rebuilt_as_its_runtime_runs_it(run, page):
    model, on = "transformer:blocks=4,tokens=64", ("--on", "V100+cpu", "--limit", "gpu0=2GiB")
    run("place", model, *on, "--method", "accelerate", "-o", "plan.json", "--report", "first.html")
    assert run("report", "plan.json", "--json").data["notes"] == []
    assert page()["methods"][0]["step_time"] == page("first.html")["methods"][0]["step_time"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"modle": "x"}, "made with 'modle': did you mean 'model'"),
        ({"model": True}, "made with model True: expected text"),
        ({"model": "x", "limit": "8GiB"}, "made with limit '8GiB': expected a list of texts"),
        ({"model": "x", "training": "no"}, "expected true or false"),
        ({"model": "x", "objective": "steps"}, "objective 'steps': did you mean 'step'"),
        ({"model": "evil.py:build"}, "has to be run: add --model evil.py:build if you trust it"),
    ],
)
def test_what_a_file_says_was_asked_for_is_not_trusted(words, message):
    with pytest.raises(ConfigError, match=message):
        ProblemOptions.from_dict(words, ProblemOptions())


def test_words_and_back():
    words = {
        "model": "m",
        "on": "2xP100",
        "training": True,
        "dims": ("a=1", "b=2"),
        "costs": "c.json",
    }
    asked = ProblemOptions.from_dict(words, ProblemOptions())
    assert asked.to_dict() == words
    old = ProblemOptions.from_dict({"model": "m", "use": "gpu0"}, ProblemOptions())
    assert old.to_dict() == {"model": "m", "devices": "gpu0"}
    assert ProblemOptions("m").to_dict() == {"model": "m"}
    other = ProblemOptions.from_dict(words, ProblemOptions(on="4xP100", dims=["a=3"]))
    assert other.to_dict() == words | {"on": "4xP100", "dims": ("a=3",)}


def test_bad_places_are_told_before_any_work(run):
    for command in (("place", MODEL, *ON, "--report"), ("report", "plan.json", "-o")):
        ran = run(*command, "nowhere/page.html")
        assert ran.status == 1
        assert "nowhere/page.html: cannot be written: there is no folder 'nowhere'" in ran.err
    assert "there is no such file" in run("report", "missing.json").err
