"""Presets of devices and links: what a name in a cluster string stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.device import Device, Link

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class DevicePreset:
    """A device that can be named; `devices.toml` describes the fields.

    Args:
        also: Other names of the same preset.
        link: Name of the link to the host.
        peer: Name of the link to another device of the same model, or empty.
        peer_limit: How many devices a peer link joins; 0 for any number.
        with_peer: Name of the preset meant when a string asks for a peer link that this one lacks.
        unified: Whether CPU and GPU share the memory, so that there is no host beside the GPU.
        sizes: Other sizes of the memory, in bytes.
        source: Where the figures are from.
    """

    name: str
    kind: str
    memory: int
    reserve: int
    rates: Mapping[str, float]
    memory_bandwidth: float
    launch_overhead: float
    link: str
    source: str
    peer: str = ""
    peer_limit: int = 0
    also: tuple[str, ...] = ()
    with_peer: str = ""
    unified: bool = False
    sizes: tuple[int, ...] = ()

    @property
    def float32(self) -> float:
        """FLOP/s in float32."""
        return self.device(self.name).rate("float32")

    @property
    def float16(self) -> float:
        """FLOP/s in float16; those in float32 if the hardware has no faster units."""
        return self.device(self.name).rate("float16")

    def device(self, name: str) -> Device:
        """A device of this model."""
        return Device(
            name=name,
            kind=self.kind,
            model=self.name,
            memory=self.memory,
            reserve=self.reserve,
            rates=self.rates,
            memory_bandwidth=self.memory_bandwidth,
            launch_overhead=self.launch_overhead,
        )

    def with_memory(self, size: int) -> DevicePreset:
        """The same model with another size of memory; the share in reserve stays."""
        reserve = self.reserve * size // self.memory if self.unified else self.reserve
        return replace(self, memory=size, reserve=reserve)


@dataclass(frozen=True, slots=True)
class LinkPreset:
    """A link that can be named.

    Args:
        kind: `pcie`, `nvlink`, `fabric`, `socket` or `package` inside a node, `network` between
            nodes.
        also: Other names of the same preset.
        source: Where the figures are from.
    """

    name: str
    kind: str
    bandwidth: float
    latency: float
    source: str
    also: tuple[str, ...] = ()

    @property
    def link(self) -> Link:
        """A link of this kind, on a channel of its own."""
        return Link(self.bandwidth, self.latency)
