"""Transports: carry bytes between ranks. `GlooTransport` is the one that plans run over by default.

A transport sends and receives buffers of sizes that both ends know. Messages of one pair of ranks
and one tag arrive in the order in which they were sent; messages of two tags never wait for each
other. Every wait ends: with the message, with an error, or after a time-out, which breaks all
connections.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from placewright.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNUSED_TAG = 9
FIRST_STREAM_TAG = 16
"""Tags from here on are of streams of tensors; those below are of control messages."""
LOOPBACK_INTERFACE = "lo"
LOOPBACK_ADDRESSES = ("", "localhost", "127.0.0.1", "::1")


class ConnectionLost(ExecutionError):
    """A rank does not answer any more."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} {reason}")
        self.rank = rank


class Transport(Protocol):
    """Carries buffers between ranks."""

    rank: int
    world_size: int
    stages: int
    """How many tags it keeps apart for the tensors of steps."""

    def send(self, buffer: torch.Tensor, target: int, tag: int) -> None:
        """Send a buffer of bytes, and wait until it may be used again.

        Raises:
            ConnectionLost: The rank has ended, or does not receive in time.
        """

    def receive(self, buffer: torch.Tensor, source: int, tag: int) -> Callable[[float], None]:
        """Post a receive; the function waits for it, for some seconds at most.

        Raises:
            ConnectionLost: The rank has ended; raised by the function also after the time-out.
        """

    def disconnect(self) -> None:
        """Break the connections to all ranks: whatever waits fails."""

    def close(self) -> None:
        """Free what it holds; nothing may wait any more."""


class GlooTransport:
    """Sends buffers of the host over TCP, by torch.distributed's gloo.

    It has a process group of its own, so that nothing of the caller's comes between its messages.
    It keeps to the loopback interface, unless the ranks were started for several hosts (an address
    in MASTER_ADDR that is not this host's own) or GLOO_SOCKET_IFNAME names another one.

    Args:
        timeout: Seconds that a message may take.

    Raises:
        ExecutionError: No process group is initialised.
    """

    def __init__(self, timeout: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ExecutionError(
                "no process group is initialised: call torch.distributed.init_process_group first, "
                "or start the program with torchrun"
            )
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.stages = 8
        self._timeout = datetime.timedelta(seconds=timeout)
        with loopback_by_default():
            self._group: Any = dist.new_group(backend="gloo", timeout=self._timeout)

    def send(self, buffer: torch.Tensor, target: int, tag: int) -> None:
        """Send a buffer of bytes, and wait until it may be used again."""
        with named_loss(target):
            work: Any = dist.isend(buffer, group=self._group, tag=tag, group_dst=target)
            work.wait(self._timeout)

    def receive(self, buffer: torch.Tensor, source: int, tag: int) -> Callable[[float], None]:
        """Post a receive; the function waits for it, for some seconds at most."""
        with named_loss(source):
            work: Any = dist.irecv(buffer, group=self._group, tag=tag, group_src=source)

        def wait(timeout: float) -> None:
            with named_loss(source):
                work.wait(datetime.timedelta(seconds=timeout))

        return wait

    def disconnect(self) -> None:
        """Break the connections to all ranks: gloo does so when a receive has timed out."""
        for peer in range(self.world_size):
            if peer != self.rank:
                with contextlib.suppress(ConnectionLost):
                    self.receive(torch.empty(1, dtype=torch.uint8), peer, UNUSED_TAG)(0.001)

    def close(self) -> None:
        """Destroy the process group; nothing may wait any more."""
        if self._group is not None and dist.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the caller has
                dist.destroy_process_group(self._group)
        self._group = None


@contextlib.contextmanager
def named_loss(rank: int) -> Iterator[None]:
    """Say which rank is lost, in place of gloo's own error."""
    try:
        yield
    except RuntimeError as error:
        if "timed out" in str(error).lower() or "timeout" in str(error).lower():
            raise ConnectionLost(rank, "does not answer any more") from error
        raise ConnectionLost(rank, "has ended, or its connection broke") from error


@contextlib.contextmanager
def loopback_by_default() -> Iterator[None]:
    """Let gloo listen on the loopback interface alone, unless ranks are on several hosts."""
    variable = "GLOO_SOCKET_IFNAME"
    is_local = os.environ.get("MASTER_ADDR", "") in LOOPBACK_ADDRESSES
    if variable in os.environ or not is_local:
        yield
        return
    os.environ[variable] = LOOPBACK_INTERFACE
    try:
        yield
    finally:
        del os.environ[variable]
