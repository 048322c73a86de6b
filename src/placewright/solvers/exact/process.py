"""The parent's side of the CP-SAT process: sends a request, and reads answers until a deadline.

CP-SAT is native code that cannot be interrupted from Python, so it runs in its own process, which
is killed if it is late, if the caller is interrupted, or if the caller ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from placewright.errors import MissingDependency, PlacewrightError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_GRACE_SECONDS = 1.5  # seconds over its limit after which the process counts as hanging


class SolverWorker:
    """One child process. Close it, or use it in a `with` block."""

    def __init__(self) -> None:
        if importlib.util.find_spec("ortools") is None:
            raise MissingDependency("ortools", "exact")
        # The same packages as here, and none from the current folder.
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "placewright.solvers.exact.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # the parent handles interrupts
            text=True,
            encoding="utf-8",
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()
        self._is_ready = False
        self._owner_pid = os.getpid()

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests; a forked copy of this process must not use it."""
        return self._owner_pid == os.getpid() and self._process.poll() is None

    def submit(self, request: dict[str, Any], seconds: float) -> Generator[dict[str, Any]]:
        """Answers to one request as they come; the last is of kind `done` or `late`.

        Leaving the loop early kills the process.

        Args:
            seconds: The time limit, after which (and a short grace) the process is killed.
        """
        is_done = False
        try:
            deadline = time.perf_counter() + seconds
            self._wait_until_ready(deadline + _GRACE_SECONDS)
            seconds_left = max(0.0, deadline - time.perf_counter())
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # if it has died, its last answer says so
                self._process.stdin.write(json.dumps({**request, "seconds": seconds_left}) + "\n")
                self._process.stdin.flush()
            while not is_done:
                answer = self._next_answer(deadline + _GRACE_SECONDS)
                if answer["kind"] == "error":
                    raise PlacewrightError(
                        f"the exact solver failed: please report this\n{answer['text']}"
                    )
                is_done = answer["kind"] == "done"
                yield answer
                if answer["kind"] == "late":
                    return
        finally:
            if not is_done:
                self.close()

    def _wait_until_ready(self, deadline: float) -> None:
        if self._is_ready:
            return
        answer = self._next_answer(deadline)
        if answer["kind"] == "missing":
            raise MissingDependency("ortools", "exact")
        self._is_ready = answer["kind"] == "ready"

    def _next_answer(self, deadline: float) -> dict[str, Any]:
        try:
            return self._answers.get(timeout=max(0.0, deadline - time.perf_counter()))
        except queue.Empty:
            return {"kind": "late"}

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout:
                self._answers.put(json.loads(line))
        self._answers.put({"kind": "late"})  # it has died

    def close(self) -> None:
        """Kill the process and wait until it is gone."""
        if self._owner_pid != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> SolverWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_idle_workers: list[SolverWorker] = []
_lock = threading.Lock()


@contextlib.contextmanager
def borrow_worker() -> Iterator[SolverWorker]:
    """A worker that is reused by the next caller, since one takes about a second to start."""
    with _lock:
        worker = _idle_workers.pop() if _idle_workers else None
    if worker is None or not worker.is_alive:
        worker = SolverWorker()
    try:
        yield worker
    except BaseException:
        worker.close()
        raise
    with _lock:
        is_reusable = worker.is_alive and not _idle_workers
        if is_reusable:
            _idle_workers.append(worker)
    if not is_reusable:
        worker.close()


@atexit.register
def _close_idle() -> None:
    while _idle_workers:
        _idle_workers.pop().close()
