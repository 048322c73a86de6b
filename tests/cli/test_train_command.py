"""`placewright train`: it trains, keeps what it has learned, and goes on after an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

MODEL = ("branches:modules=1", "--on", "2xP100+cpu")
SMALL = ("--groups", "8", "--hidden", "16", "--evaluations", "60")


def test_it_trains_and_keeps_the_best_plan_and_the_policy(run, tmp_path):
    ran = run("train", "colocrl", *MODEL, *SMALL, "-o", "plan.json", "--report", "page.html")
    assert ran.status == 0
    head = ran.out.splitlines()[1].split()
    assert head[:5] == ["plans", "best", "mean", "argmax", "entropy"]
    assert "policy and checkpoint are in runs/colocrl-branches-modules-1" in ran.out
    kept = tmp_path / "runs" / "colocrl-branches-modules-1"
    assert (kept / "checkpoint.json").exists()
    assert (tmp_path / "page.html").exists()
    again = run("simulate", "branches:modules=1", "--on", "2xP100+cpu", "--plan", "plan.json")
    assert again.status == 0
    second = run("train", "colocrl", *MODEL, *SMALL, "--json")
    assert second.data["run"] == "runs/colocrl-branches-modules-1-2"


def test_json_has_the_learning_curve_and_the_same_seed_repeats_it(run):
    one, same, other = (
        run("train", "hierarchical", *MODEL, *SMALL, "--seed", seed, "--json").data
        for seed in (0, 0, 1)
    )
    assert one["recipe"] == "hierarchical"
    assert one["evaluations"] <= 60
    assert one["rows"] == same["rows"]
    assert one["rows"] != other["rows"]
    assert one["rows"][-1]["best"] == one["step_time"]
    assert {"plans", "mean", "entropy", "infeasible"} <= set(one["rows"][0])


def test_a_run_goes_on_to_the_same_end(run, tmp_path, monkeypatch):
    from placewright.training import Trainer

    whole = run("train", "colocrl", *MODEL, *SMALL, "--json").data
    update = Trainer.update

    def interrupted(self):
        update(self)
        if self.updates == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "update", interrupted)
    ran = run("train", "colocrl", *MODEL, *SMALL, "--run-dir", "mine")
    assert ran.status == 130
    assert "continue with placewright train --resume mine" in " ".join(ran.out.split())
    monkeypatch.setattr(Trainer, "update", update)
    rest = run("train", "--resume", "mine", "--json").data
    assert rest["rows"] == whole["rows"]
    assert rest["step_time"] == whole["step_time"]
    refused = run("train", "--resume", "mine", "--seed", "4")
    assert refused.status == 1
    assert "was begun with seed 0" in refused.err
    taken = run("train", "colocrl", *MODEL, "--run-dir", "mine")
    assert taken.status == 1
    assert "continue it with --resume mine" in taken.err


def test_any_workers_and_none_end_with_the_same_policy(run, tmp_path):
    small = ("--groups", "6", "--hidden", "8", "--evaluations", "40", "--json")
    ran = [
        run("train", "colocrl", *MODEL, *small, *mode, "--run-dir", f"run{at}").data
        for at, mode in enumerate((("--workers", "threads:2"), ("--micro-batch", "2")))
    ]
    assert ran[0]["rows"] == ran[1]["rows"]
    policies = [next((tmp_path / f"run{at}").glob("policy.*.safetensors")) for at in range(2)]
    assert policies[0].read_bytes() == policies[1].read_bytes()
    # A run goes on in its micro-batches, with workers or without.
    more = ("--evaluations", "60", "--json")
    alone = run("train", "--resume", "run0", *more).data
    helped = run("train", "--resume", "run1", *more, "--workers", "threads:3").data
    assert alone["rows"] == helped["rows"]
    other = run("train", "--resume", "run0", "--micro-batch", "1")
    assert "was begun with micro_batch 2" in other.err
    run("train", "colocrl", *MODEL, *small, "--run-dir", "whole")
    whole = run("train", "--resume", "whole", "--workers", "threads:2")
    assert whole.status == 1
    assert "was begun without workers" in whole.err


def test_controllers_train_and_resume(run):
    small = ("--groups", "6", "--hidden", "8", "--evaluations", "40")
    mode = ("--asynchronous", "2:4", "--workers", "threads:2")
    ran = run("train", "colocrl", *MODEL, *small, *mode, "--run-dir", "mine", "--json")
    assert ran.status == 0
    assert 35 < ran.data["evaluations"] <= 40
    more = run("train", "--resume", "mine", "--evaluations", "80", "--workers", "threads:1")
    assert more.status == 0
    both = run("train", "colocrl", *MODEL, *mode, "--micro-batch", "2")
    assert both.status == 1
    assert "leave out --micro-batch and --episodes" in " ".join(both.err.split())
    wrong = run("train", "go", *MODEL, *mode)
    assert wrong.status == 1
    assert "recipe 'go' has phases and episodes of its own" in " ".join(wrong.err.split())


def test_episodes_of_an_update_can_be_set(run):
    small = ("--groups", "6", "--hidden", "8", "--evaluations", "40", "--json")
    rows = run("train", "colocrl", *MODEL, *small, "--episodes", "8").data["rows"]
    assert rows[0]["plans"] == 9  # and the argmax plan


def test_a_run_of_a_python_file_is_resumed_once_its_name_is_typed(run, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), "
        "(torch.zeros(2, 4),)\n"
    )
    words = ("pair", "net.py:build")
    assert (
        run("train", *words, "--on", "2xP100", "--evaluations", "4", "--run-dir", "r").status == 0
    )
    more = ("--resume", "r", "--evaluations", "8")
    refused = run("train", *more)
    assert refused.status == 1
    assert "add the arguments pair net.py:build if you trust it" in refused.err
    assert "--model" not in refused.err
    assert run("train", *words, *more).status == 0


def test_bad_words_are_answered_in_a_line(run):
    for arguments, status, words in (
        (("train", "colocr", *MODEL), 1, "did you mean 'colocrl'"),
        (("train", *MODEL), 1, "no recipe is named 'branches:modules=1'"),
        (("train",), 1, "no recipe is named: name one of colocrl"),
        (("train", "colocrl", "--on", "2xP100"), 2, "name a model"),
        (("train", "--resume", "nowhere"), 1, "no such file"),
        (("train", "hierarchical", *MODEL, "--grouping", "coarse"), 1, "learns its groups"),
    ):
        ran = run(*arguments)
        assert ran.status == status
        assert words in " ".join(ran.err.split())


def test_a_simulator_that_cannot_judge_the_plans_is_refused(run):
    other = run("train", "colocrl", *MODEL, *SMALL, "--simulator", "tpu")
    assert "no simulator is named 'tpu': expected cpu or gpu" in other.err
    orders = run("train", "go", *MODEL, "--simulator", "gpu")
    assert "'go' gives each plan its own order" in orders.err
    controllers = run("train", "colocrl", *MODEL, "--asynchronous", "1:4", "--simulator", "gpu")
    assert "leave out --simulator gpu or --asynchronous" in controllers.err
    assert {other.status, orders.status, controllers.status} == {1}


@pytest.mark.filterwarnings("ignore")  # those of TensorBoard's own imports
def test_tensorboard_logs_hold_the_curve(run, tmp_path):
    pytest.importorskip("tensorboard")
    ran = run("train", "colocrl", *MODEL, *SMALL, "--run-dir", "r", "--tensorboard", "--json")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "r")).Reload()
    best = events.Scalars("step time/best")
    assert best[-1].value == pytest.approx(ran.data["step_time"], rel=1e-5)
    assert len(events.Scalars("policy/entropy share")) == len(best) > 3


def test_ctrl_c_ends_a_real_process_with_its_state_saved(tmp_path):
    arguments = ["train", "colocrl", *MODEL, "--groups", "8", "--hidden", "16", "--run-dir", "r"]
    process = subprocess.Popen(
        [sys.executable, "-m", "placewright", *arguments, "--evaluations", "1000000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "r").exists():  # training has begun
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with placewright train --resume r" in " ".join(out.split())
    kept = json.loads((tmp_path / "r" / "checkpoint.json").read_text())
    assert kept["updates"] >= 1
    assert not kept["finished"]


FAMILY = ("--family", "cifar10", "--on", "2xK80", "--groups", "4", "--hidden", "4")


@pytest.fixture
def few(monkeypatch):
    """Families of three graphs to train on and one to test."""
    from placewright.zoo import families

    whole = families.family
    monkeypatch.setattr(
        families,
        "family",
        lambda name, part="all": whole(name, part)[: 3 if part == "train" else 1],
    )


def test_a_family_is_trained_on_and_its_other_graphs_are_placed(run, few, tmp_path):
    ran = run("train", "placeto", *FAMILY, "--evaluations", "120", "--json")
    assert ran.status == 0
    # Three graphs with eight episodes and at most one likeliest plan each: 27 plans a round.
    assert [row["round"] for row in ran.data["rounds"]] == [1, 2, 3, 4]
    assert 0 < ran.data["rounds"][-1]["best"] <= ran.data["rounds"][0]["best"]
    (test,) = ran.data["tests"]
    assert test["graph"].startswith("cifar10:graph=")
    assert test["of_16"] <= test["greedy"]
    from placewright import policies

    kept = policies.load(tmp_path / ran.data["run"] / "policy.json")
    assert kept.name == "placeto"
    shown = run("train", "colocrl", *FAMILY, "--evaluations", "30")
    assert shown.status == 0
    assert "test graph" in shown.out
    for words, said in (
        (("hierarchical", *FAMILY), "cannot learn from several"),
        (("placeto", "nmt-2", *FAMILY), "MODEL and --family are both given"),
        (("placeto", *FAMILY, "-o", "plan.json"), "have no single plan"),
        (("colocrl", *FAMILY, "--start-times"), "knows no start times"),
    ):
        refused = run("train", *words)
        assert refused.status == 1
        assert said in " ".join(refused.err.split())


def test_a_run_on_a_family_goes_on_to_the_same_end(run, few, monkeypatch):
    from placewright.training import Trainer

    asked = ("train", "placeto", *FAMILY, "--start-times", "--evaluations", "700")
    whole = run(*asked, "--json").data
    update = Trainer.update

    def interrupted(self):
        update(self)
        if self.updates == 4:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "update", interrupted)
    ran = run(*asked, "--run-dir", "mine")
    assert ran.status == 130
    assert "continue with placewright train --resume mine" in " ".join(ran.out.split())
    monkeypatch.setattr(Trainer, "update", update)
    rest = run("train", "--resume", "mine", "--json").data
    assert len(rest["rounds"]) > 1
    assert rest["rounds"] == whole["rounds"]
    assert rest["tests"] == whole["tests"]


def test_the_names_of_release_0_1_are_read_with_a_warning(run):
    old = ("--graph", "branches:modules=1", "--plans", "20", "--run", "old")
    ran = run("train", "colocrl", "--on", "2xP100+cpu", "--groups", "8", "--hidden", "16", *old)
    assert ran.status == 0
    for name, new in (("--graph MODEL", "the argument MODEL"), ("--plans", "--evaluations")):
        assert f"{name} is now {new}" in ran.err
    assert "policy and checkpoint are in old" in ran.out


def test_help_names_every_recipe():
    from placewright.cli.names import RECIPE_NAMES
    from placewright.training import RECIPES

    assert tuple(RECIPES) == RECIPE_NAMES


def test_a_finished_run_goes_on_with_more_evaluations(run):
    first = run("train", "colocrl", *MODEL, *SMALL, "--run-dir", "mine", "--json").data
    same = run("train", "--resume", "mine", "--json").data
    assert same["rows"] == first["rows"]
    more = run("train", "--resume", "mine", "--evaluations", "120", "--json").data
    assert first["evaluations"] <= 60 < more["evaluations"] <= 120
    assert more["rows"][-1]["update"] > first["rows"][-1]["update"]
    assert more["step_time"] <= first["step_time"]
    again = run("train", "--resume", "mine", "--json").data  # the larger budget is kept
    assert again["evaluations"] == more["evaluations"]
    refused = run("train", "--resume", "mine", "--evaluations", "70")
    assert refused.status == 1
    assert "has a budget of 120 evaluations: expected more, not 70" in refused.err


@pytest.mark.parametrize("recipe", ["colocrl", "go", "placeto"])
def test_a_run_is_a_method(run, recipe):
    sizes = () if recipe == "go" else ("--groups", "8")
    budget = ("--hidden", "16", "--evaluations", "60", "--run-dir", "mine", "--json")
    assert run("train", recipe, *MODEL, *sizes, *budget).status == 0
    placed = run("place", *MODEL, "--method", "mine", "--json")
    assert placed.status == 0
    assert placed.data["method"] == recipe
    assert placed.data["evaluations"] == (16 if recipe == "go" else 64)
    assert run("place", *MODEL, "--method", ".").status == 1  # a folder without a run


@pytest.mark.parametrize("recipe", ["colocrl", "go", "placeto", "placeto-steps"])
def test_the_smallest_budget_prints_no_nan(run, recipe):
    sizes = () if recipe == "go" else ("--groups", "8")
    ran = run("train", recipe, *MODEL, *sizes, "--hidden", "16", "--evaluations", "1")
    assert ran.status == 0
    assert "nan" not in ran.out + ran.err
    assert "–" in ran.out


def test_the_smallest_budget_of_a_family_prints_no_nan(run, few):
    ran = run("train", "placeto", *FAMILY, "--start-times", "--evaluations", "1")
    assert ran.status == 0
    assert "nan" not in ran.out + ran.err


def test_a_budget_of_time_ends_training(run):
    ran = run(
        "train", "colocrl", *MODEL, "--groups", "8", "--hidden", "16", "--budget", "0.3s", "--json"
    )
    assert ran.status == 0
    assert ran.data["evaluations"] > 4


def test_go_is_trained_on_the_problems_of_a_file_of_demonstrations(run, tmp_path):
    from placewright.training.go.demonstrations import DemonstrationTask, make_demonstration

    tasks = [
        DemonstrationTask("branches:modules=1", cluster, "ready") for cluster in ("2xP100", "2xK80")
    ]
    rows = [make_demonstration(task, task.problem(), (50, 100), 20.0) for task in tasks]
    (tmp_path / "plans.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run(
        *("train", "go", "--demonstrations", "plans.jsonl", "--hidden", "16"),
        *("--evaluations", "100", "--json"),
    )
    assert ran.status == 0
    assert ran.data["run"] == "runs/go-plans.jsonl"
    assert len(ran.data["rounds"]) >= 1
    assert run("place", *MODEL, "--method", ran.data["run"], "--json").data["method"] == "go"
    refused = run("train", "colocrl", "--demonstrations", "plans.jsonl")
    assert "imitates no plans" in refused.err
