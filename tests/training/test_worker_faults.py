"""Faults of training on workers: what was lost is computed again, and the end is the same."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from process_states import children, is_running, wait_until

from placewright import Cluster, Problem, zoo
from placewright.errors import FileError
from placewright.training import PPO, Environment, Trainer, find_recipe
from placewright.training.run import TrainingRun
from placewright.workers import open_workers

pytest.importorskip("torch")
MAX_SECONDS = 120.0  # after which something hangs


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))


def make_trainer(problem, plans=60, workers=None):
    recipe = find_recipe("colocrl", groups=6, hidden=8)
    settings = {"device": "cpu", "micro_batch": 1, "workers": workers}
    return Trainer([Environment(problem)], recipe, 0, plans, **settings)


@pytest.fixture(scope="module")
def undisturbed(problem):
    trainer = make_trainer(problem)
    trainer.run()
    return trainer


def assert_same_end(trainer, undisturbed):
    assert trainer.log == undisturbed.log
    found, state = trainer.policy.state_dict(), undisturbed.policy.state_dict()
    assert all(np.array_equal(found[key].numpy(), state[key].numpy()) for key in state)
    mine, other = trainer.environments[0], undisturbed.environments[0]
    assert (mine.best_placement == other.best_placement).all()
    assert mine.best_key == other.best_key
    assert trainer.evaluations == undisturbed.evaluations


def test_workers_that_are_killed_in_an_update_change_no_bit_of_the_weights(problem, undisturbed):
    others = children(os.getpid())
    with open_workers("processes:2") as workers:
        trainer = make_trainer(problem, workers=workers)
        submit, calls = workers.submit, []

        def kill_and_submit(*arguments):
            future = submit(*arguments)
            calls.append(future)
            if len(calls) in (5, 11):  # one samples plans, one computes gradients
                wait_until(lambda: children(os.getpid()) - others)
                os.kill(min(children(os.getpid()) - others), signal.SIGKILL)
            return future

        workers.submit = kill_and_submit
        trainer.run()
        assert workers.lost >= 2
    assert_same_end(trainer, undisturbed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a child")
def test_a_killed_driver_goes_on_with_other_workers_to_the_same_end(problem, undisturbed, tmp_path):
    """The driver had two processes; what goes on from its checkpoint has none."""
    checkpoint = tmp_path / "checkpoint.json"
    pid = os.fork()
    if pid == 0:
        try:
            with open_workers("processes:2") as workers:
                run = TrainingRun(make_trainer(problem, 60, workers), tmp_path, {}, 0.0)

                def slow_down(trainer):
                    if trainer.updates > 3:  # by now it is to be killed
                        time.sleep(MAX_SECONDS)

                run.train(slow_down)
        finally:
            os._exit(1)
    processes: set[int] = set()
    try:
        wait_until(lambda: checkpoint.exists(), MAX_SECONDS)
        wait_until(lambda: json.loads(checkpoint.read_text())["updates"] >= 3, MAX_SECONDS)
        processes = children(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert processes
    wait_until(lambda: not any(is_running(each) for each in processes))
    run = TrainingRun(make_trainer(problem), tmp_path, {})
    run.resume()
    assert run.trainer.updates == 3
    assert run.train()
    assert_same_end(run.trainer, undisturbed)


def test_go_goes_on_in_micro_batches_with_the_episodes_that_it_had_not_learned_from(
    problem, tmp_path
):
    recipe = replace(find_recipe("go", hidden=8), episodes=4, algorithm=PPO(epochs=2))

    def make():
        environments = [recipe.environment(problem)]
        settings = {"device": "cpu", "micro_batch": 1, "max_updates": 6}
        return Trainer(environments, recipe, 0, None, **settings)

    whole, first, second = (make() for _ in range(3))
    whole.run()
    first.run(lambda trainer: trainer.updates < 4)
    assert first.pending is not None
    TrainingRun(first, tmp_path, {}).save()
    run = TrainingRun(second, tmp_path, {})
    run.resume()
    assert run.train()
    assert repr(second.log) == repr(whole.log)
    found, state = second.policy.state_dict(), whole.policy.state_dict()
    assert all(np.array_equal(found[key].numpy(), state[key].numpy()) for key in state)


def test_a_full_disk_is_an_error_and_leaves_the_checkpoint_before(problem, tmp_path):
    """The limit on the size of files stands for the disk: the same write fails."""
    run = TrainingRun(make_trainer(problem), tmp_path, {})
    run.trainer.update()
    run.save()
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    run.trainer.update()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(FileError, match="cannot be written: file too large"):
            run.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    resumed = TrainingRun(make_trainer(problem), tmp_path, {})
    resumed.resume()
    assert resumed.trainer.updates == 1


def test_a_checkpoint_is_on_the_disk_before_it_takes_the_place_of_the_one_before(
    problem, tmp_path, monkeypatch
):
    """Tensors before the file that names them, and each before it gets its name."""
    events = []
    fsync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (events.append("sync"), fsync(file)))

    def replace_file(path, target):
        events.append(Path(target).suffix)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace_file)
    TrainingRun(make_trainer(problem), tmp_path, {}).save()
    assert events == ["sync", ".safetensors", "sync", ".json"]


def test_half_a_checkpoint_is_refused_by_its_digest(problem, tmp_path):
    run = TrainingRun(make_trainer(problem), tmp_path, {})
    run.trainer.update()
    run.save()
    (tensors,) = tmp_path.glob("*.safetensors")
    content = tensors.read_bytes()
    tensors.write_bytes(content[: len(content) // 2])
    with pytest.raises(FileError, match="damaged: the digest is another one"):
        TrainingRun(make_trainer(problem), tmp_path, {}).resume()
    tensors.write_bytes(content)
    data = run.path.read_bytes()
    run.path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match="not JSON, or truncated"):
        TrainingRun(make_trainer(problem), tmp_path, {}).resume()


def test_a_checkpoint_of_whole_batches_is_not_continued_in_micro_batches(problem, tmp_path):
    recipe = find_recipe("colocrl", groups=6, hidden=8)
    whole = Trainer([Environment(problem)], recipe, 0, 60, device="cpu")
    whole.update()
    TrainingRun(whole, tmp_path, {}).save()
    with pytest.raises(FileError, match="of another run: micro_batch is None there and 1 here"):
        TrainingRun(make_trainer(problem), tmp_path, {}).resume()
