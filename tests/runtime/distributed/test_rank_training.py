"""Training on several ranks: losses and weights are those of one process, bit for bit."""

from __future__ import annotations

import random
import time

import pytest
import train_jobs
from rank_processes import run_ranks, start_ranks
from test_lost_ranks import wait_for

from placewright.runtime.distributed.session import SILENCE
from placewright.runtime.distributed.step_order import StepOrder

TEN_STEPS = list(range(10))
LIFE = [0, 1, "call", [2, 3, 4], "freeze", 5, "call", "thaw", 6, "small", [8, 9], 7]
"""Steps, micro-batches, other shapes, calls between steps, and weights that are not trained."""


def check(world: int, *job) -> None:
    """Train on ranks, in one process and by PyTorch's own loop."""
    found, distances = run_ranks(train_jobs.train_on_ranks, world, *job)[0]
    assert found == []
    assert max(distances) < 2e-5


def test_a_tied_weight_trains_as_in_one_process():
    """GPT-2's embedding is its head, which is on another rank; every rank reads it."""
    check(2, "words", "adam", [0], TEN_STEPS)


def test_micro_batches_of_convolutions_train_as_in_one_process_at_a_limited_bandwidth():
    check(3, "image", "momentum", [1], [0, [1, 2, 3], 4], 1, 0.0, 1e7)


def test_no_device_reads_a_weight_before_a_slow_update_of_the_step_before():
    """Two workers of rank 1 share its weights; updates there last longer than a step of rank 0."""
    check(2, "chain", "adam", [2], LIFE, 2, 0.01)


def test_a_weight_that_another_rank_reads_leaves_before_its_update():
    check(2, "chain", "sgd", [-1, -2], [0, 1, [2, 3]], 1, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2, 32, 5))
@pytest.mark.parametrize(("world", "kind"), [(2, "chain"), (3, "image")])
def test_thirty_random_plans_train_as_in_one_process(world, kind, first):
    check(world, kind, "adam", list(range(first, first + 5)), LIFE, 1, 0.002)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_any_optimizer_trains_a_transformer_as_in_one_process(name):
    check(3, "words", name, [1, 2], [*TEN_STEPS, [0, 1, 2]])


@pytest.mark.parametrize(
    "victim", [1, pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_rank_killed_in_training_ends_it_with_one_error_on_every_rank(victim, tmp_path):
    ranks = start_ranks(train_jobs.train_until_failure, 3, str(tmp_path / "runs"))
    wait_for(tmp_path / "runs")
    time.sleep(random.random() / 5)
    killed = time.monotonic()
    ranks.kill(victim)
    outcomes = ranks.outcomes()
    assert outcomes[victim] is None
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.kind == "ExecutionError"
            assert outcome.error == f"rank {victim} has ended, or its connection broke"
            assert outcome.seconds - killed < SILENCE


def test_an_update_that_fails_after_rank_0_has_the_loss_is_an_error_there_too():
    for outcome in start_ranks(train_jobs.fail_after_the_loss, 2).outcomes():
        assert outcome.kind == "ExecutionError"
        assert "update' failed on 'node1/cpu': no memory for an update" in outcome.error


def test_ranks_with_different_optimizers_say_so():
    for outcome in start_ranks(train_jobs.differ_in_optimizers, 2).outcomes():
        assert "rank 1 has another optimizer than rank 0" in outcome.error


def test_steps_that_ranks_cannot_run_are_refused_and_say_why():
    first, second = run_ranks(train_jobs.refuse, 2)
    expected = [
        "what a call changes must be on rank 0",
        "op 'dropout' draws random numbers on another rank than the caller's",
        "train by model.placed.train_step(...)",
        "an argument of a training step requires a gradient",
        "cannot run on several ranks: weight 'last.bias' has a hook on its gradient",
        "this training step cannot run on several ranks: Call to `torch._dynamo.graph_break",
    ]
    assert len(first) == len(expected), first
    for error, text in zip(first, expected, strict=True):
        assert text in error
    assert all("do it on rank 0" in error for error in second)


def test_a_step_on_ranks_is_verified_against_the_models_own():
    assert run_ranks(train_jobs.verify_on_ranks, 2, "chain", "adam", 1.0)[0] < 1e-5
    first, second = start_ranks(train_jobs.verify_on_ranks, 2, "chain", "sgd", 1.5).outcomes()
    assert (first.kind, second.kind) == ("VerifyError", "ExecutionError")
    assert "the update of 'first.weight' differs from one device's by 0.5" in first.error
    assert first.error == second.error


def test_a_step_that_changes_weights_runs_alone_and_the_others_overlap():
    later, done = [], []
    order = StepOrder(later.append)
    for step, is_alone in enumerate((False, False, True, False)):
        order.add(step, is_alone)
    for step in (3, 2, 1, 0):  # their inputs arrive in any order
        order.begin(step, lambda step=step: done.append(step))
    assert (done, later) == ([1, 0], [])
    order.run(lambda: done.append("message"))
    order.end(0)
    assert later == []
    order.end(1)
    later.pop()()
    assert (done, later) == ([1, 0, 2], [])
    order.end(2)
    while later:
        later.pop(0)()
    assert done == [1, 0, 2, 3, "message"]
