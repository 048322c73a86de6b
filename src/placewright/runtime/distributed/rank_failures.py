"""How ranks learn that one of them has failed, or says nothing any more."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from placewright.runtime.distributed.control_channel import ControlMessage, MessageKind, try_send
from placewright.runtime.distributed.transport import ConnectionLost

if TYPE_CHECKING:
    import weakref

    from placewright.runtime.distributed.session import RankSession

DISCONNECT_DELAY, JOIN_TIMEOUT = 0.5, 5.0
"""Seconds between a failure and the end of all connections, and that a thread may take to end."""


def tell_failure(session: RankSession, text: str, lost: int | None) -> None:
    """Tell all ranks but the one that is lost, wait until they know, and end all threads.

    A connection that ended before would lose the message, and they would blame this rank.
    """
    message = ControlMessage(MessageKind.FAILED, data={"text": text[:3000]})
    channels = [channel for channel in session.channels.values() if channel.peer != lost]
    senders = [  # each in a thread: a rank that hangs holds up no other
        threading.Thread(target=try_send, args=(channel, message, True), daemon=True)
        for channel in channels
    ]
    for sender in senders:
        sender.start()
    end = time.monotonic() + min(session.silence, JOIN_TIMEOUT)
    for channel, sender in zip(channels, senders, strict=True):
        sender.join(max(0.0, end - time.monotonic()))
        channel.peer_knows.wait(max(0.0, end - time.monotonic()))
    for channel in session.channels.values():
        channel.stop()
    time.sleep(DISCONNECT_DELAY)  # ranks that another one tells
    session.transport.disconnect()
    session.join_threads()


def watch_ranks(
    reference: weakref.ref[RankSession], ended: threading.Event, interval: float
) -> None:
    """Notice ranks that say nothing any more."""
    while not ended.wait(interval):
        session = reference()
        if session is None:
            return
        for channel in session.channels.values():
            if channel.is_silent:
                session.fail(ConnectionLost(channel.peer, "does not answer any more"))
                return
        del session
