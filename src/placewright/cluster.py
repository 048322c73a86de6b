"""A cluster: devices, and the links and channels between them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright import presets
from placewright.device import HOST, MAX_DEVICES, Device, Link
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
        if len(names) > MAX_DEVICES:
            raise ClusterError(
                f"cluster {self.name!r} has {len(names):,} devices: expected at most "
                f"{MAX_DEVICES:,}, as every pair has a link"
            )
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
        selection = dict.fromkeys(names)
        for name in selection:
            if name not in self.position:
                raise ClusterError(
                    f"cluster {self.name!r} has no device {name!r}: {nearest(name, self.position)}"
                )
        devices = tuple(device for device in self.devices if device.name in selection)
        links = {pair: link for pair, link in self.links.items() if selection.keys() >= set(pair)}
        return Cluster(f"{self.name}:{','.join(d.name for d in devices)}", devices, links)


def _route_links(
    cluster_name: str, names: list[str], links: dict[tuple[str, str], Link]
) -> dict[tuple[str, str], Link]:
    """Links for every ordered pair; missing ones take the route that is fastest for a megabyte.

    Floyd and Warshall's algorithm with a matrix operation per relay: a row of 1,024 devices takes
    seconds. A pair that is linked is never routed around.
    """
    count = len(names)
    if len(links) == count * (count - 1):
        return links
    position = {name: at for at, name in enumerate(names)}
    carriers = list(links.values())  # a route has the channel of its narrowest link
    carrier = np.full((count, count), -1, dtype=np.int64)
    seconds = np.full((count, count), math.inf)
    latency, bandwidth = np.zeros((count, count)), np.zeros((count, count))
    limit = seconds.copy()  # what a route must be faster than
    np.fill_diagonal(limit, -math.inf)
    for at, ((source, target), link) in enumerate(links.items()):
        pair = position[source], position[target]
        carrier[pair], latency[pair], bandwidth[pair] = at, link.latency, link.bandwidth
        seconds[pair], limit[pair] = link.latency + 1e6 / link.bandwidth, -math.inf
    with np.errstate(over="ignore"):
        for relay in range(count):
            via = seconds[:, relay, None] + seconds[None, relay, :]
            sources, targets = np.nonzero(via < limit)
            if not len(sources):
                continue
            first, second = (sources, relay), (relay, targets)
            is_first_narrow = bandwidth[first] <= bandwidth[second]
            pairs = sources, targets
            seconds[pairs] = limit[pairs] = via[pairs]
            latency[pairs] = latency[first] + latency[second]
            bandwidth[pairs] = np.where(is_first_narrow, bandwidth[first], bandwidth[second])
            carrier[pairs] = np.where(is_first_narrow, carrier[first], carrier[second])
    routes = dict(links)
    for at, source in enumerate(names):
        for to, target in enumerate(names):
            if at == to or (source, target) in links:
                continue
            if carrier[at, to] < 0:
                raise ClusterError(
                    f"cluster {cluster_name!r} has no route from {source!r} to {target!r}: "
                    "add a link"
                )
            routes[source, target] = replace(
                carriers[carrier[at, to]], latency=float(latency[at, to])
            )
    return routes


def _unstored_rates(link: Link) -> list[tuple[str, float]]:
    """A link's figures for tensors that are not resident."""
    rates = ("loose", link.pageable_bandwidth), ("handing", link.handoff_latency)
    return [(name, float(value)) for name, value in rates if value is not None]
