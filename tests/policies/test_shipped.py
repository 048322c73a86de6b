"""The shipped policies: they say what made them, and place graphs they were not trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from placewright import Cluster, Problem, judge, zoo
from placewright.errors import ConfigError, MissingDependency
from placewright.policies.shipped import WEIGHTS_FOLDER, shipped_policy
from placewright.zoo import families

pytest.importorskip("torch")

FOLD_WEIGHTS = Path(__file__).parents[2] / "benchmarks" / "go" / "weights"


def test_an_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match="no policy named 'pear' ships"):
        shipped_policy("pear")


def test_the_one_that_ships_answers_well_on_a_cluster_it_never_saw_and_says_who_made_it():
    faster = []
    for name in ("cifar10", "ptb", "nmt"):
        graph = zoo.load(f"{name}:graph={families.TEST_GRAPHS[0]}")
        problem = Problem(graph, Cluster.parse("7xP100+cpu"), discipline="ready")
        values = []
        for each in ("pair", "placeto"):
            answer = shipped_policy(each).act(problem, 1, 0, greedy=True)
            values.append(judge(problem, answer.placements, answer.priority).value[0])
        faster.append(values[1] / values[0])
    assert np.exp(np.mean(np.log(faster))) < 0.97
    data = json.loads((WEIGHTS_FOLDER / "placeto.json").read_text())
    assert data["made_by"].startswith("python benchmarks/train_policies.py placeto")


@pytest.mark.parametrize("package", ["safetensors", "safetensors.torch"])
def test_weights_without_their_package_are_a_missing_dependency(package, monkeypatch):
    """So that `explain` goes on without such a policy."""
    monkeypatch.setitem(sys.modules, package, None)
    shipped_policy.cache_clear()
    with pytest.raises(MissingDependency, match=r"pip install 'placewright\[torch\]'"):
        shipped_policy("go")


def test_all_that_ships_is_small_and_says_who_made_it():
    """The policies of single folds are for benchmarks, and do not ship."""
    assert sum(path.stat().st_size for path in WEIGHTS_FOLDER.iterdir()) < 1e6
    for name in ("go", "go-a", "go-b"):
        folder = WEIGHTS_FOLDER if name == "go" else FOLD_WEIGHTS
        data = json.loads((folder / f"{name}.json").read_text())
        fold = name.removeprefix("go-") if name != "go" else "all"
        assert data["made_by"].startswith("python benchmarks/train_go.py")
        assert f"--fold {fold} " in data["made_by"]
        report = json.loads((folder / f"{name}-report.json").read_text())
        assert report["fold"] == fold
        likeliest = [row["likeliest"] for row in report["rows"]]
        assert report["plans"] > len(likeliest) > 50
