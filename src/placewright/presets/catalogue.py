"""The devices and links that can be named: those of this folder and the user's own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from placewright.errors import ClusterError
from placewright.presets.names import find, suggest
from placewright.presets.preset_files import (
    USER_DEVICE_FILE,
    USER_LINK_FILE,
    by_name,
    read_devices,
    read_links,
)
from placewright.user_folders import config_folder

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.device import Device, Link
    from placewright.presets.preset_types import DevicePreset, LinkPreset

    FileVersion = tuple[Path, int] | None


def device_presets() -> tuple[DevicePreset, ...]:
    """Every device that can be named, GPUs first, the user's own last."""
    return tuple({preset.name: preset for preset in device_table().values()}.values())


def link_presets() -> tuple[LinkPreset, ...]:
    """Every link that can be named."""
    return tuple({preset.name: preset for preset in link_table().values()}.values())


def preset_device(model: str, /, name: str, **overrides: Any) -> Device:
    """A device by its preset's name; `overrides` are fields of `Device` that differ."""
    preset = find(model, device_table())
    if preset is None:
        raise ClusterError(unknown_device(model))
    return replace(preset.device(name), **overrides)


def preset_link(name: str) -> Link:
    """A link by its preset's name, on a channel of its own."""
    preset = find(name, link_table())
    if preset is None:
        raise ClusterError(f"unknown link {name!r}: {link_hint(name, link_presets())}")
    return preset.link


def unknown_device(word: str) -> str:
    """The message about a device that has no preset."""
    names = [name for preset in device_presets() for name in (preset.name, *preset.also)]
    similar = suggest(word, names)
    if similar is not None:
        return f"unknown device {word!r}: did you mean {similar!r}?"
    compact = "".join(word.split())
    return (
        f"unknown device {word!r}: describe it as '{compact}(24GB,82TF,1008GB/s)' with its memory, "
        "FLOP/s and memory bandwidth, or choose one of `placewright clusters`"
    )


def link_hint(word: str, links: tuple[LinkPreset, ...]) -> str:
    """The end of a message about an unknown link: the one it resembles, or all of them."""
    similar = suggest(word, [name for preset in links for name in (preset.name, *preset.also)])
    if similar is not None:
        return f"did you mean {similar!r}?"
    return f"known: {', '.join(preset.name for preset in links)}"


def device_table() -> dict[str, DevicePreset]:
    """Device presets by all of their normalized names."""
    return _device_table(_version(USER_DEVICE_FILE), _version(USER_LINK_FILE))


def link_table() -> dict[str, LinkPreset]:
    """Link presets by all of their normalized names."""
    return _link_table(_version(USER_LINK_FILE))


def _version(name: str) -> FileVersion:
    """A file of the user's with the time of its last change; None if there is none."""
    file = config_folder() / name
    try:
        return file, file.stat().st_mtime_ns
    except OSError:
        return None


@cache
def _device_table(devices: FileVersion, links: FileVersion) -> dict[str, DevicePreset]:
    return by_name(read_devices(devices and devices[0], _link_table(links)))


@cache
def _link_table(links: FileVersion) -> dict[str, LinkPreset]:
    return by_name(read_links(links and links[0]))
