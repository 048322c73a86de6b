"""A cluster: devices, and the links and channels between them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from placewright import presets
from placewright.device import HOST, Device, Link
from placewright.errors import ClusterError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Cluster:
    """Devices, and a directed link for every ordered pair of them.

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
        if not isinstance(text, str):
            raise ClusterError(
                f"found {text!r} instead of a cluster: expected text like '2xP100+cpu'"
            )
        return cls(text.strip(), *presets.parse(text))

    @cached_property
    def position(self) -> dict[str, int]:
        """The position of each device, by name."""
        return {device.name: position for position, device in enumerate(self.devices)}

    @cached_property
    def host(self) -> int | None:
        """The position of the first host, if there is one."""
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
        """A digest of the cluster without its name."""
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
