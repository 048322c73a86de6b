"""Messages between a driver and its worker: objects as bytes, whose size is limited.

Pickle is for our own child processes and for a trusted Ray cluster only. The size is checked while
an object is written and before memory for a message is taken.
"""

from __future__ import annotations

import io
import pickle
import struct
import time
from typing import TYPE_CHECKING, Any

from placewright.errors import WorkerError
from placewright.units import format_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

ByteData = bytes | bytearray | memoryview

_LENGTH = struct.Struct("!Q")
_MAX_FRAMES = 8


class MessageTooLarge(WorkerError):
    """An object or a message is larger than the limit."""


class _LimitedWriter:
    """A file in memory that refuses to grow over a limit."""

    def __init__(self, limit: int) -> None:
        self._limit, self._file = limit, io.BytesIO()

    def write(self, data: ByteData) -> int:
        if self._file.tell() + memoryview(data).nbytes > self._limit:
            raise MessageTooLarge(f"it takes more than {format_bytes(self._limit)}")
        return self._file.write(data)

    def getvalue(self) -> bytes:
        return self._file.getvalue()


def encode(value: object, limit: int) -> bytes:
    """An object as bytes.

    Raises:
        MessageTooLarge: It takes more bytes than the limit.
    """
    writer = _LimitedWriter(limit)
    pickle.Pickler(writer, protocol=5).dump(value)
    return writer.getvalue()


def decode(data: ByteData) -> Any:
    """The object that `encode` has written."""
    return pickle.loads(data)


def send_message(
    connection: socket.socket, frames: Sequence[ByteData], deadline: float | None = None
) -> None:
    """Send frames of bytes as one message.

    Args:
        deadline: When to give up, by `time.monotonic`.

    Raises:
        TimeoutError: The deadline has passed.
        OSError: The other side is gone.
    """
    lengths = [memoryview(frame).nbytes for frame in frames]
    header = b"".join(_LENGTH.pack(number) for number in (len(frames), *lengths))
    for data in (header, *frames):
        connection.settimeout(_seconds_left(deadline))
        connection.sendall(data)


def receive_message(
    connection: socket.socket, limit: int, deadline: float | None = None
) -> list[bytearray]:
    """The frames of the next message; none if the other side has closed the connection.

    Raises:
        MessageTooLarge: The message announces more bytes than the limit.
        TimeoutError: The deadline has passed.
        OSError: The other side is gone.
    """
    header = _receive(connection, _LENGTH.size, deadline, may_end=True)
    if not header:
        return []
    (count,) = _LENGTH.unpack(header)
    if count > _MAX_FRAMES:
        raise MessageTooLarge(f"a message has {count} frames: at most {_MAX_FRAMES} are expected")
    lengths = [
        _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline))[0] for _ in range(count)
    ]
    if sum(lengths) > limit:
        raise MessageTooLarge(
            f"a message has {format_bytes(sum(lengths))}: at most {format_bytes(limit)} are allowed"
        )
    return [_receive(connection, length, deadline) for length in lengths]


def _receive(
    connection: socket.socket, length: int, deadline: float | None, may_end: bool = False
) -> bytearray:
    data = bytearray(length)
    view, offset = memoryview(data), 0
    while offset < length:
        connection.settimeout(_seconds_left(deadline))
        count = connection.recv_into(view[offset:])
        if not count:
            if may_end and not offset:
                return bytearray()
            raise ConnectionResetError("the connection ended within a message")
        offset += count
    return data


def _seconds_left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
