"""Every example runs as its docstring says, in an empty folder."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import placewright as pw

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {
    "generate_text": ("torch", "transformers"),
    "larger_than_gpu": ("torch",),
    "onnx_file": ("onnx",),
    "train_policy": ("torch",),
    "training_step": ("torch",),
    "unequal_gpus": (),
}
SHOWS = {
    "generate_text": r"the same 16 tokens, \d+ tokens per second",
    "larger_than_gpu": r"outputs differ by at most \S+",
    "onnx_file": r"convnet-placed.onnx names a device for each node",
    "train_policy": r"placeto-any +[\d.]+ ms",
    "training_step": r"step 4: loss [\d.]+, of an ordinary loop [\d.]+",
    "unequal_gpus": r"a step every [\d.]+ ms; on gpu0 alone one every [\d.]+ ms",
}


def run(*command: str, folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_example_is_tested():
    assert [path.stem for path in EXAMPLES] == sorted(NEEDS) == sorted(SHOWS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_shows_what_it_says(path, tmp_path, monkeypatch, capsys):
    """In this process where it needs PyTorch, whose import takes as long as the example."""
    for package in NEEDS[path.stem]:
        pytest.importorskip(package)
    if "torch" not in NEEDS[path.stem]:
        shown = run(str(path), folder=tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(path)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in a process of its own
            runpy.run_path(str(path), run_name="__main__")
        shown = capsys.readouterr().out
    assert re.search(SHOWS[path.stem], shown)


@pytest.mark.parametrize("name", ["onnx_file", "unequal_gpus"])
def test_the_command_of_an_examples_docstring_runs(name, tmp_path):
    for package in NEEDS[name]:
        pytest.importorskip(package)
    text = (ROOT / "examples" / f"{name}.py").read_text()
    commands = [shlex.split(line) for line in re.findall(r"^    (placewright .*)$", text, re.M)]
    assert commands
    if name == "onnx_file":
        run(str(ROOT / "examples" / "onnx_file.py"), folder=tmp_path)  # makes the file
    for command in commands:
        shown = run("-m", *command, "--budget", "1s", "--no-explain", folder=tmp_path)
        assert re.search(r"^(step time|period) [\d.]+ ms by", shown, re.M)


def test_the_cluster_file_is_what_it_says_it_is():
    cluster = pw.load(ROOT / "examples" / "workstation.toml", "cluster")
    assert [device.name for device in cluster.devices] == ["new", "old", "host"]
    problem = pw.Problem(pw.zoo.load("branches"), cluster)
    assert pw.solve(problem, pw.solvers.Baselines()).fits
