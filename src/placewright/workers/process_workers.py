"""Workers that are local processes: each has a socket to the driver and one thread for products.

A process is started afresh, not forked: threads of PyTorch do not survive a fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.workers.messages import MessageTooLarge, encode, receive_message, send_message
from placewright.workers.recent_problems import RecentProblems
from placewright.workers.task_runner import REPLY_OVERHEAD, read_reply, was_read
from placewright.workers.worker_backend import WorkerLost

if TYPE_CHECKING:
    from placewright.workers.task_runner import Reply
    from placewright.workers.worker_backend import Request
    from placewright.workers.worker_spec import WorkerKind

_START_SECONDS = 60.0  # a process that imports the library takes a second; a busy machine, ten
_END_SECONDS = 5.0

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class ProcessBackend:
    """Local processes.

    Args:
        max_bytes: The most bytes that a message may have.
    """

    count: int
    max_bytes: int
    kind: WorkerKind = "processes"
    exchange_seconds: float = 2e-4

    def start_worker(self, number: int) -> ProcessWorker:
        """Start a process."""
        return ProcessWorker(self.max_bytes)

    def close(self) -> None:
        """Processes share nothing."""


class ProcessWorker:
    """The driver's side of one process."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sent_problems = RecentProblems()
        self._lock, self._is_killed = threading.Lock(), False
        self._connection, remote = socket.socketpair()
        # The same packages as here; `-P` adds none from the current folder.
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = (sys.executable, "-P", "-m", "placewright.workers.process_worker")
        try:
            self._process = subprocess.Popen(
                [*command, str(remote.fileno()), str(max_bytes)],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": paths},
                pass_fds=[remote.fileno()],
                start_new_session=True,  # the driver handles interrupts
            )
        except OSError as error:
            self._connection.close()
            raise WorkerLost(f"its process could not be started: {error}") from None
        finally:
            remote.close()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait for its first message."""
        try:
            is_ready = receive_message(
                self._connection, self._max_bytes, time.monotonic() + _START_SECONDS
            )
        except TimeoutError:
            raise WorkerLost(f"it was not ready after {_START_SECONDS:g} s") from None
        except OSError:
            is_ready = []
        if not is_ready:
            raise WorkerLost(self._describe_end())

    def run(self, request: Request) -> Reply:
        """Send a request and wait for the reply."""
        problem = request.problem
        is_new = bool(problem.key) and problem.key not in self._sent_problems
        items = encode(request.items, self._max_bytes)
        data = problem.data if is_new else b""
        frames = (problem.key.encode(), data, request.encoded_task, items)
        deadline = time.monotonic() + min(request.timeout, 1e9)
        try:
            send_message(self._connection, frames, deadline)
            reply = receive_message(self._connection, self._max_bytes + REPLY_OVERHEAD, deadline)
        except TimeoutError:
            raise WorkerLost(f"its process took longer than {request.timeout:g} s") from None
        except MessageTooLarge as error:  # the rest of the message would be taken for the next
            raise WorkerLost(f"its reply was refused: {error}") from None
        except OSError:
            reply = []
        if not reply:
            raise WorkerLost(self._describe_end())
        if not was_read(reply):
            self._sent_problems.clear()
        elif problem.key:
            self._sent_problems.add(problem.key, None, len(problem.data))
        return read_reply(reply)

    def kill(self) -> None:
        """End the process and what it has started."""
        with self._lock:
            if not self._is_killed:  # later its number may be that of another process
                self._is_killed = True
                with contextlib.suppress(OSError):  # the group is gone
                    os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
        self._connection.close()

    def _describe_end(self) -> str:
        """How the process ended, after its connection did."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        if code >= 0:
            return f"its process ended with status {code}"
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process was ended by signal {-code}"
