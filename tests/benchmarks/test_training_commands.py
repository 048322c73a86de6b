"""The commands that made the shipped weights: run again, they give the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.train import train_policies, train_scout
from placewright import Cluster, Problem, zoo
from placewright.policies.shipped import WEIGHTS_FOLDER

ROOT = Path(__file__).parents[2]


def test_pairs_command_gives_the_same_file_in_another_process(tmp_path: Path) -> None:
    """Another process has another hash seed, which changes the order of sets."""
    words = ["pair", "--plans", "32", "--graphs", "1"]  # two updates: Adam's first has one size
    here, there = tmp_path / "here", tmp_path / "there"
    train_policies.main([*words, "--out", str(here)])
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.train.train_policies", *words]
    subprocess.run([*command, "--out", there], check=True, cwd=ROOT, env=environment)
    first, second = ((folder / "pair.json").read_bytes() for folder in (here, there))
    assert first == second
    train_policies.main([*words, "--out", str(there), "--seed", "1"])
    data, other = (json.loads((folder / "pair.json").read_text()) for folder in (here, there))
    assert data["config"]["weights"] != other["config"]["weights"]
    assert data["made_by"].endswith("train_policies pair --plans 32 --seed 0 --graphs 1")
    assert data["training"]["seed"] == 0
    assert other["training"]["seed"] == 1
    assert data["training"]["data"] == "1 training graphs of each family, each on 6 clusters"


@pytest.mark.slow
def test_pairs_command_gives_the_weights_that_ship(tmp_path: Path) -> None:
    """On an x86-64 processor with the numpy of `constraints.txt`; others may round differently."""
    train_policies.main(["pair", "--plans", "12800", "--seed", "0", "--out", str(tmp_path)])
    made, shipped = (
        json.loads((folder / "pair.json").read_text()) for folder in (tmp_path, WEIGHTS_FOLDER)
    )
    assert made["config"] == shipped["config"]
    assert made["made_by"] == shipped["made_by"]
    assert made["training"]["graphs"] == shipped["training"]["graphs"]


def test_placetos_problems_are_the_same_twice() -> None:
    one, same, other = (train_policies.random_problems(1, 1, seed) for seed in (0, 0, 1))

    def described(problems: list[Problem]) -> list[tuple[Any, ...]]:
        return [
            (each.graph.fingerprint, each.discipline, each.arrays.capacity.tolist())
            for each in problems
        ]

    assert described(one) == described(same)
    assert described(one) != described(other)


def test_placetos_first_updates_are_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    graph = zoo.load("layered:ops=30,seed=1")
    problems = [Problem(graph, Cluster.parse(name)) for name in ("2xP100+cpu", "3xK80")]
    monkeypatch.setattr(train_policies, "random_problems", lambda *_: problems)
    files = []
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        words = f"placeto --plans 96 --graphs 1 --seed {seed} --out {tmp_path / name}"
        train_policies.main(words.split())
        files.append(json.loads((tmp_path / name / "placeto.json").read_text()))
    one, same, other = (data["tensors"] for data in files)  # its name has a digest of the weights
    assert one == same
    assert one != other
    assert files[0]["training"] | {"seed": 1} == files[2]["training"]


def test_the_scouts_moves_and_network_are_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    networks = ("layered:ops=60,seed=1", "layered:ops=60,seed=2")
    problems = {
        f"{name}@2xP100+cpu": Problem(zoo.load(name), Cluster.parse("2xP100+cpu"))
        for name in networks
    }
    monkeypatch.setattr(train_scout, "training", lambda: list(problems))
    monkeypatch.setattr(train_scout, "named_problem", problems.get)
    monkeypatch.setattr(train_scout, "HOT", train_scout.HOT[:1])
    for name in ("one", "same"):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(len(problems)):
            train_scout.gather_moves(number, folder)
        train_scout.main(f"fit --data {folder} --epochs 1 --out {folder}/scout.json".split())
    one, same = ((tmp_path / name / "scout.json").read_bytes() for name in ("one", "same"))
    assert one == same
    record = json.loads(one)["config"]["training"]
    assert record["data"] == "moves of 2 problems of benchmarks.proposers.problems"
