"""Devices and links: what a cluster is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.errors import ClusterError
from placewright.units import MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "cpu"
"""The kind of a host device; graph inputs are there."""
HOST_SEPARATOR = "/"
"""Between a host and a device of it, in the name of a device of several hosts: `node0/gpu1`."""
MAX_DEVICES = 1024
"""Devices in one cluster. Every ordered pair has a link, a million of them: more take minutes."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device runs ops, one at a time.

    Args:
        kind: `gpu`, `cpu` or another word; a `cpu` is a host.
        model: Name of the hardware, e.g. `P100`.
        memory: Bytes of memory.
        reserve: Bytes of the memory that a plan must not use.
        rates: FLOP/s by dtype.
        memory_bandwidth: Bytes per second between its cores and its memory.
        launch_overhead: Seconds to launch one op.
        issuer: Name of the host thread that launches its ops, if other devices share the thread.
    """

    name: str
    kind: str = "gpu"
    model: str = ""
    memory: int = 0
    reserve: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth: float = math.inf
    launch_overhead: float = 0.0
    issuer: str | None = None

    def __post_init__(self) -> None:
        if not self.name or any(character in self.name for character in "+@(), "):
            raise ClusterError(f"device name {self.name!r}: expected a word without '+@(), '")
        if not (0 <= self.memory < math.inf and 0 <= self.reserve < math.inf):
            raise ClusterError(
                f"device {self.name!r} has memory {self.memory!r} and reserve {self.reserve!r}: "
                "expected finite numbers >= 0"
            )
        if not (self.memory_bandwidth > 0 and 0 <= self.launch_overhead <= MAX_SECONDS):
            raise ClusterError(
                f"device {self.name!r} has memory bandwidth {self.memory_bandwidth!r} and launch "
                f"overhead {self.launch_overhead!r}: expected a bandwidth > 0 and an overhead of 0 "
                f"to {MAX_SECONDS:g} s"
            )
        for dtype, rate in self.rates.items():
            if not rate > 0:
                raise ClusterError(
                    f"device {self.name!r} has rate {rate!r} for {dtype}: expected > 0"
                )

    @property
    def capacity(self) -> int:
        """Bytes a plan may use."""
        return max(0, self.memory - self.reserve)

    def rate(self, dtype: str) -> float:
        """FLOP/s for a dtype; one that is not listed runs as float32, or as the slowest listed."""
        if dtype in self.rates:
            return self.rates[dtype]
        if "float32" in self.rates:
            return self.rates["float32"]
        return min(self.rates.values(), default=math.inf)


@dataclass(frozen=True, slots=True)
class Link:
    """The connection from one device to another; links that name one channel share it.

    A host keeps weights in pinned memory. Its other tensors are in pageable memory, and another
    thread may have to hand them over, so a link may have slower figures for these.

    Args:
        bandwidth: Bytes per second.
        latency: Seconds until the first byte arrives.
        channel: Name of the shared resource; by default each direction has its own.
        pageable_bandwidth: Bytes per second for tensors that are not weights, if that is less.
        handoff_latency: Seconds of latency for tensors that are not weights, if that is more:
            weights are copied ahead, one after the other, and an op's output passes from one
            thread to another.
    """

    bandwidth: float
    latency: float = 0.0
    channel: str = ""
    pageable_bandwidth: float | None = None
    handoff_latency: float | None = None

    def __post_init__(self) -> None:
        for rate in (self.bandwidth, self.pageable_bandwidth):
            if rate is not None and not rate > 0:
                raise ClusterError(f"a link has bandwidth {rate!r}: expected > 0")
        for latency in (self.latency, self.handoff_latency):
            if latency is not None and not 0 <= latency <= MAX_SECONDS:
                raise ClusterError(
                    f"a link has latency {latency!r}: expected 0 to {MAX_SECONDS:g} s"
                )
