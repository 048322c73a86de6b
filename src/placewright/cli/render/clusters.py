"""Renders a cluster: its devices, a matrix of its links, and channels that links share."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from placewright.cli.render import tables, text
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from placewright.cluster import Cluster
    from placewright.device import Device

MAX_MATRIX = 9  # devices up to which the links are a matrix
_MAX_WIDTH = 44  # characters of names in a row, so that it fits 80 columns


def format_giga(rate: float) -> str:
    """Bytes per second in GB/s."""
    return "no limit" if math.isinf(rate) else f"{rate / 1e9:,.4g}"


def print_cluster(cluster: Cluster, sources: bool = False) -> None:
    """Devices, links and shared channels."""
    devices = cluster.devices
    tables.print_lines([f"{cluster.name}: {text.format_count(len(devices), 'device')}"])
    tables.print_table(
        ("device", "model", "kind", "memory", "usable", "float32", "float16", "GB/s", "launch"),
        [
            (
                device.name,
                device.model or "–",
                device.kind,
                text.format_memory(device.memory),
                format_bytes(device.capacity),
                _rate(device, "float32"),
                _rate(device, "float16"),
                "none"
                if math.isinf(device.memory_bandwidth)
                else format_giga(device.memory_bandwidth),
                format_seconds(device.launch_overhead),
            )
            for device in devices
        ],
        text_columns=3,
    )
    if len(devices) > 1:
        _print_links(cluster)
    lines = [_incomplete_line(device) for device in devices]
    lines = [line for line in lines if line]
    if sources:
        lines += _source_lines(cluster)
    tables.print_lines(["", *lines] if lines else [])


def _print_links(cluster: Cluster) -> None:
    names = [device.name for device in cluster.devices]
    if len(names) <= MAX_MATRIX:
        tables.print_table(
            ("GB/s from \\ to", *names),
            [
                (
                    source,
                    *(
                        "–"
                        if source == target
                        else format_giga(cluster.links[source, target].bandwidth)
                        for target in names
                    ),
                )
                for source in names
            ],
        )
    pairs: dict[tuple[float, float], list[str]] = defaultdict(list)
    senders: dict[str, list[str]] = defaultdict(list)
    for (source, target), link in cluster.links.items():
        pairs[link.bandwidth, link.latency].append(f"{source}->{target}")
        senders[link.channel].append(f"{source}->{target}")
    tables.print_table(
        ("links", "pairs", "GB/s", "latency"),
        [
            (_shorten(each), f"{len(each):,}", format_giga(bandwidth), format_seconds(latency))
            for (bandwidth, latency), each in sorted(pairs.items(), reverse=True)
        ],
    )
    shared = {channel: each for channel, each in senders.items() if len(each) > 1}
    if shared and len(names) <= MAX_MATRIX:
        lines = [f"{channel} is shared by {_shorten(each, 4)}" for channel, each in shared.items()]
        tables.print_lines(["", *lines])


def _rate(device: Device, dtype: str) -> str:
    return f"{device.rate(dtype) / 1e12:.4g} T" if device.rates else "none"


def _incomplete_line(device: Device) -> str:
    """What a device lacks for estimated costs."""
    lacks = [] if device.rates else ["rates"]
    lacks += ["memory bandwidth"] if math.isinf(device.memory_bandwidth) else []
    if not lacks:
        return ""
    return f"{device.name} has no {' and no '.join(lacks)}: it needs measured costs"


def _source_lines(cluster: Cluster) -> list[str]:
    from placewright import presets

    models = {device.model for device in cluster.devices}
    return [
        f"{preset.name}: {preset.source}"
        for preset in presets.device_presets()
        if preset.name in models
    ]


def _shorten(names: list[str], most: int = 2) -> str:
    if len(names) > most and len(", ".join(names[:most])) > _MAX_WIDTH:
        most = 1
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
