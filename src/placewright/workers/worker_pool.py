"""Workers as one object: `map` cuts a batch into chunks, gives them out and collects the results.

A thread of the driver stands by each worker. A worker that is lost is replaced, and its chunk goes
back to the front of the queue, so that whichever worker is free next runs it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from placewright.errors import ConfigError, WorkerError
from placewright.logs import logger
from placewright.workers.chunk_sizes import ChunkSizes
from placewright.workers.messages import MessageTooLarge, encode
from placewright.workers.recent_problems import EncodedProblem, ProblemEncoder
from placewright.workers.task import check_task, task_name
from placewright.workers.worker_backend import Request, RunningWorker, WorkerLost

if TYPE_CHECKING:
    from types import TracebackType

    from placewright.workers.task import Items, Task
    from placewright.workers.task_runner import Reply
    from placewright.workers.worker_backend import WorkerBackend
    from placewright.workers.worker_spec import WorkerKind

    R = TypeVar("R")

_FIRST_DELAY, _MAX_DELAY = 0.05, 10.0  # seconds before a lost worker is replaced, doubled each time


@dataclass(eq=False)
class _Chunk:
    """A request with its future, and how often it was lost."""

    request: Request
    first: int  # of its items in the batch
    future: Future[list[Any]]
    failures: int = 0

    def describe(self) -> str:
        last = self.first + len(self.request.items) - 1
        return f"task {task_name(self.request.task)} on items {self.first} to {last}"


class Workers:
    """Workers of one kind; `open_workers` makes them. Use them in a `with` block.

    Args:
        timeout: Seconds after which a worker that runs a chunk counts as hanging.
        attempts: How often a chunk is given out before it counts as failed.
        max_message_bytes: The most bytes that a problem, a chunk or its results may have.
    """

    def __init__(
        self, backend: WorkerBackend, timeout: float, attempts: int, max_message_bytes: int
    ) -> None:
        self._backend, self._timeout, self._attempts = backend, timeout, attempts
        self._max_bytes = max_message_bytes
        self._sends = backend.kind != "threads"  # which share the driver's memory
        self._encode_problem = ProblemEncoder(max_message_bytes)
        self._last_task: tuple[object, bytes] = (None, b"")
        self._chunk_sizes = ChunkSizes(backend.count, backend.exchange_seconds, max_message_bytes)
        self._queue: deque[_Chunk] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._workers: dict[int, RunningWorker] = {}
        self._ready: set[int] = set()
        self._start_failures = [0] * backend.count
        self._lost = 0
        self._owner_pid = os.getpid()
        self._threads = [
            threading.Thread(
                target=self._serve, args=(number,), daemon=True, name=f"worker {number}"
            )
            for number in range(backend.count)
        ]
        atexit.register(self.close)
        for thread in self._threads:
            thread.start()

    @property
    def kind(self) -> WorkerKind:
        """`threads`, `processes` or `ray`."""
        return self._backend.kind

    @property
    def count(self) -> int:
        """How many workers there are."""
        return self._backend.count

    @property
    def lost(self) -> int:
        """How many workers died, hung or could not be started so far."""
        return self._lost

    def map(
        self,
        task: Task[R],
        batch: Items,
        problem: Any = None,
        *,
        timeout: float | None = None,
    ) -> list[R]:
        """Run a task on each item of a batch; the results are in the order of the items.

        Args:
            task: A frozen dataclass of a module, which is pure.
            batch: The items; slices of it are sent to workers.
            problem: What all items share. It must not change, for it is sent to each worker once.
            timeout: Seconds for one chunk, if not those that the workers were opened with.

        Raises:
            WorkerError: A chunk was lost too often, or a message is too large.
        """
        whole = self._request(task, batch, problem, timeout)
        item_bytes = len(encode(batch[:1], self._max_bytes)) if self._sends and len(batch) else 0
        cuts = self._chunk_sizes.cut(type(task), len(batch), item_bytes)
        chunks = [_Chunk(replace(whole, items=batch[rows]), rows.start, Future()) for rows in cuts]
        self._add(chunks)
        results: list[R] = []
        try:
            for chunk in chunks:  # in their order, so that the first error is always the same
                results += chunk.future.result()
        except BaseException:
            for chunk in chunks:
                chunk.future.cancel()
            raise
        return results

    def submit(
        self,
        task: Task[R],
        chunk: Items,
        problem: Any = None,
        *,
        timeout: float | None = None,
    ) -> Future[list[R]]:
        """Run a task on a chunk of items; the future has its results.

        Arguments are those of `map`. Closing the workers ends what is not done.
        """
        request = self._request(task, chunk, problem, timeout)
        future: Future[list[R]] = Future()
        self._add([_Chunk(request, 0, future)])
        return future

    def _request(self, task: Task[R], items: Items, problem: Any, timeout: float | None) -> Request:
        check_task(task)
        return Request(
            task,
            self._encode_task(task) if self._sends else b"",
            items,
            self._encode_problem(problem) if self._sends else EncodedProblem(problem),
            self._timeout if timeout is None else timeout,
        )

    def _encode_task(self, task: object) -> bytes:
        """A task as bytes; one that several chunks share is encoded once."""
        last, data = self._last_task
        if last is not task:
            data = encode(task, self._max_bytes)
            self._last_task = task, data
        return data

    def close(self) -> None:
        """End all workers; what they have not finished is cancelled or fails."""
        if self._owner_pid != os.getpid():  # a forked copy has no workers
            return
        with self._changed:
            first_time = not self._closing.is_set()
            self._closing.set()
            waiting, running = list(self._queue), list(self._workers.values())
            self._queue.clear()
            self._changed.notify_all()
        for chunk in waiting:
            _fail(chunk, WorkerError(f"{chunk.describe()}: the workers were closed"))
        for worker in running:
            worker.kill()
        for thread in self._threads:
            thread.join()
        if first_time:
            atexit.unregister(self.close)
            self._backend.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Workers({self.kind}:{self.count})"

    # -- the queue ----------------------------------------------------------------------------

    def _add(self, chunks: list[_Chunk]) -> None:
        # A forked copy has no workers, and perhaps a lock that nobody will release.
        if self._owner_pid != os.getpid():
            raise ConfigError("these workers belong to another process: open new ones here")
        with self._changed:
            if self._closing.is_set():
                raise ConfigError("these workers are closed: open new ones with open_workers")
            self._queue.extend(chunks)
            self._changed.notify(len(chunks))

    def _take(self) -> _Chunk | None:
        """The next chunk, or None when the workers are closed."""
        with self._changed:
            while True:
                if self._closing.is_set():
                    return None
                if not self._queue:
                    self._changed.wait()
                    continue
                chunk = self._queue.popleft()
                if chunk.failures or chunk.future.set_running_or_notify_cancel():
                    return chunk

    def _give_back(self, chunk: _Chunk, cause: WorkerLost) -> None:
        """Let another worker run a chunk whose worker was lost, unless it was lost too often."""
        chunk.failures += 1
        with self._changed:
            self._lost += 1
            is_closed = self._closing.is_set()
            if not is_closed and chunk.failures < self._attempts:
                self._queue.appendleft(chunk)
                self._changed.notify()
                return
        if is_closed:
            _fail(chunk, WorkerError(f"{chunk.describe()}: the workers were closed"))
            return
        times = "once" if chunk.failures == 1 else f"{chunk.failures} times"
        _fail(
            chunk,
            WorkerError(f"{chunk.describe()} failed {times}; the last time, {cause}"),
        )

    def _fail_waiting(self, cause: WorkerLost) -> None:
        """End the wait for workers where none can be started."""
        with self._changed:
            waiting = list(self._queue)
            self._queue.clear()
        for chunk in waiting:
            _fail(chunk, WorkerError(f"{chunk.describe()}: no worker could be started: {cause}"))

    # -- one worker ---------------------------------------------------------------------------

    def _serve(self, number: int) -> None:
        """Keep one worker running and give it chunks, until the workers are closed."""
        worker: RunningWorker | None = None
        losses = 0  # one after the other
        while not self._closing.is_set():
            if worker is None:
                if losses:
                    self._closing.wait(min(_MAX_DELAY, _FIRST_DELAY * 2 ** min(losses - 1, 20)))
                worker = self._start(number)
                losses += worker is None
                continue
            chunk = self._take()
            if chunk is None:
                break
            try:
                reply = worker.run(chunk.request)
            except WorkerLost as cause:
                logger.info("worker %d was lost: %s", number, cause)
                self._remove(number, worker)
                worker, losses = None, losses + 1
                self._give_back(chunk, cause)
            except MessageTooLarge as error:
                text = f"{chunk.describe()}: {error}; give it fewer items at a time, or raise "
                _fail(chunk, MessageTooLarge(f"{text}max_message_bytes"))
            except BaseException as error:
                _fail(chunk, error)
            else:
                losses = 0
                self._finish(chunk, reply)
        if worker is not None:
            self._remove(number, worker)

    def _start(self, number: int) -> RunningWorker | None:
        worker: RunningWorker | None = None
        try:
            worker = self._backend.start_worker(number)
            with self._changed:
                self._workers[number] = worker  # so that `close` ends the wait
                if self._closing.is_set():
                    raise WorkerLost("the workers were closed")
            worker.wait_until_ready()
        except Exception as error:  # whatever it is, the caller of `map` has to hear of it
            if worker is not None:
                self._remove(number, worker)
            if self._closing.is_set():
                return None
            cause = error if isinstance(error, WorkerLost) else WorkerLost(repr(error))
            logger.info("worker %d could not be started: %s", number, cause)
            with self._changed:
                self._lost += 1
                self._start_failures[number] += 1
                hopeless = not self._ready and min(self._start_failures) >= self._attempts
            if hopeless:
                self._fail_waiting(cause)
            return None
        with self._changed:
            self._start_failures[number] = 0
            self._ready.add(number)
        return worker

    def _remove(self, number: int, worker: RunningWorker) -> None:
        with self._changed:
            self._workers.pop(number, None)
            self._ready.discard(number)
        worker.kill()

    def _finish(self, chunk: _Chunk, reply: Reply) -> None:
        if reply.error is not None:
            _fail(chunk, reply.error)
            return
        self._chunk_sizes.record(type(chunk.request.task), len(reply.results), reply.seconds)
        chunk.future.set_result(reply.results)


def _fail(chunk: _Chunk, error: BaseException) -> None:
    """Let the future of a chunk raise an error, unless its caller has cancelled it."""
    if chunk.future.running() or chunk.future.set_running_or_notify_cancel():
        chunk.future.set_exception(error)
