"""A model that runs on several ranks behaves as an untouched copy of it."""

from __future__ import annotations

import pytest
import rank_jobs
from rank_processes import run_ranks


@pytest.mark.parametrize(("kind", "world"), [("gpt2", 2), ("cnn", 2)])
def test_a_placed_model_gives_the_untouched_models_results_on_several_ranks(kind, world):
    (found, held), *others = run_ranks(rank_jobs.apply_plan, world, kind, [0, 1])
    assert found == []
