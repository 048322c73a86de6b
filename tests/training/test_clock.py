"""Start times of plans."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo

torch = pytest.importorskip("torch")

from placewright.training.clock import SimulatorClock  # noqa: E402


@pytest.fixture(scope="module")
def several() -> list[Problem]:
    cluster = Cluster.parse("2xP100")
    names = ("branches:modules=1", "branches:modules=2", "layered:ops=12")
    return [Problem(zoo.load(name), cluster) for name in names]


def test_equal_placements_start_alike_and_others_do_not(several):
    problem = several[1]
    rows = np.zeros((3, len(problem.graph)), dtype=np.int32)
    rows[1, len(problem.graph) // 2 :] = 1
    found = SimulatorClock().op_starts(problem, problem.legalize(rows))
    assert found.shape == rows.shape
    assert (found[0] == found[2]).all()
    assert (found[0] != found[1]).any()
