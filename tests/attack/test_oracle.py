"""The oracle's CI form: a fixed range of tiny problems, and no finding."""

from __future__ import annotations

import pytest
from attack.oracle import check_seed
from attack.tally import try_seeds


@pytest.mark.parametrize("first_seed", range(0, 72, 12))
def test_no_plan_of_a_tiny_problem_proves_a_solver_or_a_bound_wrong(first_seed: int) -> None:
    tally = try_seeds(check_seed, first_seed, seconds=1e9, most=12)
    assert tally.tried == 12
    assert tally.findings == []


@pytest.mark.slow
def test_no_plan_of_10_000_tiny_problems_proves_a_solver_or_a_bound_wrong() -> None:
    assert try_seeds(check_seed, 0, seconds=1e9, most=10_000).findings == []
