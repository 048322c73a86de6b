"""Files written by release 0.1.0 load and give the answers they gave then (`files/`)."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import placewright as pw
from placewright import policies

FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text())


@pytest.mark.parametrize("name", ["cluster.json", "cluster.toml", "graph.json"])
def test_nouns_have_the_fingerprint_they_had(name):
    assert pw.load(FILES / name).fingerprint == EXPECTED[name]


def test_a_result_has_its_figures_and_its_problem():
    result = pw.load(FILES / "result.json")
    assert [result.step_time, result.bound] == EXPECTED["result.json"]


def test_a_plan_takes_the_time_it_took():
    problem, plan = pw.load(FILES / "problem.json"), pw.load(FILES / "plan.json")
    assert pw.simulate(problem, plan).step_time == EXPECTED["plan.json"]
    assert pw.load(FILES / "timeline.json").step_time == EXPECTED["plan.json"]


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("policies/")])
def test_a_policy_acts_as_it_did(name):
    pytest.importorskip("torch")
    problem = pw.Problem(pw.zoo.load("fork-join:ops=20"), pw.Cluster.parse("2xP100+cpu"))
    episodes = policies.load(FILES / name).act(problem, 3, seed=1)
    digest = hashlib.sha256(np.ascontiguousarray(episodes.placements).tobytes()).hexdigest()[:16]
    plans, log_prob = EXPECTED[name]
    assert digest == plans
    assert float(episodes.log_prob.sum()) == pytest.approx(log_prob, rel=1e-5)


def test_a_run_goes_on(tmp_path, capsys):
    """A finished run of 0.1.0, resumed, gives its best plan again."""
    pytest.importorskip("torch")
    from placewright.cli import main

    shutil.copytree(FILES / "run", tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        main(["train", "--resume", str(tmp_path / "run"), "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["step_time"] == 0.00045107031602033027
