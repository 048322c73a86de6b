"""`placewright` under torchrun: two ranks on the loopback interface stand for two hosts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

MODEL = """
import os, signal, threading, time
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    return model.eval(), (torch.randn(2, 8),), {}

class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build()[0]

    def forward(self, x):
        return (self.inner(x) - x).square().mean()

def build_training():
    torch.manual_seed(0)
    return Loss(), (torch.randn(2, 8),), {}

def build_and_die():
    if os.environ["RANK"] == "1":
        threading.Thread(target=die, daemon=True).start()
    return build()

def die():
    while not torch.distributed.is_initialized():
        time.sleep(0.01)
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)
"""
TIMEOUT = 300.0


@pytest.fixture
def model(run, tmp_path):
    """A model with its first layer on another host; `run` has made the folder the current one."""
    (tmp_path / "model.py").write_text(MODEL)
    options = ["--caller", "--pin", "0*=node1/cpu", "--no-explain", "--store", "none"]
    placed = run("place", "model.py:build", "--on", "2x(cpu)@10GbE", *options, "-o", "plan.json")
    assert placed.status == 0, placed.err
    return "model.py:build"


def start(launcher, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def torchrun(*arguments):
    """The command on two ranks: torchrun itself runs in this Python, and so do the ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--no-python", "--nproc-per-node", 2, "--master-port", port]
    command = [sys.executable, "-m", "placewright", *arguments]
    process = start(["torch.distributed.run"], *options, *command)
    out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out, err


def test_a_plan_of_two_hosts_runs_under_torchrun_with_the_models_outputs(model):
    options = ["--steps", 3, "--in-flight", 2, "--verify", "--json", "--store", "none"]
    status, out, err = torchrun("execute", "plan.json", "--model", model, *options)
    assert status == 0, err
    data = json.loads(out)  # rank 0's alone
    assert data["verified"] == {"difference": 0.0}
    assert data["period"] > 0


@pytest.mark.slow
def test_a_training_plan_of_two_hosts_runs_under_torchrun_and_is_verified(run, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    name, options = "model.py:build_training", ["--training", "--optimizer", "adam"]
    options += ["--caller", "--pin", "inner.0.*=node1/cpu", "--no-explain", "--store", "none"]
    placed = run("place", name, "--on", "2x(cpu)@10GbE", *options, "-o", "plan.json")
    assert placed.status == 0, placed.err
    status, out, err = torchrun(
        "execute", "plan.json", "--model", name, "--steps", 2, "--verify", "--store", "none"
    )
    assert status == 0, err
    assert "verified: loss, gradients and updated weights of the ranks differ" in out


def test_a_plan_of_two_hosts_in_one_process_says_to_start_more(run, model):
    ran = run("execute", "plan.json", "--model", model, "--store", "none")
    assert ran.status == 1
    error = " ".join(ran.err.split())
    assert "device 'node0/cpu' is one of several hosts: start a process on each with tor" in error


def test_the_caller_needs_several_hosts(run, model):
    ran = run("place", model, "--on", "2xcpu", "--caller", "--store", "none")
    assert ran.status == 1
    assert "--caller is for several hosts, and the devices are cpu0, cpu1" in ran.err


def test_a_plan_with_a_caller_is_read_again_with_its_problem_and_exported_without(run, model):
    again = run("simulate", model, "--plan", "plan.json", "--on", "2x(cpu)@10GbE", "--caller")
    assert again.status == 0, again.err
    exported = run("export", "plan.json", "--model", model, "--to", "openvino")
    assert exported.status == 0, exported.err
    assert '"affinity"' in exported.out
    assert "caller" not in exported.out


@pytest.mark.slow
def test_profile_under_torchrun_measures_hosts_that_place_and_execute_take(run, model):
    status, _, err = torchrun("profile", "--workers", 1, "-o", "hosts.json")
    assert status == 0, err
    devices = json.loads(Path("hosts.json").read_text())["devices"]
    assert [device["name"] for device in devices] == ["host0/cpu", "host1/cpu"]
    options = ["--caller", "--no-explain", "--store", "none", "-o", "plan.json"]
    placed = run("place", model, "--on", "hosts.json", "--pin", "2*=host1/cpu", *options)
    assert placed.status == 0, placed.err
    options = ["--steps", 3, "--verify", "--json", "--store", "none"]
    status, out, err = torchrun("execute", "plan.json", "--model", model, *options)
    assert status == 0, err
    assert json.loads(out)["verified"] == {"difference": 0.0}


@pytest.mark.slow
def test_a_rank_that_dies_is_one_clear_line_on_the_other(model):
    """As a launcher starts it that does not end the others, which torchrun does at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    arguments = ["execute", "plan.json", "--model", "model.py:build_and_die"]
    arguments += ["--steps", 10**7, "--store", "none"]
    ranks = [start(["placewright"], *arguments, RANK=str(rank), **shared) for rank in range(2)]
    outputs = [rank.communicate(timeout=TIMEOUT) for rank in ranks]
    assert ranks[0].returncode == 1
    lines = [line for line in outputs[0][1].splitlines() if line.startswith("placewright: ")]
    assert lines == ["placewright: rank 1 has ended, or its connection broke"]
    assert "Traceback" not in outputs[0][1]
