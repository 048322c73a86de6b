"""Schedules go by the share of the budget."""

from __future__ import annotations

import pytest

from placewright.training import (
    Constant,
    Linear,
    Staircase,
    Step,
)
from placewright.training.schedules import Until

torch = pytest.importorskip("torch")


def test_schedules_go_by_the_share_of_the_budget():
    assert Constant(2.0)(0.7) == 2.0
    assert [Step(0.5, 1.0)(share) for share in (0.0, 0.49, 0.5, 1.0)] == [1.0, 1.0, 0.0, 0.0]
    assert [Linear(1.0, 0.0)(share) for share in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]
    assert Linear(1.0, 3.0, 0.5, 0.75)(0.625) == 2.0
    stairs = Staircase(8.0, 0.5, 0.5, 2)
    assert [stairs(share) for share in (0.0, 0.5, 0.74, 0.75, 1.0)] == [8.0, 8.0, 8.0, 4.0, 2.0]


def test_a_schedule_ends_at_its_share_of_the_budget():
    schedule = Until(Linear(1.0, 0.0), 0.5)
    assert [schedule(share) for share in (0.0, 0.25, 0.5, 1.0)] == [1.0, 0.75, 0.0, 0.0]
