"""`ray://host:port`, a cluster elsewhere; and Ray workers on the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from process_states import children, is_running, wait_until

from placewright.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("ray")

MAX_SECONDS = 180.0

DRIVER = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import numpy as np
import placewright as pw
from worker_tasks import Pid, Scale
from placewright.workers import open_workers

problem = pw.Problem(pw.zoo.load("branches"), pw.Cluster.parse("2xP100+cpu"))
draws = np.random.default_rng(0).integers(0, 3, size=(300, problem.arrays.ops))
rows = problem.legalize(draws)
with open_workers({spec!r}) as workers:
    assert workers.count == 2, workers
    assert workers.map(Scale(3), range(10)) == [3 * item for item in range(10)]
    there, here = pw.judge(problem, rows, workers=workers), pw.judge(problem, rows)
    assert np.array_equal(there.value, here.value)
    os.kill(workers.map(Pid(0.05), range(8))[0], signal.SIGKILL)
    for _ in range(200):  # until the one that is gone is missed
        assert workers.map(Scale(3, 0.01), range(10)) == [3 * item for item in range(10)]
        if workers.lost:
            break
    assert workers.lost == 1, workers.lost
"""


@pytest.fixture
def client_port() -> Iterator[int]:
    """The client port of a Ray head of two CPUs, a separate process on loopback with a token."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # Ray's sockets need a short path
    options = ("--port=0", f"--ray-client-server-port={port}", "--node-ip-address=127.0.0.1")
    others = ("--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats", "--block")
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *options, *others],
        # Ray listens at 127.0.0.1 only where a cluster is for one machine.
        env={**environment(), "RAY_TMPDIR": folder, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    processes: set[int] = set()
    try:
        wait_until(lambda: head.poll() is not None or listens(port), seconds=MAX_SECONDS)
        assert head.poll() is None, "the head has ended"
        yield port
    finally:
        processes = children(head.pid)
        head.send_signal(signal.SIGTERM)
        head.wait(60)
        for pid in filter(is_running, processes):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32}
    return {**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0"}


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_a_cluster_elsewhere_is_used_through_its_client_port_and_left_running(client_port):
    folder, spec = str(Path(__file__).parent), f"ray://127.0.0.1:{client_port}"
    for each in (spec, f"{spec}?workers=2"):  # the second finds it as the first has left it
        ran = subprocess.run(
            [sys.executable, "-c", DRIVER.format(folder=folder, spec=each)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
    assert listens(client_port)


@pytest.mark.slow
def test_a_cluster_that_wants_a_token_is_an_error_that_says_so(client_port):
    code = f"from placewright.workers import open_workers; open_workers('ray://127.0.0.1:{client_port}')"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment(), "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
        check=False,
    )
    assert "no Ray cluster answers" in ran.stderr
    assert "RAY_AUTH_MODE=token" in ran.stderr


def answer(capsys, *arguments):
    """What a command prints as JSON."""
    with pytest.raises(SystemExit) as caught:
        main([str(each) for each in arguments])
    captured = capsys.readouterr()
    assert not caught.value.code, captured.err
    return json.loads(captured.out)


def test_ray_workers_place_on_the_command_line(ray_cluster, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACEWRIGHT_STORE", "none")
    place = ("place", "branches", "--on", "2xP100+cpu", "--method", "genetic", "--no-explain")
    found = [
        answer(capsys, *place, "--evaluations", "300", "--json", "--workers", workers)
        for workers in ("ray:2", "threads:1")
    ]
    assert found[0]["step_time"] == found[1]["step_time"]
    assert found[0]["evaluations"] == found[1]["evaluations"] >= 290


@pytest.mark.slow
def test_ray_workers_train_on_the_command_line(ray_cluster, capsys, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    train = ("train", "colocrl", "branches:modules=1", "--on", "2xP100+cpu", "--json")
    small = ("--groups", "6", "--hidden", "8", "--evaluations", "40")
    rows = [
        answer(capsys, *train, *small, "--workers", workers)["rows"]
        for workers in ("ray:2", "threads:1")
    ]
    assert rows[0] == rows[1]
