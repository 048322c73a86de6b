"""Presets: the Cluster that a string such as `2xP100+cpu` names, and what it can name."""

from placewright.presets.catalogue import (
    DevicePreset,
    LinkPreset,
    device_presets,
    link_presets,
    preset_device,
    preset_link,
)
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
