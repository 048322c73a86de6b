"""Connects groups of devices and nodes by links.

- The links out of one GPU over PCIe, to other GPUs and to hosts, share one channel, its slot
  (`gpu0-pcie`); a host has a channel to each GPU.
- The links out of one GPU over NVLink, or a maker's own fabric, share one channel too
  (`gpu0-nvlink`, `gpu0-fabric`).
- All transfers from one node to others share one channel, its network card (`node0-net`).
- A link between unequal ends is as slow as the slower end.
- Of several nodes each is a host: devices are named `node0/gpu1`.

Only senders share a channel: a device can receive from two others at the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.device import HOST, HOST_SEPARATOR, Device, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.presets.preset_types import DevicePreset

NO_NETWORK = Link(math.inf)
"""The network of a single node."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Equal devices, with the link to their host and, if there is one, to each other."""

    count: int
    preset: DevicePreset
    host: Link
    peer: Link | None
    peer_kind: str = "nvlink"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """Groups in one machine, with its link to other machines."""

    groups: tuple[DeviceGroup, ...]
    network: Link = NO_NETWORK


@dataclass(frozen=True, slots=True)
class _DeviceSlot:
    """A device with its node, its group in the node, and its links."""

    device: Device
    node: int
    group: int
    host: Link
    peer: Link | None
    peer_kind: str
    network: Link


def slower_link(*links: Link) -> Link:
    """A link over all of these: the least bandwidth and the largest latency."""
    return Link(min(link.bandwidth for link in links), max(link.latency for link in links))


def connect(
    nodes: Sequence[ClusterNode],
) -> tuple[tuple[Device, ...], dict[tuple[str, str], Link]]:
    """The devices of these nodes, numbered by kind in each, and all links.

    A CPU that is alone in its node has no number.
    """
    slots = _device_slots(nodes)
    links: dict[tuple[str, str], Link] = {}
    for source in slots:
        link_to: dict[tuple[int, int], Link] = {}  # equal devices have equal links from here
        for target in slots:
            if target is not source:
                group = target.node, target.group
                if group not in link_to:
                    link_to[group] = _link(source, target)
                links[source.device.name, target.device.name] = link_to[group]
    return tuple(slot.device for slot in slots), links


def _device_slots(nodes: Sequence[ClusterNode]) -> list[_DeviceSlot]:
    slots = []
    for at, node in enumerate(nodes):
        cpus = sum(group.count for group in node.groups if group.preset.kind == HOST)
        prefix = f"node{at}{HOST_SEPARATOR}" if len(nodes) > 1 else ""
        counts: Counter[str] = Counter()
        for number, group in enumerate(node.groups):
            kind = group.preset.kind
            for _ in range(group.count):
                name = kind if kind == HOST and cpus == 1 else f"{kind}{counts[kind]}"
                counts[kind] += 1
                device = group.preset.device(prefix + name)
                links = group.host, group.peer, group.peer_kind
                slots.append(_DeviceSlot(device, at, number, *links, node.network))
    return slots


def _link(source: _DeviceSlot, target: _DeviceSlot) -> Link:
    name, from_host = source.device.name, source.device.kind == HOST
    to_host = target.device.kind == HOST
    if source.node != target.node:
        host_links = [side.host for side in (source, target) if side.device.kind != HOST]
        network = slower_link(source.network, target.network)
        latency = network.latency + sum(host_link.latency for host_link in host_links)
        bandwidth = slower_link(network, *host_links).bandwidth
        return Link(bandwidth, latency, f"node{source.node}-net")
    is_same_group = (from_host and to_host) or source.group == target.group
    if is_same_group and source.peer and target.peer:
        kind = "socket" if from_host else source.peer_kind
        return replace(slower_link(source.peer, target.peer), channel=f"{name}-{kind}")
    channel = "" if from_host else f"{name}-pcie"
    return replace(slower_link(source.host, target.host), channel=channel)
