"""A rank that dies, hangs or fails ends the step with one clear error on every rank."""

from __future__ import annotations

import random
import signal
import time

import pytest
import rank_jobs
from rank_processes import start_ranks

from placewright.runtime.distributed.session import SILENCE


def wait_for(*paths) -> None:
    end = time.monotonic() + 120
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, "the ranks did not start"
        time.sleep(0.005)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_killed_at_any_moment_ends_the_step_with_one_error_on_every_rank(victim, tmp_path):
    ranks = start_ranks(rank_jobs.run_until_failure, 3, str(tmp_path / "runs"), {})
    wait_for(tmp_path / "runs")
    time.sleep(random.random() / 5)
    killed = time.monotonic()
    ranks.kill(victim)
    outcomes = ranks.outcomes()  # which has waited for all processes: no orphan is left
    assert outcomes[victim] is None
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.kind == "ExecutionError"
            assert outcome.error == f"rank {victim} has ended, or its connection broke"
            assert outcome.seconds - killed < SILENCE  # before the heartbeat says so


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_fifty_kills_in_a_row_are_noticed_by_every_rank(seed, tmp_path):
    rng = random.Random(seed)
    victim = rng.randrange(3)
    ranks = start_ranks(rank_jobs.run_until_failure, 3, str(tmp_path / "runs"), {})
    wait_for(tmp_path / "runs")
    time.sleep(rng.random() / 2)
    ranks.kill(victim)
    outcomes = ranks.outcomes()
    errors = {outcome.error for at, outcome in enumerate(outcomes) if at != victim}
    assert errors == {f"rank {victim} has ended, or its connection broke"}


def test_a_rank_that_hangs_while_nothing_runs_is_noticed_by_its_missing_heartbeat(tmp_path):
    path = str(tmp_path / "idle")
    ranks = start_ranks(rank_jobs.wait_for_calls, 3, path, {"silence": 3.0})
    wait_for(*(tmp_path / f"idle{rank}" for rank in range(3)))
    ranks.kill(1, signal.SIGSTOP)
    try:
        for rank in (0, 2):
            outcome = ranks.pipes[rank].recv()
            assert outcome.kind == "ExecutionError"
            assert outcome.error == "rank 1 does not answer any more"
    finally:
        ranks.kill(1, signal.SIGKILL)
        for process in ranks.processes:
            process.join()
        ranks.folder.cleanup()


@pytest.mark.parametrize("broken", [0, 1])
def test_an_op_that_fails_on_one_rank_is_named_on_every_rank(broken):
    outcomes = start_ranks(rank_jobs.fail_on_rank, 2, broken).outcomes()
    for outcome in outcomes:
        assert outcome.kind == "ExecutionError"
        assert f"failed on 'node{broken}/cpu': index out of range" in outcome.error


def test_ranks_with_different_plans_say_so_and_do_not_start():
    for outcome in start_ranks(rank_jobs.differ_in_plans, 2).outcomes():
        assert outcome.kind == "ExecutionError"
        assert "rank 1 has another plan than rank 0" in outcome.error


def test_ranks_with_different_models_say_so_and_give_no_result():
    for outcome in start_ranks(rank_jobs.differ_in_models, 2).outcomes():
        assert outcome.kind == "ExecutionError"
        assert "rank 1 captures another graph of this call than rank 0" in outcome.error
