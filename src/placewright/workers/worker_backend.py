"""What a kind of workers provides: it starts workers, and each runs one request at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from placewright.workers.recent_problems import EncodedProblem
    from placewright.workers.task_runner import Reply
    from placewright.workers.worker_spec import WorkerKind


class WorkerLost(Exception):
    """A worker died, hung or could not be started; its text says how."""


@dataclass(frozen=True, eq=False)
class Request:
    """A chunk of items for one worker.

    Args:
        encoded_task: The bytes of the task.
        timeout: Seconds after which the worker counts as hanging.
    """

    task: Any
    encoded_task: bytes
    items: Any
    problem: EncodedProblem
    timeout: float


class RunningWorker(Protocol):
    """A worker that was started."""

    def wait_until_ready(self) -> None:
        """Wait until it takes requests.

        Raises:
            WorkerLost: It died, or took too long.
        """
        ...

    def run(self, request: Request) -> Reply:
        """Run a request and wait for the reply.

        Raises:
            WorkerLost: It died, or took longer than the request's time-out.
            MessageTooLarge: The items take more bytes than a message may have.
        """
        ...

    def kill(self) -> None:
        """End it at once, from any thread; whoever waits for it gets WorkerLost."""
        ...


class WorkerBackend(Protocol):
    """One kind of workers."""

    @property
    def kind(self) -> WorkerKind: ...

    @property
    def count(self) -> int:
        """How many workers there are."""
        ...

    @property
    def exchange_seconds(self) -> float:
        """About how long an empty request takes, which says how small chunks may be."""
        ...

    def start_worker(self, number: int) -> RunningWorker:
        """Start the worker of this number, without waiting for it.

        Raises:
            WorkerLost: It could not be started.
        """
        ...

    def close(self) -> None:
        """Give back what all workers share."""
        ...
