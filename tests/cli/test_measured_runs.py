"""`train --measure` and `place --measure --journal`: a killed process loses no measured plan."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from placewright.cli import main
from placewright.runtime import Measurement, Meter
from placewright.runtime.measurement_journal import plan_digest

pytest.importorskip("torch")

MODEL = """
import torch

def build():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8) for _ in range(4)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(2, 8),), {}
"""
JOURNAL = "run/measurements.journal"
SMALL = ("--groups", "6", "--hidden", "8", "--evaluations", "40", "--grouping", "op")
TRAIN = ("train", "colocrl", "model.py:build", "--on", "2xcpu", "--measure", *SMALL)
RESUME = ("train", "colocrl", "model.py:build", "--resume", "run")
PLACE = (
    *("place", "model.py:build", "--on", "2xcpu", "--measure", "9", "--no-explain"),
    *("--evaluations", "300", "--workers", "threads:1"),
)
MAX_SECONDS = 120.0  # after which something hangs


def records(path):
    """The measurements of a journal, in their order; of a half-written last line nothing."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    read = [json.loads(line.partition(b" ")[2]) for line in lines]
    return [
        each["record"]
        for each in read
        if each.get("section") == "measurements" and "record" in each
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setenv("PLACEWRIGHT_STORE", "none")
    return tmp_path


@pytest.fixture
def requests(folder, monkeypatch):
    """The plans that processes were to run so far; a step takes what the plan's digest says."""
    log = folder / "requests.log"
    log.touch()

    def request(self, plan):
        digest = plan_digest(plan)
        with log.open("a") as stream:
            stream.write(f"{digest}\n")
        time.sleep(0.01)
        return Measurement(1e-3 * (1 + int(digest[:4], 16) / 65536), spread=0.1)

    monkeypatch.setattr(Meter, "_request", request)
    return lambda: log.read_text().split()


def start(arguments):
    """Run a command in a fork of this process, which has imported everything."""
    pid = os.fork()
    if pid:
        return pid
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        main([str(each) for each in arguments])
    finally:
        os._exit(1)


def kill_when(is_reached, pid):
    """Kill a process as soon as something has happened, unless it ends before."""
    deadline = time.monotonic() + MAX_SECONDS
    while not is_reached() and not os.waitpid(pid, os.WNOHANG)[0]:
        assert time.monotonic() < deadline, "the command hangs"
        time.sleep(0.002)
    else:
        if is_reached():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_plans_are_measured_and_the_fastest_is_shown_beside_single_devices(run, folder, requests):
    ran = run(*TRAIN, "--run-dir", "run", "--json", "-o", "plan.json")
    assert ran.status == 0, ran.err
    measured = ran.data["measured"]
    seconds = [row["seconds"] for row in records(folder / JOURNAL)]
    assert len(seconds) > 4
    assert measured[0]["seconds"] == ran.data["rows"][-1]["best"] == min(seconds[2:])
    names = {row["found_by"] for row in measured[1:]}
    assert names <= {"all on cpu0", "all on cpu1"}
    assert Counter(requests()).most_common(1)[0][1] == 1
    text = run(*RESUME)  # it is finished: nothing is measured again
    assert "measured on this machine; the policy's fastest plan is taken" in text.out
    assert len(requests()) == len(seconds)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
@pytest.mark.parametrize(
    ("first", "again", "journal"),
    [
        ((*TRAIN, "--run-dir", "run"), RESUME, JOURNAL),
        ((*PLACE, "--journal", "a.journal"), (*PLACE, "--journal", "a.journal"), "a.journal"),
    ],
    ids=["train", "place"],
)
def test_a_killed_process_goes_on_to_the_same_plan_and_measures_none_twice(
    run, folder, requests, first, again, journal
):
    whole = run(*first, "--json", "-o", "whole.json").data
    undisturbed = records(folder / journal)
    os.rename(folder / journal, folder / "undisturbed")
    for path in folder.glob("run/*"):
        path.unlink()
    (folder / "requests.log").write_text("")
    kills, written = 3, []
    for kill in range(kills):
        count = len(requests()) + 1 + 2 * kill
        is_begun = (folder / "run" / "checkpoint.json").exists() or first == again
        kill_when(lambda count=count: len(requests()) >= count, start(again if is_begun else first))
        assert records(folder / journal)[: len(written)] == written
        written = records(folder / journal)
    is_begun = (folder / "run" / "checkpoint.json").exists()
    end = run(*(again if is_begun else first), "--json", "-o", "end.json").data
    assert records(folder / journal) == undisturbed
    # Of each killed process at most the plan is run again that it had not finished.
    assert len(undisturbed) <= len(requests()) <= len(undisturbed) + kills
    assert (end["step_time"], end["measured"]) == (whole["step_time"], whole["measured"])
    assert end.get("rows") == whole.get("rows")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "place"])
def test_twenty_kills_lose_no_measured_plan(folder, command):
    """Whole processes, and plans that are run."""
    journal = folder / (JOURNAL if command == "train" else "a.journal")
    first = (*TRAIN, "--run-dir", "run") if command == "train" else (*PLACE, "--journal", journal)
    rng, written, status = random.Random(0), [], None
    for kill in range(21):
        is_begun = command == "train" and (folder / "run" / "checkpoint.json").exists()
        arguments = [str(each) for each in (RESUME if is_begun else first)]
        child = subprocess.Popen(
            [sys.executable, "-m", "placewright", *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline, count = time.monotonic() + MAX_SECONDS, len(written) + rng.randrange(3)
        while kill < 20 and child.poll() is None and len(records(journal)) < count:
            assert time.monotonic() < deadline, "the command hangs"
            time.sleep(0.01)
        if kill < 20:
            time.sleep(0.3 * rng.random())
            child.kill()
        _, errors = child.communicate(timeout=MAX_SECONDS)
        status = child.returncode
        assert status in (0, -signal.SIGKILL), errors
        found = records(journal)
        assert found[: len(written)] == written
        written = found
    assert status == 0
    counts = Counter(row["plan"] for row in written)
    assert counts.most_common(1)[0][1] == 1
