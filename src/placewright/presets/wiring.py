"""Nodes of grouped devices in, the Cluster that joins them out.

- The links out of one GPU over PCIe, to other GPUs and to hosts, share one channel, its slot
  (`gpu0-pcie`); a host has a channel to each GPU.
- The links out of one GPU over NVLink share one channel too (`gpu0-nvlink`).
- Between nodes all that a node sends shares one channel, its network card (`node0-net`).
- A link between unequal ends is as slow as the slower.

Only senders share: what a device receives from two others arrives at the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

from placewright.cluster import HOST, Cluster, Device, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.presets.catalogue import Preset

NOWHERE = Link(math.inf)
"""The network of a node that is alone."""


@dataclass(frozen=True, slots=True)
class Group:
    """Equal devices, with the link to their host and, where they have one, to each other."""

    count: int
    preset: Preset
    host: Link
    peer: Link | None


@dataclass(frozen=True, slots=True)
class Node:
    """Groups in one machine, with its link to other machines."""

    groups: tuple[Group, ...]
    network: Link = NOWHERE


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a device stands: in which node, and in which group of it."""

    device: Device
    node: int
    group: int
    host: Link
    peer: Link | None
    network: Link


def slower(*links: Link) -> Link:
    """The link whose ends are these: least bandwidth and most latency."""
    return Link(min(link.bandwidth for link in links), max(link.latency for link in links))


def wire(name: str, nodes: Sequence[Node]) -> Cluster:
    """The cluster of these nodes; its devices are numbered by kind, a lone host is not."""
    places = _placed(nodes)
    links = {
        (source.device.name, target.device.name): _link(source, target)
        for source, target in permutations(places, 2)
    }
    return Cluster(name, tuple(place.device for place in places), links)


def _placed(nodes: Sequence[Node]) -> list[_Place]:
    hosts = sum(group.count for node in nodes for group in node.groups if group.preset.kind == HOST)
    taken: Counter[str] = Counter()
    places = []
    for at, node in enumerate(nodes):
        for number, group in enumerate(node.groups):
            kind = group.preset.kind
            for _ in range(group.count):
                name = kind if kind == HOST and hosts == 1 else f"{kind}{taken[kind]}"
                taken[kind] += 1
                device = group.preset.device(name)
                places.append(_Place(device, at, number, group.host, group.peer, node.network))
    return places


def _link(source: _Place, target: _Place) -> Link:
    name, from_host = source.device.name, source.device.kind == HOST
    to_host = target.device.kind == HOST
    if source.node != target.node:
        slots = [end.host for end in (source, target) if end.device.kind != HOST]
        network = slower(source.network, target.network)
        latency = network.latency + sum(slot.latency for slot in slots)
        bandwidth = slower(network, *slots).bandwidth
        return Link(bandwidth, latency, f"node{source.node}-net")
    together = (from_host and to_host) or source.group == target.group
    if together and source.peer and target.peer:
        kind = "socket" if from_host else "nvlink"
        return replace(slower(source.peer, target.peer), channel=f"{name}-{kind}")
    channel = "" if from_host else f"{name}-pcie"
    return replace(slower(source.host, target.host), channel=channel)
