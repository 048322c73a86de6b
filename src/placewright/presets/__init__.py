"""Presets: known devices and links, and the strings that combine them, e.g. `2xP100+cpu`."""

from placewright.presets.catalogue import (
    device_presets,
    link_presets,
    preset_device,
    preset_link,
)
from placewright.presets.preset_types import DevicePreset, LinkPreset
from placewright.presets.strings import parse

__all__ = [
    "DevicePreset",
    "LinkPreset",
    "device_presets",
    "link_presets",
    "parse",
    "preset_device",
    "preset_link",
]
