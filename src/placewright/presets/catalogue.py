"""Reads the presets of devices and links from the TOML files of this folder."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.device import Device, Link
from placewright.errors import ClusterError, nearest
from placewright.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class DevicePreset:
    """A device that can be named; `devices.toml` describes the fields.

    Args:
        also: Other names of the same preset.
        link: Name of the link to the host.
        peer: Name of the link to another device of the same model, or empty.
        with_peer: Name of the preset meant when a string asks for a peer link that this one lacks.
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
    also: tuple[str, ...] = ()
    with_peer: str = ""

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


@dataclass(frozen=True, slots=True)
class LinkPreset:
    """A link that can be named.

    Args:
        kind: `pcie`, `nvlink` or `socket` inside a node, `network` between nodes.
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


def device_presets() -> tuple[DevicePreset, ...]:
    """Every device that can be named, GPUs first, from old to new."""
    return tuple({preset.name: preset for preset in device_table().values()}.values())


def link_presets() -> tuple[LinkPreset, ...]:
    """Every link that can be named."""
    return tuple({preset.name: preset for preset in link_table().values()}.values())


def preset_device(model: str, /, name: str, **overrides: Any) -> Device:
    """A device by its preset's name; `overrides` are fields of `Device` that differ."""
    preset = device_table().get(model.lower())
    if preset is None:
        known = [preset.name for preset in device_presets()]
        raise ClusterError(f"unknown device {model!r}: {nearest(model, known)}")
    return replace(preset.device(name), **overrides)


def preset_link(name: str) -> Link:
    """A link by its preset's name, on a channel of its own."""
    preset = link_table().get(name.lower())
    if preset is None:
        known = [preset.name for preset in link_presets()]
        raise ClusterError(f"unknown link {name!r}: {nearest(name, known)}")
    return preset.link


@cache
def device_table() -> dict[str, DevicePreset]:
    """Presets by every name they have, in lower case."""
    tables = _read_tables("devices.toml")
    presets: dict[str, DevicePreset] = {}
    for name, entry in tables.items():
        merged = {**tables.get(entry.get("like", ""), {}), "also": (), **entry}
        merged.pop("like", None)
        merged["also"] = tuple(merged["also"])
        for key in ("memory", "reserve"):
            merged[key] = parse_bytes(merged[key])
        preset = DevicePreset(name=name, **merged)
        presets |= {alias.lower(): preset for alias in (name, *preset.also)}
    return presets


@cache
def link_table() -> dict[str, LinkPreset]:
    """Link presets by every name they have, in lower case."""
    presets: dict[str, LinkPreset] = {}
    for name, entry in _read_tables("links.toml").items():
        preset = LinkPreset(name=name, **{**entry, "also": tuple(entry.get("also", ()))})
        presets |= {alias.lower(): preset for alias in (name, *preset.also)}
    return presets


def _read_tables(file: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))
