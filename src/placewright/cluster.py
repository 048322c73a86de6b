"""A cluster: devices, and the links and channels between them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from placewright.errors import ClusterError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOST = "cpu"  # the kind of device that is a host: graph inputs are there


@dataclass(frozen=True, slots=True)
class Device:
    """Where ops run, one at a time.

    Args:
        kind: `gpu`, `cpu` or another word; a `cpu` is a host.
        model: The hardware's name, such as `P100`.
        memory: Bytes it has.
        reserve: Bytes of them that a plan must leave free.
        rates: FLOP/s by dtype.
        memory_bandwidth: Bytes per second between its cores and its memory.
        launch_overhead: Seconds it takes to start one op.
        issuer: Name of the host thread that starts its ops, if it is shared with other devices.
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
        if self.memory < 0 or self.reserve < 0:
            raise ClusterError(
                f"device {self.name!r} has memory {self.memory!r} and reserve {self.reserve!r}: "
                "expected >= 0"
            )
        if not (
            self.memory_bandwidth > 0
            and math.isfinite(self.launch_overhead)
            and self.launch_overhead >= 0
        ):
            raise ClusterError(
                f"device {self.name!r} has memory bandwidth {self.memory_bandwidth!r} and "
                f"launch overhead {self.launch_overhead!r}: "
                "expected a bandwidth > 0 and a finite overhead >= 0"
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
    """The link from one device to another; links that name one channel share its wire.

    Args:
        bandwidth: Bytes per second.
        latency: Seconds until the first byte arrives.
        channel: The wire's name; by default each direction has its own.
        pageable_bandwidth: Bytes per second of tensors that are not resident, if that is less: a
            host keeps weights in pinned memory, but inputs and op outputs in pageable memory.
        handoff_latency: Seconds of latency of such tensors, if that is more: resident ones are
            prefetched one after the other; an op's output passes from one thread to another.
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
            if latency is not None and not (math.isfinite(latency) and latency >= 0):
                raise ClusterError(f"a link has latency {latency!r}: expected a finite number >= 0")


@dataclass(frozen=True)
class Cluster:
    """Devices and a directed link for every ordered pair of them.

    A pair without a link is routed over other devices: latencies add up, and the narrowest link of
    the route gives bandwidth and channel.
    """

    name: str
    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link]

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        if not self.devices:
            raise ClusterError(f"cluster {self.name!r} has no devices: expected at least one")
        names = [device.name for device in self.devices]
        known = set(names)
        if len(known) < len(names):
            duplicate = next(name for name in names if names.count(name) > 1)
            raise ClusterError(f"two devices are named {duplicate!r}: names must be unique")
        links: dict[tuple[str, str], Link] = {}
        for (source, target), link in self.links.items():
            for end in (source, target):
                if end not in known:
                    raise ClusterError(f"a link names device {end!r}: {nearest(end, names)}")
            if source == target:
                raise ClusterError(f"a link leads from {source!r} to itself: expected two devices")
            named_link = link if link.channel else replace(link, channel=f"{source}->{target}")
            links[source, target] = named_link
        object.__setattr__(self, "links", _route_links(self.name, names, links))

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, {', '.join(device.name for device in self.devices)})"

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """The cluster that a string such as `2xP100+cpu` or `2x(4xV100)@25GbE` describes."""
        from placewright.presets import parse

        if not isinstance(text, str):
            raise ClusterError(
                f"found {text!r} instead of a cluster: expected text like '2xP100+cpu'"
            )
        return parse(text)

    @cached_property
    def position(self) -> dict[str, int]:
        """The position of each device, by name."""
        return {device.name: position for position, device in enumerate(self.devices)}

    @cached_property
    def host(self) -> int | None:
        """The first device that is a host, if there is one."""
        hosts = [at for at, device in enumerate(self.devices) if device.kind == HOST]
        return hosts[0] if hosts else None

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """Channel names in order of first use, by source, then by target."""
        names = [device.name for device in self.devices]
        pairs = ((source, target) for source in names for target in names if source != target)
        return tuple(dict.fromkeys(self.links[pair].channel for pair in pairs))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that matters in the cluster but its own name."""
        devices = [
            (
                (device.name, device.kind, device.model, device.memory, device.reserve),
                sorted((dtype, float(rate)) for dtype, rate in device.rates.items()),
                (float(device.memory_bandwidth), float(device.launch_overhead), device.issuer),
            )
            for device in self.devices
        ]
        links = sorted(
            (pair, float(link.bandwidth), float(link.latency), link.channel, *_unstored_rates(link))
            for pair, link in self.links.items()
        )
        content = devices, links
        return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()

    def subset(self, names: Iterable[str]) -> Cluster:
        """The same cluster with only these devices, in the cluster's order."""
        selection = list(names)
        for name in selection:
            if name not in self.position:
                raise ClusterError(
                    f"cluster {self.name!r} has no device {name!r}: {nearest(name, self.position)}"
                )
        devices = tuple(device for device in self.devices if device.name in selection)
        links = {pair: link for pair, link in self.links.items() if set(pair) <= set(selection)}
        return Cluster(f"{self.name}:{','.join(d.name for d in devices)}", devices, links)


def _route_links(
    cluster_name: str, names: list[str], links: dict[tuple[str, str], Link]
) -> dict[tuple[str, str], Link]:
    """Links for every ordered pair; missing ones take the route that is fastest for a megabyte."""
    if len(links) == len(names) * (len(names) - 1):
        return links
    route_seconds = {pair: link.latency + 1e6 / link.bandwidth for pair, link in links.items()}
    routes = dict(links)
    for relay in names:
        for source in names:
            for target in names:
                if source == target or relay in (source, target) or (source, target) in links:
                    continue
                first_hop, second_hop = routes.get((source, relay)), routes.get((relay, target))
                if first_hop is None or second_hop is None:
                    continue
                seconds = route_seconds[source, relay] + route_seconds[relay, target]
                if seconds < route_seconds.get((source, target), math.inf):
                    route_seconds[source, target] = seconds
                    bottleneck = (
                        first_hop if first_hop.bandwidth <= second_hop.bandwidth else second_hop
                    )
                    routes[source, target] = replace(
                        bottleneck, latency=first_hop.latency + second_hop.latency
                    )
    for source in names:
        for target in names:
            if source != target and (source, target) not in routes:
                raise ClusterError(
                    f"cluster {cluster_name!r} has no route from {source!r} to {target!r}: "
                    "add a link"
                )
    return routes


def _unstored_rates(link: Link) -> list[tuple[str, float]]:
    """A link's figures for tensors that are not resident."""
    rates = ("loose", link.pageable_bandwidth), ("handing", link.handoff_latency)
    return [(name, float(value)) for name, value in rates if value is not None]
