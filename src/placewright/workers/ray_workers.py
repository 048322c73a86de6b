"""Workers that are Ray actors, on a cluster of this machine alone or on a running one.

This is the only file that imports Ray. A Ray cluster is trusted: whoever reaches it runs code on
it, and messages are pickled.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import MissingDependency, WorkerError
from placewright.logs import logger
from placewright.workers.memory_allocator import keep_freed_memory
from placewright.workers.messages import encode
from placewright.workers.recent_problems import RecentProblems
from placewright.workers.task_runner import TaskRunner, read_reply, was_read
from placewright.workers.worker_backend import WorkerLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placewright.workers.task_runner import Reply
    from placewright.workers.worker_backend import Request
    from placewright.workers.worker_spec import WorkerKind, WorkerSpec

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads it as it is imported

try:
    import ray
except ImportError:
    raise MissingDependency("ray", "ray") from None

_LOOPBACK = "127.0.0.1"
_QUIET: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
_START_SECONDS = 60.0  # an actor is there after a second, or no node has a CPU left for it
_PAUSES = (1.0, 4.0)  # seconds before a busy cluster is tried again
_ADVICE = (
    "; see that it runs at this address, and if it wants a token (ray get-auth-token), set "
    "RAY_AUTH_MODE=token here"
)


class RayBackend:
    """Actors of one Ray cluster, each with one CPU.

    Args:
        ends_connection: Whether closing disconnects, and so ends a cluster of our own.
    """

    kind: WorkerKind = "ray"
    exchange_seconds = 1.3e-3

    def __init__(self, count: int, max_bytes: int, ends_connection: bool) -> None:
        self.count = count
        self._max_bytes, self._ends_connection = max_bytes, ends_connection
        self._problems = RecentProblems()
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, spec: WorkerSpec, max_bytes: int) -> RayBackend:
        """Connect to the cluster of a specification, or start one on this machine.

        Raises:
            WorkerError: There is no such cluster, or it has too few CPUs.
        """
        ends_connection = False
        if not ray.is_initialized():
            ends_connection = True
            try:
                if spec.address is None:
                    _start_cluster(spec.count or 1)
                else:
                    _join_cluster(spec.address)
            except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
                advice = "" if spec.address is None else _ADVICE
                raise WorkerError(
                    f"workers {spec}: no Ray cluster answers: {_first_line(error)}{advice}"
                ) from error
        available = int(_resources().get("CPU", 0))
        count = available if spec.count is None else spec.count
        if not 1 <= count <= available:
            if ends_connection:
                ray.shutdown()
            raise WorkerError(
                f"workers {spec}: the Ray cluster has {available} CPUs: expected one for each of "
                f"{max(1, count)} workers"
            )
        return cls(count, max_bytes, ends_connection)

    def start_worker(self, number: int) -> RayWorker:
        """Start an actor."""
        return RayWorker(self, self._max_bytes)

    def share_problem(self, key: str, data: bytes) -> Any:
        """The problem in Ray's store, where each node fetches it once."""
        with self._lock:
            if key not in self._problems:
                self._problems.add(key, ray.put(data), len(data))
            return self._problems.get(key)

    def close(self) -> None:
        """Leave a running cluster as it is, and end one that was started for these workers."""
        self._problems.clear()
        if self._ends_connection:
            ray.shutdown()


@contextlib.contextmanager
def local_cluster(cpus: int) -> Iterator[None]:
    """A cluster on this machine for a `with` block, in which several `open_workers` share it.

    Workers that start a cluster of their own have one with a CPU for each of them, and no more.
    """
    _start_cluster(cpus)
    try:
        yield
    finally:
        ray.shutdown()


def _start_cluster(cpus: int) -> None:
    """Start a Ray cluster that only this machine can reach.

    Ray takes the machine's own address for 127.0.0.1, except on systems where it is for one machine
    only; for the moment of its start we say that this is one.

    Raises:
        WorkerError: It can be reached from elsewhere.
    """
    settings: Any = ray._private.ray_constants
    previous = getattr(settings, "ENABLE_RAY_CLUSTER", True)
    settings.ENABLE_RAY_CLUSTER = False

    def start() -> None:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            _node_ip_address=_LOOPBACK,
            **_QUIET,
        )

    try:
        try:
            start()
        except (ConnectionError, RuntimeError, TimeoutError) as error:
            # On a busy machine its servers are late, or one's port was taken in the meantime.
            logger.info("Ray did not start, and is started again: %s", _first_line(error))
            ray.shutdown()
            start()
    finally:
        settings.ENABLE_RAY_CLUSTER = previous
    address = str(ray.get_runtime_context().gcs_address)
    if not address.startswith(f"{_LOOPBACK}:"):
        ray.shutdown()
        raise WorkerError(
            f"this version of Ray listens at {address}, which other machines reach: expected "
            f"{_LOOPBACK}; start a cluster with 'ray start' and use the workers ray:auto"
        )


def _join_cluster(address: str) -> None:
    """Connect to a running cluster, which may be busy: one that gives up is tried again."""
    for pause in _PAUSES:
        try:
            ray.init(address=address, **_QUIET)
        except ConnectionAbortedError as error:
            logger.info("%s did not serve us, and is tried again: %s", address, _first_line(error))
            time.sleep(pause)
        else:
            return
    ray.init(address=address, **_QUIET)


def _first_line(error: Exception) -> str:
    """The kind of an error of Ray and what it says first; the rest is advice and logs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # A remote traceback follows a colon, and its last line has the cause.
    text = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and lines[1:] else lines[0]
    return f"{type(error).__name__}: {text}"


def _resources() -> dict[str, float]:
    resources: Any = ray.cluster_resources  # it has no types
    found: dict[str, float] = resources()
    return found


class RayWorker:
    """The driver's side of one actor. It is not restarted by Ray, but replaced by us."""

    def __init__(self, backend: RayBackend, max_bytes: int) -> None:
        self._backend, self._max_bytes = backend, max_bytes
        self._sent_problems = RecentProblems()
        settings: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)
        # Ray gives its workers the script's folder only; a task may be in any module.
        paths = [path or os.getcwd() for path in sys.path]
        self._actor: Any = settings(_TaskActor).remote(max_bytes, paths)

    def wait_until_ready(self) -> None:
        """Wait for its first answer."""
        try:
            self._wait(self._actor.is_ready.remote(), _START_SECONDS)
        except TimeoutError:
            raise WorkerLost(
                f"its Ray actor was not there after {_START_SECONDS:g} s: no node of the cluster "
                "may have a CPU left"
            ) from None

    def run(self, request: Request) -> Reply:
        """Call the actor and wait for the reply."""
        problem = request.problem
        items = encode(request.items, self._max_bytes)
        shared = []
        if problem.key and problem.key not in self._sent_problems:
            # In a list Ray passes the reference itself, which the actor reads.
            shared.append(self._backend.share_problem(problem.key, problem.data))
        # Ray copies bytes into its pickle and out of it again; an array's memory it shares.
        data = np.frombuffer(items, np.uint8)
        call = self._actor.answer.remote(problem.key, shared, request.encoded_task, data)
        try:
            reply = self._wait(call, request.timeout)
        except TimeoutError:
            raise WorkerLost(f"its Ray actor took longer than {request.timeout:g} s") from None
        if not was_read(reply):
            self._sent_problems.clear()
        elif problem.key:
            self._sent_problems.add(problem.key, None, len(problem.data))
        return read_reply(reply)

    def kill(self) -> None:
        """End the actor."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            ray.kill(self._actor)

    def _wait(self, call: Any, timeout: float) -> Any:
        try:
            return ray.get(call, timeout=min(timeout, 1e9))
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError from None
        except ray.exceptions.RayError as error:
            raise WorkerLost(f"its Ray actor failed: {_first_line(error)}") from None


class _TaskActor:
    """The actor's side: a `TaskRunner` that Ray calls."""

    def __init__(self, max_bytes: int, paths: list[str]) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        keep_freed_memory()
        self._runner = TaskRunner(max_bytes)

    def is_ready(self) -> bool:
        return True

    def answer(
        self, key: str, shared: list[Any], task: bytes, items: NDArray[np.uint8]
    ) -> list[bytes]:
        problem = ray.get(shared[0]) if shared else b""
        return self._runner.answer(key, problem, task, items.data)
