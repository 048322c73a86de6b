"""A string such as `2xP100+cpu` in, a Cluster out; and the devices and links it can name."""

from placewright.presets.catalogue import (
    LinkPreset,
    Preset,
    links,
    names,
    preset_device,
    preset_link,
)
from placewright.presets.strings import parse

__all__ = [
    "LinkPreset",
    "Preset",
    "links",
    "names",
    "parse",
    "preset_device",
    "preset_link",
]
