"""A plan on several ranks: the untouched model's own results, bit for bit."""

from __future__ import annotations

import pytest
import rank_jobs
from rank_processes import run_ranks


@pytest.mark.parametrize(("kind", "world"), [("mlp", 2), ("cnn", 3), ("gpt2", 2), ("odd", 3)])
def test_any_plan_on_several_ranks_gives_the_models_outputs(kind, world):
    assert run_ranks(rank_jobs.run_program, world, kind, [0, 1, 2, 3])[0] == []
