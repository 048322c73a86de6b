"""The control channel between rank 0 and another rank: short messages, and a heartbeat.

A message is a header of fixed size and a JSON object; its size is checked before memory is taken
for it. Each end sends a beat every few seconds, so that a rank that hangs, or whose network is cut,
is noticed after `silence` seconds; one that dies closes its connection, and is noticed at once.
Silence is told by the clock, not by a time-out of gloo's: that would break all connections, also
those over which the other ranks are to learn of it.
"""

from __future__ import annotations

import contextlib
import enum
import json
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from placewright.errors import ExecutionError
from placewright.runtime.distributed.transport import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from placewright.runtime.distributed.transport import Transport

MAGIC = b"PWC1"
CONTROL_TAG, BODY_TAG = 1, 2
MAX_BODY_BYTES = 64 << 20
"""The largest JSON object that is accepted: a list of all weights of a large model is far less."""
BEATS = 5
"""Beats in the time after which a rank counts as silent."""
_HEADER = struct.Struct("<4sHxxIIQ")  # magic, kind, bytes of the object, graph, step
FRAME_BYTES = 4096


class MessageKind(enum.IntEnum):
    """What a control message says."""

    BEAT = 1
    HELLO = 2
    WELCOME = 3
    WEIGHTS = 4
    PREPARE = 5
    READY = 6
    STEP = 7
    DROP = 8
    FAILED = 9
    CLOSE = 10
    CLOSED = 11
    MEASURE = 12
    MEASURED = 13
    BARRIER = 14
    UPDATE = 15
    GATHER = 16


class ControlMessage(NamedTuple):
    """A control message.

    Args:
        graph: The number of a graph, where the kind has one.
        step: The number of a step, likewise.
        data: Anything else, as JSON has it.
    """

    kind: MessageKind
    graph: int = 0
    step: int = 0
    data: Mapping[str, Any] = {}


class ControlChannel:
    """Messages to and from one rank.

    Args:
        silence: Seconds without a message after which the rank counts as lost.
        timeout: Seconds after which a receive gives up; more than `silence`.
        receive: Called with each message but beats, in a thread of the channel; it must not wait.
        fail: Called with the error that ends the channel.
    """

    def __init__(
        self,
        transport: Transport,
        peer: int,
        silence: float,
        timeout: float,
        receive: Callable[[int, ControlMessage], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.peer, self._transport, self._silence = peer, transport, silence
        self._timeout, self._heard_at = timeout, time.monotonic()
        self._receive, self._fail = receive, fail
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.peer_knows = threading.Event()
        """Set when the rank has said that it failed or closes, or can say nothing any more."""
        self._threads = [
            threading.Thread(target=work, name=f"placewright-rank{peer}-{name}", daemon=True)
            for work, name in ((self._read, "reads"), (self._beat, "beats"))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: ControlMessage, last: bool = False) -> None:
        """Send a message.

        Args:
            last: Send nothing after it.

        Raises:
            ConnectionLost: The rank has ended.
        """
        frame, body = _encode(message)
        with self._lock:
            if self._stopped.is_set():
                return
            if last:
                self._stopped.set()
            self._transport.send(frame, self.peer, CONTROL_TAG)
            if body is not None:
                self._transport.send(body, self.peer, BODY_TAG)

    def stop(self) -> None:
        """Send no more beats, and report no more errors."""
        self._stopped.set()

    @property
    def is_silent(self) -> bool:
        """Whether the rank has said nothing for too long."""
        return time.monotonic() - self._heard_at > self._silence

    def join(self, timeout: float) -> None:
        """Wait until the channel's threads have ended, for some seconds each."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _beat(self) -> None:
        while not self._stopped.wait(self._silence / BEATS):
            try:
                self.send(ControlMessage(MessageKind.BEAT))
            except ConnectionLost as error:
                self._report(error)
                return

    def _read(self) -> None:
        frame = torch.empty(FRAME_BYTES, dtype=torch.uint8)
        try:
            while True:
                self._transport.receive(frame, self.peer, CONTROL_TAG)(self._timeout)
                self._heard_at = time.monotonic()
                message = self._decode(frame)
                if message.kind != MessageKind.BEAT:
                    self._receive(self.peer, message)
                if message.kind in (MessageKind.CLOSE, MessageKind.CLOSED):
                    return
                if message.kind == MessageKind.FAILED:
                    self.peer_knows.set()
        except BaseException as error:
            self._report(error)
        finally:
            self.peer_knows.set()

    def _decode(self, frame: torch.Tensor) -> ControlMessage:
        data = frame.numpy().tobytes()
        magic, kind, size, graph, step = _HEADER.unpack_from(data)
        is_known = magic == MAGIC and kind in set(MessageKind)
        if not is_known or size > MAX_BODY_BYTES:
            raise ExecutionError(
                f"rank {self.peer} sent a control message of kind {kind} and {size:,} bytes: "
                "expected one of this version of Placewright"
            )
        text = data[_HEADER.size : _HEADER.size + size]
        if size > FRAME_BYTES - _HEADER.size:
            body = torch.empty(size, dtype=torch.uint8)
            self._transport.receive(body, self.peer, BODY_TAG)(self._timeout)
            text = body.numpy().tobytes()
        values = json.loads(text) if size else {}
        if not isinstance(values, dict):
            raise ExecutionError(f"rank {self.peer} sent {type(values).__name__}: expected a table")
        return ControlMessage(MessageKind(kind), graph, step, values)

    def _report(self, error: BaseException) -> None:
        if not self._stopped.is_set():
            self._fail(error)


def _encode(message: ControlMessage) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The frame of a message, and the JSON object where that does not fit into it."""
    text = json.dumps(dict(message.data)).encode() if message.data else b""
    if len(text) > MAX_BODY_BYTES:
        raise ExecutionError(
            f"a control message has {len(text):,} bytes: expected at most {MAX_BODY_BYTES:,}"
        )
    header = _HEADER.pack(MAGIC, message.kind, len(text), message.graph, message.step)
    fits = len(header) + len(text) <= FRAME_BYTES
    content = (header + text if fits else header).ljust(FRAME_BYTES, b"\0")
    return _bytes_tensor(content), None if fits else _bytes_tensor(text)


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def try_send(channel: ControlChannel, message: ControlMessage, last: bool = False) -> None:
    """Send a message to a rank that may have ended."""
    with contextlib.suppress(ConnectionLost):
        channel.send(message, last)
