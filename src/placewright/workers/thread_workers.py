"""Workers that are threads of this process: for tasks whose time is in compiled code."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.workers.task import run_task
from placewright.workers.task_runner import Reply, describe_traceback
from placewright.workers.worker_backend import Request, WorkerLost

if TYPE_CHECKING:
    from placewright.workers.worker_spec import WorkerKind


@dataclass(frozen=True)
class ThreadBackend:
    """Threads of this process, which need no messages."""

    count: int
    kind: WorkerKind = "threads"
    exchange_seconds: float = 1e-4

    def start_worker(self, number: int) -> ThreadWorker:
        """Start a thread."""
        return ThreadWorker(number)

    def close(self) -> None:
        """Threads share nothing."""


class ThreadWorker:
    """A thread that runs requests. One that hangs cannot be killed: it is left behind."""

    def __init__(self, number: int) -> None:
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply | WorkerLost] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._answer, daemon=True, name=f"worker thread {number}"
        )
        self._thread.start()

    def wait_until_ready(self) -> None:
        """A thread is ready at once."""

    def run(self, request: Request) -> Reply:
        """Run a request in the thread."""
        self._requests.put(request)
        try:
            reply = self._replies.get(timeout=min(request.timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            raise WorkerLost(f"it took longer than {request.timeout:g} s") from None
        if isinstance(reply, WorkerLost):
            raise reply
        return reply

    def kill(self) -> None:
        """Let the thread end after what it does now."""
        self._requests.put(None)
        self._replies.put(WorkerLost("it was ended"))

    def _answer(self) -> None:
        while (request := self._requests.get()) is not None:
            began = time.perf_counter()
            try:
                results = run_task(request.task, request.problem.problem, request.items)
                reply: Reply | WorkerLost = Reply(results, None, time.perf_counter() - began)
            except Exception as error:
                error.add_note(describe_traceback(error, "a worker thread"))
                reply = Reply([], error, time.perf_counter() - began)
            except BaseException as error:
                reply = WorkerLost(f"it ended with {type(error).__name__}: {error}")
            self._replies.put(reply)
            if isinstance(reply, WorkerLost):
                return
