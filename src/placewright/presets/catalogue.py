"""The TOML files of this folder in, the devices and links that can be named out."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cluster import Device, Link
from placewright.errors import ClusterError, nearest
from placewright.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Preset:
    """A device that can be named; `devices.toml` says what each field is.

    Args:
        also: Other names of the same preset.
        link: Name of the link to the host.
        peer: Name of the link to another device of the same make, or empty.
        with_peer: Name of the preset meant when a string asks for a peer link that this one lacks.
        source: Where the figures are from.
    """

    name: str
    kind: str
    memory: int
    reserve: int
    rates: Mapping[str, float]
    bandwidth: float
    launch: float
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
        """FLOP/s in float16; those in float32 where the hardware has no faster way."""
        return self.device(self.name).rate("float16")

    def device(self, name: str) -> Device:
        """A device of this make."""
        return Device(
            name=name,
            kind=self.kind,
            model=self.name,
            memory=self.memory,
            reserve=self.reserve,
            rates=self.rates,
            bandwidth=self.bandwidth,
            launch=self.launch,
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
        """A link of this make, on a channel of its own."""
        return Link(self.bandwidth, self.latency)


def names() -> tuple[Preset, ...]:
    """Every device that can be named, GPUs first, each make from old to new."""
    return tuple({preset.name: preset for preset in device_names().values()}.values())


def links() -> tuple[LinkPreset, ...]:
    """Every link that can be named."""
    return tuple({preset.name: preset for preset in link_names().values()}.values())


def preset_device(model: str, /, name: str, **overrides: Any) -> Device:
    """A device by its preset's name; `overrides` are fields of `Device` that differ."""
    preset = device_names().get(model.lower())
    if preset is None:
        known = [preset.name for preset in names()]
        raise ClusterError(f"unknown device {model!r}: {nearest(model, known)}")
    return replace(preset.device(name), **overrides)


def preset_link(name: str) -> Link:
    """A link by its preset's name, on a channel of its own."""
    preset = link_names().get(name.lower())
    if preset is None:
        known = [preset.name for preset in links()]
        raise ClusterError(f"unknown link {name!r}: {nearest(name, known)}")
    return preset.link


@cache
def device_names() -> dict[str, Preset]:
    """Presets by every name they have, in lower case."""
    tables = _tables("devices.toml")
    known: dict[str, Preset] = {}
    for name, own in tables.items():
        merged = {**tables.get(own.get("like", ""), {}), "also": (), **own}
        merged.pop("like", None)
        merged["also"] = tuple(merged["also"])
        for key in ("memory", "reserve"):
            merged[key] = parse_bytes(merged[key])
        preset = Preset(name=name, **merged)
        known |= {word.lower(): preset for word in (name, *preset.also)}
    return known


@cache
def link_names() -> dict[str, LinkPreset]:
    """Link presets by every name they have, in lower case."""
    known: dict[str, LinkPreset] = {}
    for name, table in _tables("links.toml").items():
        preset = LinkPreset(name=name, **{**table, "also": tuple(table.get("also", ()))})
        known |= {word.lower(): preset for word in (name, *preset.also)}
    return known


def _tables(file: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))
