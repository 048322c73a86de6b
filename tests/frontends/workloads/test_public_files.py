"""The public workload files themselves, which are not ours to ship: pytest --workloads DIR."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.frontends import from_workload, is_workload, read_split
from placewright.simulator import judge, simulate

EXPERTS = {  # milliseconds, by an implementation of the release's definition that is not ours
    "bert24_inference": 20.084,
    "bert24_training": 49.405,
    "gnmt_inference": 46.209,
    "resnet50_inference": 43.918,
    "resnet50_training": 112.108,
    "inceptionv3_inference": 102.482,
}


@pytest.fixture
def workloads(request):
    folder = request.config.getoption("--workloads", default=None)
    if folder is None:
        pytest.skip("needs the public workloads: pytest --workloads DIR (see docs/workloads.md)")
    return Path(folder)


@pytest.mark.parametrize("name", EXPERTS)
def test_an_expert_split_has_the_published_period(workloads, name):
    folder = workloads / "dnn-partitioning"
    problem = from_workload(folder / "throughput" / f"layer_{name}.json")
    split = name.replace("resnet50_training", "resnet50_inference")
    plan = read_split(problem, folder / "human-experts" / f"{split}_expert.json")
    assert judge(problem, [plan.placement]).period == pytest.approx(EXPERTS[name] / 1e3, rel=1e-4)
    assert simulate(problem, plan).period == pytest.approx(EXPERTS[name] / 1e3, rel=1e-4)


def test_every_public_file_is_read(workloads):
    files = [path for path in sorted(workloads.rglob("*")) if is_workload(path)]
    assert len(files) >= 26
    for path in files:
        for training in (True, False):
            problem = from_workload(path, training=training)
            devices = problem.legalize(np.zeros((1, len(problem.graph))))
            verdict = judge(problem, devices)
            busy = problem.arrays.compute[np.arange(len(problem.graph)), devices[0]].sum()
            assert verdict.step_time >= busy * (1 - 1e-12)
