"""Kills at drawn moments: what is written is whole or absent, and what is resumed ends the same.

A child is forked, so that it begins at once with everything loaded; a signal ends it at a drawn
share of the time that it takes undisturbed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from placewright import Cluster, Problem, load, solve, solvers, zoo
from placewright.cli import main
from placewright.errors import PlacewrightError
from placewright.solvers.exact.process import SolverWorker
from placewright.training import Environment, Trainer, find_recipe, read_checkpoint
from placewright.training.run import TrainingRun
from placewright.workers import as_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from attack.tally import Tally

PLACE = (
    *("place", "branches:modules=2", "--on", "2xP100+cpu", "--evaluations", "200"),
    *("--store", "none"),
)
NETWORK = "dlrm:size=test"
MAX_SECONDS = 120.0
"""The time after which a child counts as hanging."""


def attack(first_seed: int, seconds: float) -> Tally:
    from attack.tally import try_seeds

    return try_seeds(attempt, first_seed, seconds)


def attempt(seed: int) -> str:
    """One kill of one kind, at a moment drawn from the seed."""
    kinds = list(KINDS)
    kind, rng = kinds[seed % len(kinds)], Random(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return f"{kind}: {KINDS[kind](rng, Path(folder))}"


def kill_training(rng: Random, folder: Path, workers: str | None = None) -> str:
    """A run that saves at every update, killed up to three times, then resumed to its end."""
    kills = 0
    for _ in range(rng.randrange(1, 4)):
        delay = rng.random() * _training_time(workers)
        status = _fork(lambda: _train(folder, workers), signal.SIGKILL, delay)
        kills += status == -signal.SIGKILL
    _train(folder, workers)
    expected, found = _undisturbed(workers), _state(folder)
    assert found[0] == expected[0], "the resumed run has other figures"
    assert found[1].keys() == expected[1].keys()
    for key, tensor in expected[1].items():
        assert torch.equal(found[1][key], tensor), f"the resumed run has another {key}"
    names = sorted(path.suffix for path in folder.iterdir())
    assert names == [".json", ".json", ".safetensors", ".safetensors"], f"it leaves {names}"
    return "killed" if kills else "ended before"


def kill_training_on_workers(rng: Random, folder: Path) -> str:
    """The same with two processes that sample plans and compute gradients."""
    return kill_training(rng, folder, "processes:2")


def kill_place(rng: Random, folder: Path) -> str:
    """`place` that writes a plan, a page and a trace."""
    status = _fork(lambda: _place(folder), signal.SIGKILL, rng.random() * 1.1 * _place_time())
    return _check_place(folder, status, (0, -signal.SIGKILL))


def interrupt_place(rng: Random, folder: Path) -> str:
    """Control-C ends `place` with 130, and with the best plan so far or none."""
    delay = rng.random() * 1.1 * _place_time()
    return _check_place(folder, _fork(lambda: _place(folder), signal.SIGINT, delay), (0, 130))


def kill_capture(rng: Random, folder: Path) -> str:
    """A network that is captured into the cache, or written there over and over."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        status = _fork(lambda: _fill_cache(rng.random()), signal.SIGKILL, rng.random() * 0.3)
        graph = zoo.load(NETWORK, note=lambda _: None)
        assert graph.fingerprint == _captured().fingerprint, "another graph after the kill"
        again = zoo.load(NETWORK, note=lambda text: sys.exit(f"captured twice: {text}"))
        assert again.fingerprint == graph.fingerprint
    finally:
        del os.environ["XDG_CACHE_HOME"]
    return "killed" if status else "ended before"


def kill_worker(rng: Random, folder: Path) -> str:
    """The process of the exact solver dies at some moment: an answer or one line of error."""
    workers: list[SolverWorker] = []
    start = SolverWorker.__init__

    def noted(worker: SolverWorker) -> None:
        start(worker)
        workers.append(worker)

    done = threading.Event()

    def kill() -> None:
        while not workers and not done.is_set():
            time.sleep(0.001)
        done.wait(rng.random() * 1.0)
        for worker in workers:
            if worker._process.poll() is None:
                worker._process.kill()

    killer = threading.Thread(target=kill)
    SolverWorker.__init__ = noted  # type: ignore[method-assign]
    try:
        killer.start()
        problem = Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100"))
        result = solve(problem, solvers.METHODS["exact"](), budget=2.0)
        assert result.plan is not None
        outcome = "an answer"
    except PlacewrightError:
        outcome = "a line"
    finally:
        SolverWorker.__init__ = start  # type: ignore[method-assign]
        done.set()
        killer.join()
    for worker in workers:
        worker.close()
        assert worker._process.poll() is not None, "the worker is still there"
    return outcome


KINDS: dict[str, Callable[[Random, Path], str]] = {
    "train": kill_training,
    "place": kill_place,
    "interrupt": interrupt_place,
    "capture": kill_capture,
    "exact": kill_worker,
    "train on workers": kill_training_on_workers,
}


def _fork(work: Callable[[], None], number: int, delay: float) -> int:
    """Do some work in a child, send it a signal after a while, and return its exit status."""
    ready, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            os.write(begin, b"x")
            work()
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except KeyboardInterrupt:  # between two instructions of ours, outside `main`
            status = 130
        finally:
            os._exit(status)
    os.read(ready, 1)
    os.close(ready)
    os.close(begin)
    time.sleep(delay)
    end = time.monotonic() + MAX_SECONDS
    os.kill(pid, number)  # a child that has ended is a zombie until it is waited for
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"it hangs after signal {number}")
        time.sleep(0.002)


def _seconds(work: Callable[[], None]) -> float:
    """How long some work takes in a child that nobody disturbs."""
    start = time.monotonic()
    _fork(work, 0, 0.0)  # signal 0 does nothing
    return time.monotonic() - start


def _train(folder: Path, workers: str | None = None) -> None:
    recipe = find_recipe("colocrl", groups=4, hidden=8)
    problem = Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))
    with as_workers(workers) as opened:
        trainer = Trainer([Environment(problem)], recipe, 0, 60, device="cpu", workers=opened)
        run = TrainingRun(trainer, folder, {}, save_interval=0.0)
        if run.path.exists():
            run.resume()
        run.train()


def _state(folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """A run's figures without times, and its tensors."""
    data, tensors = read_checkpoint(folder / "checkpoint.json")
    del data["seconds"]
    for record in data["problems"]:
        del record["seconds"]
        record["history"] = [[count, value] for count, _, value in record["history"]]
    data.pop("tensors", None)
    return data, tensors


@cache
def _undisturbed(workers: str | None) -> tuple[Any, dict[str, torch.Tensor]]:
    with tempfile.TemporaryDirectory() as folder:
        _train(Path(folder), workers)
        return _state(Path(folder))


@cache
def _training_time(workers: str | None) -> float:
    _undisturbed(workers)  # whatever loads late has then been loaded
    with tempfile.TemporaryDirectory() as folder:
        return _seconds(lambda: _train(Path(folder), workers))


def _place(folder: Path) -> None:
    names = [str(folder / name) for name in ("plan.json", "page.html", "trace.json")]
    main([*PLACE, "-o", names[0], "--report", names[1], "--trace", names[2]])


@cache
def _place_time() -> float:
    with tempfile.TemporaryDirectory() as folder:
        _seconds(lambda: _place(Path(folder)))
        return _seconds(lambda: _place(Path(folder)))


def _check_place(folder: Path, status: int, expected: tuple[int, ...]) -> str:
    assert status in expected, f"exit status {status}"
    plan, page, trace = (folder / name for name in ("plan.json", "page.html", "trace.json"))
    if plan.exists():
        load(plan, "plan")
    if page.exists():
        assert page.read_text().rstrip().endswith("</html>"), "half a page"
    if trace.exists():
        json.loads(trace.read_text())
    written = sum(path.exists() for path in (plan, page, trace))
    if status == 0:
        assert written == 3
    return f"status {status}"


def _fill_cache(share: float) -> None:
    """Capture the network, or write its entry again and again."""
    from placewright.zoo import capture

    if share < 0.3:
        zoo.load(NETWORK, note=lambda _: None)
        return
    saved: list[Path] = []
    real = capture._save_cached

    def repeat(graph: Any, path: Path) -> None:
        while True:
            real(graph, path)
            saved.append(path)

    capture._save_cached = repeat
    capture._capture = lambda *_, **__: _captured()
    zoo.load(NETWORK, note=lambda _: None)


@cache
def _captured() -> Any:
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            return zoo.load(NETWORK, note=lambda _: None)
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
