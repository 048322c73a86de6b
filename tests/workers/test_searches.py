"""Searches on workers: the same seed finds the same plan, after as many plans."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import placewright as pw
from placewright.cli import main
from placewright.errors import ConfigError
from placewright.plan_batch import PlanBatch
from placewright.solvers import METHODS, worker_batches
from placewright.solvers.search import Search
from placewright.solvers.stop import NoImprovement


@pytest.fixture(scope="module")
def problem():
    graph = pw.zoo.load("layered:ops=200,seed=1")
    return pw.Problem(graph, pw.Cluster.parse("3xP100+cpu"))


@pytest.fixture
def small_batches_are_shared(monkeypatch):
    """So that a test need not evaluate a million ops to use workers."""
    monkeypatch.setattr(worker_batches, "_MIN_WORK", 1)
    monkeypatch.setattr("placewright.solvers.search._BATCH_WORK", 200 * 16)


@pytest.mark.usefixtures("small_batches_are_shared")
@pytest.mark.parametrize("method", ["random", "genetic", "cross-entropy", "local-search"])
def test_a_search_finds_the_same_plan_with_any_workers(problem, method):
    def key(result):
        steps = [(evaluation, value) for evaluation, _, value in result.history]
        return result.step_time, result.evaluations, steps, result.plan.placement.tolist()

    stop = pw.MaxEvaluations(330)
    alone = pw.solve(problem, METHODS[method](), stop)
    for workers in ("threads:1", "threads:3", "processes:2"):
        assert key(pw.solve(problem, METHODS[method](), stop, workers=workers)) == key(alone)


@pytest.mark.usefixtures("small_batches_are_shared")
def test_plans_ahead_of_the_stop_rule_are_neither_counted_nor_kept(problem):
    rng = np.random.default_rng(0)
    rows = problem.legalize(rng.integers(0, 4, size=(300, 200)))
    best = int(np.argmin(pw.judge(problem, rows).value))
    rows = np.concatenate([np.delete(rows, best, axis=0), rows[best : best + 1]])

    def ended(workers):
        search = Search(problem, NoImprovement(40), 0, workers=workers)
        verdict = search.judge(rows)
        return search.evaluations, search.key, verdict.value.tolist()

    alone = ended(None)
    assert alone[0] < 300  # it stopped before the best plan, which is the last
    with pw.open_workers("threads:4") as workers:
        assert ended(workers) == alone


def test_small_batches_stay_in_this_process(problem, monkeypatch):
    with pw.open_workers("threads:1") as workers:
        monkeypatch.setattr(workers, "map", None)
        assert (
            Search(problem, pw.MaxEvaluations(9), 0, workers=workers)
            .judge(problem.single_device_placements())
            .value.size
            == 4
        )


@pytest.mark.parametrize("devices", [4, 300])
def test_a_batch_is_itself_again_after_its_way_to_a_worker(devices):
    rng = np.random.default_rng(0)
    device = rng.integers(0, devices, size=(20, 50)).astype(np.int32)
    order, same = rng.random((20, 50)), np.tile(rng.random(50), (20, 1))
    staging = rng.integers(-1, 2**40, size=(20, 3))
    fusion = rng.integers(-1, 50, size=(20, 50)).astype(np.int32)
    for batch in (
        PlanBatch(device),
        PlanBatch(device, order, staging, fusion),
        PlanBatch(device, same),
        PlanBatch(device[:1], same[:1]),
        PlanBatch(device[:0], order[:0]),
        PlanBatch(np.tile(device[:1], (20, 1)), fusion=fusion),
    ):
        again = pickle.loads(pickle.dumps(batch))
        for name in ("placement", "priority", "staging", "fusion"):
            before, after = getattr(batch, name), getattr(again, name)
            assert (before is None) == (after is None)
            if before is not None:
                assert (before.dtype, before.shape) == (after.dtype, after.shape)
                assert after.flags.c_contiguous
                assert np.array_equal(before, after)
    assert len(pickle.dumps(PlanBatch(device, same))) < 20 * 50 * 2 + 1_000


def test_place_and_compare_take_workers(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["chain:ops=8", "--on", "2xP100+cpu", "--evaluations", "20", "--json"]
    for command in (["place", "--method", "genetic"], ["compare", "--methods", "genetic,heft"]):
        answers = []
        for workers in ([], ["--workers", "threads:2"]):
            with pytest.raises(SystemExit) as ended:
                main([command[0], *words, *command[1:], *workers])
            assert not ended.value.code
            answers.append('"step_time"' in capsys.readouterr().out)
        assert answers == [True, True]


def test_workers_that_no_text_names_are_refused_before_anything_is_done(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["place", "chain", "--on", "2xP100+cpu", "--workers", "sixteen"])
    assert ended.value.code
    assert "workers 'sixteen': expected '2', 'threads:2'" in capsys.readouterr().err


def test_a_workload_refuses_workers():
    graph = pw.zoo.load("chain:ops=4")
    problem = pw.Problem(graph, pw.Cluster.parse("2xP100+cpu"))
    workload = pw.Workload((pw.Call("a", problem),))
    with pytest.raises(ConfigError, match="workers with a workload: they are for one problem"):
        pw.solve(workload, workers="threads:2")
