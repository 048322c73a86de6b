"""The child process of `process_workers.py`: answers requests until the driver is gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import socket
import sys
import threading

from placewright.workers.memory_allocator import keep_freed_memory
from placewright.workers.messages import receive_message, send_message
from placewright.workers.task_runner import REQUEST_OVERHEAD, TaskRunner

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def main() -> None:
    """Answer the requests of a socket: its number and the most bytes of a message are arguments."""
    number, max_bytes = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(number, False)  # what a task starts must not hold the connection open
    connection = socket.socket(fileno=number)
    _end_with_driver()
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles interrupts
    requests: queue.SimpleQueue[list[bytearray]] = queue.SimpleQueue()
    threading.Thread(
        target=_read_requests, args=(connection, max_bytes, requests), daemon=True
    ).start()
    runner = TaskRunner(max_bytes)
    # Another thread reads from the same socket, so that neither may set a time-out.
    send_message(connection, [b"ready"])
    while True:
        key, problem, task, items = requests.get()
        reply = runner.answer(key.decode(), problem, task, items)
        try:
            send_message(connection, reply)
        except OSError:
            os._exit(0)  # the driver is gone


def _read_requests(
    connection: socket.socket, max_bytes: int, requests: queue.SimpleQueue[list[bytearray]]
) -> None:
    """Hand requests on; without a driver end the process, even while a task runs."""
    with contextlib.suppress(OSError):
        # problem, task and items may each have that many
        while request := receive_message(connection, 3 * max_bytes + REQUEST_OVERHEAD):
            requests.put(request)
    os._exit(0)


def _end_with_driver() -> None:
    """Let the kernel end this process with the driver's thread that started it (Linux only).

    The end of the connection does so too, but not while compiled code holds the interpreter.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
