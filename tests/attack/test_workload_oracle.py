"""The workload oracle's CI form: a fixed range of tiny workloads, and no finding."""

from __future__ import annotations

import pytest
from attack.tally import try_seeds
from attack.workload_oracle import check_seed


@pytest.mark.parametrize("first_seed", range(0, 36, 12))
def test_no_plan_of_a_tiny_workload_proves_the_solver_or_the_bound_wrong(first_seed: int) -> None:
    tally = try_seeds(check_seed, first_seed, seconds=1e9, most=12)
    assert tally.tried == 12
    assert tally.findings == []
    assert tally.counts["fits optimal"] > 0


@pytest.mark.slow
def test_no_plan_of_2_000_tiny_workloads_proves_the_solver_or_the_bound_wrong() -> None:
    assert try_seeds(check_seed, 0, seconds=1e9, most=2_000).findings == []
