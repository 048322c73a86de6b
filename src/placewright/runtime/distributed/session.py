"""A session of ranks that run one plan: who they are, what they exchange, and how they end.

All ranks open it together. Rank 0 leads: it says which step begins and when to close; the others
serve. What fails on one rank ends the session on all of them, with the same text.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, ExecutionError
from placewright.runtime.callbacks import weak_callback
from placewright.runtime.distributed.control_channel import (
    BEATS,
    ControlChannel,
    ControlMessage,
    MessageKind,
    try_send,
)
from placewright.runtime.distributed.nccl_transport import open_transport
from placewright.runtime.distributed.rank_failures import JOIN_TIMEOUT, tell_failure, watch_ranks
from placewright.runtime.distributed.step_order import StepOrder
from placewright.runtime.distributed.tensor_streams import RankStreams
from placewright.runtime.distributed.transport import ConnectionLost
from placewright.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from placewright.runtime.distributed.bandwidth_limit import BandwidthLimit
    from placewright.runtime.distributed.rank_executor import RankExecutor
    from placewright.runtime.distributed.transport import Transport

SILENCE = 20.0
"""Seconds after which a rank that says nothing counts as lost. One that dies is noticed at once."""
STEP_TIMEOUT = 1800.0
"""Seconds that a tensor of a step may take, as gloo's own default."""
GRACE = 2.0
"""Seconds in which rank 0 may say why a connection between two other ranks has ended."""


class RankSession:
    """What one rank shares with the others.

    Args:
        identity: What must be equal on all ranks, such as the plan's digest, by name.
        silence: Seconds after which a rank that says nothing counts as lost.
        step_timeout: Seconds that a tensor of a step may take.
        limit: Delays what this rank sends; for tests and benchmarks.
        transport: Carries the bytes; None: as the process group does.

    Raises:
        ExecutionError: There is no process group, a rank has ended, or ranks differ.
    """

    def __init__(
        self,
        identity: Mapping[str, str],
        silence: float = SILENCE,
        step_timeout: float = STEP_TIMEOUT,
        limit: BandwidthLimit | None = None,
        transport: Transport | None = None,
    ) -> None:
        if not (silence > 0 and step_timeout > 0):
            raise ConfigError(
                f"time-outs of {silence!r} and {step_timeout!r} s: expected more than 0 s"
            )
        self.transport = open_transport(step_timeout) if transport is None else transport
        self.rank, self.world_size = self.transport.rank, self.transport.world_size
        self.limit, self.silence, self.step_timeout = limit, silence, step_timeout
        self.failure: str | None = None
        self.is_closed = False
        self.executors: dict[int, RankExecutor] = {}
        self.work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """What `serve` does next; None: look at `failure`."""
        self.order = StepOrder(self.work.put)
        self.has_trained = False
        """Whether a step has been begun that changes weights, or will."""
        self.is_failure_known = False
        """Whether the caller has seen an error since the session failed."""
        self.handlers: dict[MessageKind, Callable[[ControlMessage], None]] = {}
        """What a rank does on messages that are not the session's own."""
        self._replies: dict[int, queue.SimpleQueue[ControlMessage | None]] = {}
        self.streams = RankStreams(
            self.transport, step_timeout, limit, weak_callback(self._lose_stream)
        )
        self._lock = threading.RLock()
        self._next_step, self._next_graph = 0, 0
        self.is_leader = self.rank == 0
        peers = range(1, self.world_size) if self.is_leader else [0]
        for peer in peers:
            self._replies[peer] = queue.SimpleQueue()
        receive, fail = weak_callback(self._receive), weak_callback(self.fail)
        self.channels = {
            peer: ControlChannel(
                self.transport, peer, silence, max(step_timeout, 3 * silence), receive, fail
            )
            for peer in peers
        }
        self._ended = threading.Event()
        threading.Thread(
            target=watch_ranks, args=(weakref.ref(self), self._ended, silence / BEATS), daemon=True
        ).start()
        self._close_at_exit()
        self._compare({**identity, "version": __version__})

    def _close_at_exit(self) -> None:
        reference = weakref.ref(self)

        def close() -> None:
            session = reference()
            if session is not None:
                session.close()

        atexit.register(close)
        weakref.finalize(self, atexit.unregister, close).atexit = False

    # -- the beginning -------------------------------------------------------------------------

    def _compare(self, identity: Mapping[str, str]) -> None:
        """Compare what must be equal on all ranks; all of them learn of the first difference."""
        if self.is_leader:
            for peer in self.channels:
                theirs = self.reply(peer, MessageKind.HELLO).data
                for name, value in identity.items():
                    if theirs.get(name) != value:
                        self.fail(
                            ExecutionError(
                                f"rank {peer} has another {name} than rank 0 "
                                f"({theirs.get(name)!r}, not {value!r}): start all ranks with the "
                                "same arguments, files and versions"
                            )
                        )
                        self.check()
            for channel in self.channels.values():
                channel.send(ControlMessage(MessageKind.WELCOME))
        else:
            self.channels[0].send(ControlMessage(MessageKind.HELLO, data=identity))
            self.reply(0, MessageKind.WELCOME)

    def add_graph(self, executor: RankExecutor, number: int | None = None) -> int:
        """Number an executor; all ranks add theirs in one order, or say the number."""
        with self._lock:
            number = self._next_graph if number is None else number
            self._next_graph = number + 1
            self.executors[number] = executor
            return number

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let ranks do the block one after the other, rank 0 first."""
        if self.is_leader:
            yield
            for peer in self.channels:
                self.send(peer, ControlMessage(MessageKind.WELCOME))
                self.reply(peer, MessageKind.READY)
            return
        self.reply(0, MessageKind.WELCOME)
        yield
        self.send(0, ControlMessage(MessageKind.READY))

    # -- messages ------------------------------------------------------------------------------

    def send(self, peer: int, message: ControlMessage) -> None:
        """Send a control message.

        Raises:
            ExecutionError: The session has failed.
        """
        self.check()
        try:
            self.channels[peer].send(message)
        except ConnectionLost as error:
            self.fail(error)
            self.check()

    def broadcast(self, message: ControlMessage) -> None:
        """Send a control message to all other ranks, from rank 0."""
        for peer in self.channels:
            self.send(peer, message)

    def reply(self, peer: int, kind: MessageKind) -> ControlMessage:
        """Wait for the next message of a rank, which must be of this kind.

        Beats go on meanwhile, so that a rank that has ended is noticed.

        Raises:
            ExecutionError: The session has failed.
        """
        self.check()
        message = self._replies[peer].get()
        if message is None:
            self._replies[peer].put(None)  # for the next one who waits
            self.check()
        if message is None or message.kind != kind:
            self.fail(ExecutionError(f"rank {peer} sent {message!r}: expected {kind.name}"))
            self.check()
        assert message is not None
        return message

    def _receive(self, peer: int, message: ControlMessage) -> None:
        """Take a message, in the thread of its channel."""
        if message.kind == MessageKind.FAILED:
            self.fail(ExecutionError(str(message.data.get("text", ""))))
        elif self.is_leader or message.kind in (MessageKind.WELCOME, MessageKind.WEIGHTS):
            self._replies[peer].put(message)
        else:
            if message.kind == MessageKind.CLOSE:
                for executor in list(self.executors.values()):
                    executor.stop_issuing()  # or the thread that serves may wait for rank 0
            self.work.put(lambda: self._obey(message))

    def _obey(self, message: ControlMessage) -> None:
        """Do what rank 0 says, in the thread that serves: when weights are not being changed."""
        if message.kind == MessageKind.STEP:
            accumulates = message.data.get("accumulates") is True
            self._executor(message.graph).begin_step(message.step, accumulates)
            return
        self.order.run(partial(self._act, message), is_alone=message.kind == MessageKind.UPDATE)

    def _act(self, message: ControlMessage) -> None:
        if message.kind == MessageKind.DROP:
            executor = self.executors.pop(message.graph, None)
            if executor is not None:
                executor.close()
        elif message.kind == MessageKind.UPDATE:
            self._executor(message.graph).apply_gradients(int(message.data["count"]))
        elif message.kind == MessageKind.BARRIER:
            self.send(0, ControlMessage(MessageKind.READY))
        elif message.kind in self.handlers:
            self.handlers[message.kind](message)
        elif message.kind == MessageKind.CLOSE:
            self._end()
        else:
            raise ExecutionError(f"rank 0 sent {message.kind.name}, which this rank cannot do now")

    def _executor(self, graph: int) -> RankExecutor:
        if graph not in self.executors:
            raise ExecutionError(f"rank 0 runs graph {graph}, which this rank does not have")
        return self.executors[graph]

    # -- steps ---------------------------------------------------------------------------------

    def begin_step(
        self, graph: int, ranks: Collection[int], trains: bool = False, accumulates: bool = False
    ) -> int:
        """Begin a step on the ranks that have a part in it, from rank 0; its number.

        Args:
            trains: Whether it is a training step.
            accumulates: Whether that sums gradients, and changes no weights yet.
        """
        with self._lock:
            step, self._next_step = self._next_step, self._next_step + 1
        self.has_trained |= trains
        data = {"accumulates": True} if accumulates else {}
        for peer in self.channels.keys() & set(ranks):
            self.send(peer, ControlMessage(MessageKind.STEP, graph, step, data))
        return step

    def barrier(self) -> None:
        """Wait until all ranks have ended the steps that change weights, from rank 0.

        Raises:
            ExecutionError: The session has failed.
        """
        self.broadcast(ControlMessage(MessageKind.BARRIER))
        for peer in self.channels:
            self.reply(peer, MessageKind.READY)

    def drop_graph(self, graph: int) -> None:
        """Let all ranks close the executor of a graph, from rank 0."""
        self.executors.pop(graph, None)
        if self.failure is None and not self.is_closed:
            self.broadcast(ControlMessage(MessageKind.DROP, graph))

    def serve(self, is_finished: Callable[[], bool] = lambda: False) -> None:
        """Do this rank's part of all steps, until rank 0 closes the session.

        Args:
            is_finished: Also ends it, after a message.

        Raises:
            ExecutionError: A rank has failed, this one included; or this is rank 0.
        """
        if self.is_leader:
            raise ExecutionError("rank 0 calls the model; the other ranks serve")
        while not self.is_closed and not is_finished():
            self.check()
            task = self.work.get()
            if task is None:
                continue
            try:
                task()
            except Exception as error:
                self.fail(error)
                self.check()
                raise

    # -- the end -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what has ended the session, if anything has."""
        if self.failure is not None:
            self.is_failure_known = True
            raise ExecutionError(self.failure)
        if self.is_closed:
            raise ExecutionError("the ranks are closed: apply the plan again on all of them")

    def fail(self, error: BaseException) -> None:
        """End the session on all ranks; the first failure is the one that all of them report."""
        text = str(error) or type(error).__name__
        lost = error.rank if isinstance(error, ConnectionLost) else None
        # Not a daemon, and begun before anyone learns of the failure: the program may end at once,
        # and must not before the other ranks are told. Nor may a thread wait in gloo by then.
        tells = threading.Thread(
            target=tell_failure,
            args=(self, text, lost),
            name="placewright-tells-failure",
            daemon=False,  # which it would be if made by one
        )
        with self._lock:
            if self.failure is not None or self.is_closed:
                return
            tells.start()
            self.failure = text
            self._ended.set()
            executors = list(self.executors.values())
        for executor in executors:
            executor.end_steps(text)
        for replies in self._replies.values():
            replies.put(None)
        self.work.put(None)

    def _lose_stream(self, error: BaseException) -> None:
        """End the session for an error of a stream.

        Another rank's connection may break because it has failed itself: rank 0 then says why.
        """
        if isinstance(error, ConnectionLost) and not self.is_leader and error.rank != 0:
            self._ended.wait(GRACE)
        self.fail(error)

    def close(self) -> None:
        """End the session in good order: from rank 0, when no step is in flight.

        Raises:
            ExecutionError: A training step has failed, and rank 0 had its loss before that.
        """
        if self.is_leader and self.has_trained and not self.is_closed:
            if self.failure is None:
                self.barrier()
            elif not self.is_failure_known:
                self.check()
        with self._lock:
            if self.is_closed or self.failure is not None:
                return
            self.is_closed = True
            self._ended.set()
        if self.is_leader:
            for peer, channel in self.channels.items():
                try_send(channel, ControlMessage(MessageKind.CLOSE), last=True)
                self._await_closed(peer)
            self._release()
            self.join_threads()
            self.transport.close()

    def _await_closed(self, peer: int) -> None:
        """Wait until a rank has closed, or for a while."""
        try:
            while True:
                message = self._replies[peer].get(timeout=self.silence)
                if message is None or message.kind == MessageKind.CLOSED:
                    return
        except queue.Empty:
            return

    def _end(self) -> None:
        """Close this rank, as rank 0 says."""
        self.is_closed = True
        self._ended.set()
        self._release()
        try_send(self.channels[0], ControlMessage(MessageKind.CLOSED), last=True)
        self.join_threads()
        self.transport.close()

    def _release(self) -> None:
        for executor in list(self.executors.values()):
            executor.close()
        self.executors.clear()

    def join_threads(self) -> None:
        """Wait for the threads of streams and channels, for some seconds each."""
        self.streams.close(JOIN_TIMEOUT)
        for channel in self.channels.values():
            channel.join(JOIN_TIMEOUT)
