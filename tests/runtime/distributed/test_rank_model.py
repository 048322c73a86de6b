"""A model that runs on several ranks behaves as an untouched copy of it."""

from __future__ import annotations

import pytest
import rank_jobs
from rank_processes import run_ranks

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("kind", "world"), [("gpt2", 2), ("cnn", 3)])
def test_a_placed_model_gives_the_untouched_models_results_on_several_ranks(kind, world):
    outcomes = run_ranks(rank_jobs.apply_plan, world, kind, [1])
    assert outcomes[0][0] == []
    held = [names for _, (names,) in outcomes]
    parameters = {name for name, _ in rank_jobs.models(kind)[0].named_parameters()}
    assert set.union(*held) >= parameters
    assert all(not parameters <= names for names in held), "a rank holds all weights"


@pytest.mark.slow
@pytest.mark.parametrize("kind", rank_jobs.KINDS)
@pytest.mark.parametrize("world", [2, 3])
def test_any_plan_of_any_model_gives_the_untouched_models_results(kind, world):
    assert run_ranks(rank_jobs.apply_plan, world, kind, [0, 2, 3])[0][0] == []


def test_weights_that_several_ops_read_on_two_ranks_are_on_one():
    """The embedding of GPT-2 is also its head; a plan has it once."""
    outcomes = run_ranks(rank_jobs.apply_plan, 2, "gpt2", [0])
    held = [names for _, (names,) in outcomes]
    tied = {"transformer.wte.weight", "lm_head.weight"}
    assert [len(tied & names) for names in held] in ([2, 0], [0, 2])


def test_what_ranks_cannot_do_is_refused_and_the_model_still_runs():
    first, second = run_ranks(rank_jobs.misuse, 2)
    expected = [
        "loss.backward() cannot run across ranks: train by model.placed.train_step(...)",
        "rank 0 calls the model; the other ranks serve",
        "the plan is not for a training step",
        "a model cannot be cast or moved on several ranks",
        "weights cannot be loaded into a model that runs on several ranks",
        "this call cannot run on several ranks",
        "the ranks are closed",
    ]
    assert len(first) == len(expected), first
    for error, text in zip(first, expected, strict=True):
        assert text in error
    assert "call it on rank 0, and model.placed.serve() on the other ranks" in second[0]
    assert "the ranks are closed" in second[1]


def test_each_rank_reads_its_own_weights_from_a_file_and_no_others(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    model, _ = rank_jobs.models("mlp")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    outcomes = run_ranks(rank_jobs.load_from_file, 2, str(tmp_path / "weights.safetensors"))
    (first, found), (second, _) = outcomes
    assert found == []
    assert not set(first) & set(second)
    assert sorted([*first, *second]) == sorted(model.state_dict())
