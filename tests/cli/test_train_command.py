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

MODEL = ("--graph", "branches:modules=1", "--on", "2xP100+cpu")
SMALL = ("--groups", "8", "--hidden", "16", "--plans", "60")


def test_it_trains_and_keeps_the_best_plan_and_the_policy(run, tmp_path):
    ran = run("train", "colocrl", *MODEL, *SMALL, "-o", "plan.json", "--report", "page.html")
    assert ran.status == 0
    head = ran.out.splitlines()[1].split()
    assert head[:5] == ["plans", "best", "mean", "argmax", "entropy"]
    assert "policy and checkpoint kept in runs/colocrl-branches-modules-1" in ran.out
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
    ran = run("train", "colocrl", *MODEL, *SMALL, "--run", "mine")
    assert ran.status == 130
    assert "go on with placewright train --resume mine" in " ".join(ran.out.split())
    monkeypatch.setattr(Trainer, "update", update)
    rest = run("train", "--resume", "mine", "--json").data
    assert rest["rows"] == whole["rows"]
    assert rest["step_time"] == whole["step_time"]
    refused = run("train", "--resume", "mine", "--seed", "4")
    assert refused.status == 1
    assert "was begun with seed 0" in refused.err
    taken = run("train", "colocrl", *MODEL, "--run", "mine")
    assert taken.status == 1
    assert "go on with --resume mine" in taken.err


def test_bad_words_are_answered_in_a_line(run):
    for arguments, status, words in (
        (("train", "colocr", *MODEL), 1, "did you mean 'colocrl'"),
        (("train", *MODEL), 1, "no recipe is named"),
        (("train", "colocrl", "--on", "2xP100"), 2, "name a network"),
        (("train", "--resume", "nowhere"), 1, "no such file"),
        (("train", "hierarchical", *MODEL, "--grouping", "coarse"), 1, "learns its groups"),
    ):
        ran = run(*arguments)
        assert ran.status == status
        assert words in " ".join(ran.err.split())


def test_tensorboard_logs_hold_the_curve(run, tmp_path):
    pytest.importorskip("tensorboard")
    code = (
        "from placewright.cli import main\n"
        f"main(['train', 'colocrl', *{MODEL!r}, *{SMALL!r}, '--run', 'r', '--track', '--json'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "r")).Reload()
    best = events.Scalars("step time/best")
    assert best[-1].value == pytest.approx(json.loads(ran.stdout)["step_time"], rel=1e-5)
    assert len(events.Scalars("policy/entropy share")) == len(best) > 3


def test_ctrl_c_ends_a_real_process_with_its_state_saved(tmp_path):
    arguments = ["train", "colocrl", *MODEL, "--groups", "8", "--hidden", "16", "--run", "r"]
    process = subprocess.Popen(
        [sys.executable, "-m", "placewright", *arguments, "--plans", "1000000"],
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
    assert "go on with placewright train --resume r" in " ".join(out.split())
    kept = json.loads((tmp_path / "r" / "checkpoint.json").read_text())
    assert kept["updates"] >= 1
    assert not kept["over"]


FAMILY = ("--graphs", "cifar10", "--on", "2xK80", "--groups", "4", "--hidden", "4")


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
    ran = run("train", "placeto", *FAMILY, "--plans", "120", "--json")
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
    shown = run("train", "colocrl", *FAMILY, "--plans", "30")
    assert shown.status == 0
    assert "graph never shown" in shown.out
    for words, said in (
        (("hierarchical", *FAMILY), "cannot learn from several"),
        (("placeto", *FAMILY, "--graph", "nmt-2"), "keep one"),
        (("placeto", *FAMILY, "-o", "plan.json"), "have no one plan"),
        (("colocrl", *FAMILY, "--times"), "knows no start times"),
    ):
        refused = run("train", *words)
        assert refused.status == 1
        assert said in " ".join(refused.err.split())


def test_a_run_on_a_family_goes_on_to_the_same_end(run, few, monkeypatch):
    from placewright.training import Trainer

    asked = ("train", "placeto", *FAMILY, "--times", "--plans", "700")
    whole = run(*asked, "--json").data
    update = Trainer.update

    def interrupted(self):
        update(self)
        if self.updates == 4:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "update", interrupted)
    ran = run(*asked, "--run", "mine")
    assert ran.status == 130
    assert "go on with placewright train --resume mine" in " ".join(ran.out.split())
    monkeypatch.setattr(Trainer, "update", update)
    rest = run("train", "--resume", "mine", "--json").data
    assert len(rest["rounds"]) > 1
    assert rest["rounds"] == whole["rounds"]
    assert rest["tests"] == whole["tests"]
