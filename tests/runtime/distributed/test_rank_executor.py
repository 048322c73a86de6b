"""A plan on several ranks: the untouched model's own results, bit for bit."""

from __future__ import annotations

import pytest
import rank_jobs
from rank_processes import run_ranks


@pytest.mark.parametrize(("kind", "world"), [("mlp", 2), ("cnn", 3), ("gpt2", 2), ("odd", 3)])
def test_any_plan_on_several_ranks_gives_the_models_outputs(kind, world):
    assert run_ranks(rank_jobs.run_program, world, kind, [0, 1, 2, 3])[0] == []


def test_several_devices_of_a_host_belong_to_its_rank():
    assert run_ranks(rank_jobs.run_program, 2, "odd", [1, 2], 2)[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", rank_jobs.KINDS)
def test_a_hundred_random_plans_on_three_ranks_give_the_models_outputs(kind):
    assert run_ranks(rank_jobs.run_program, 3, kind, list(range(2, 102)))[0] == []
