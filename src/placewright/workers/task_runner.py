"""What a worker process does with a request: read it, run the task, write the reply as bytes."""

from __future__ import annotations

import pickle
import struct
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import WorkerError
from placewright.workers.messages import MessageTooLarge, decode, encode
from placewright.workers.recent_problems import RecentProblems
from placewright.workers.task import run_task, task_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.workers.messages import ByteData

_DONE, _FAILED, _UNREADABLE = b"done", b"failed", b"unreadable"
_SECONDS = struct.Struct("!d")

REQUEST_OVERHEAD, REPLY_OVERHEAD = 64, 64  # bytes beside problem, task, items and results


@dataclass(frozen=True, eq=False)
class Reply:
    """The answer of a worker to one request.

    Args:
        results: One per item, if the task did not fail.
        error: What the task raised.
        seconds: How long the task ran.
    """

    results: list[Any]
    error: BaseException | None
    seconds: float


class TaskRunner:
    """The worker's side: runs requests one after the other and keeps recent problems.

    Args:
        max_bytes: The most bytes that a reply may have.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._problems = RecentProblems()

    def answer(self, key: str, problem: ByteData, task: ByteData, items: ByteData) -> list[bytes]:
        """Run a task on items; the reply's frames, which `read_reply` reads.

        Args:
            key: The key of the problem, `""` for none.
            problem: Its bytes, none if they were sent before.
        """
        began = time.perf_counter()
        status = _UNREADABLE
        try:
            if size := memoryview(problem).nbytes:
                self._problems.add(key, decode(problem), size)
            function, values = decode(task), decode(items)
            given = self._problems.get(key) if key else None
            status = _FAILED
            began = time.perf_counter()
            results = run_task(function, given, values)
            seconds = time.perf_counter() - began
            return [_DONE, _SECONDS.pack(seconds), self._encode_results(function, results)]
        except Exception as error:
            if status == _UNREADABLE:  # the driver does not know how far this came: begin anew
                self._problems.clear()
            seconds = time.perf_counter() - began
            return [status, _SECONDS.pack(seconds), _encode_error(error, self._max_bytes)]

    def _encode_results(self, task: object, results: list[Any]) -> bytes:
        try:
            return encode(results, self._max_bytes)
        except MessageTooLarge as error:
            raise MessageTooLarge(
                f"task {task_name(task)} has {len(results)} results: {error}; let it return less, "
                "or raise max_message_bytes"
            ) from None


def was_read(frames: Sequence[ByteData]) -> bool:
    """Whether the worker could read the request; it has lost its problems otherwise."""
    return bytes(frames[0]) != _UNREADABLE


def read_reply(frames: Sequence[ByteData]) -> Reply:
    """The reply of these frames, with the worker's traceback in the notes of its error."""
    status, seconds, data = frames
    value, duration = decode(data), float(_SECONDS.unpack(seconds)[0])
    if status == _DONE:
        return Reply(value, None, duration)
    error, text = value
    error.add_note(text)
    return Reply([], error, duration)


def describe_traceback(error: BaseException, where: str) -> str:
    """The note that an error of a task gets: where it ran, and its traceback there."""
    lines = traceback.format_exception(error)
    return f"in {where}:\n{''.join(lines).rstrip()}"


def _encode_error(error: Exception, max_bytes: int) -> bytes:
    """An error and its traceback; of one that cannot be sent, its text."""
    note = describe_traceback(error, "a worker process")
    try:
        data = encode((error, note), max_bytes)
        decode(data)  # an exception class with its own arguments may be written but not read
    except Exception:
        data = pickle.dumps((WorkerError(f"{type(error).__name__}: {error}"), note))
    return data
