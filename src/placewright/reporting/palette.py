"""A colour for each device, the same on the page and in pictures."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

from placewright.device import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.device import Device

# Distinct for most kinds of colour blindness, and readable on white and on near-black.
_ACCELERATORS = ("#4c7fd0", "#e0813a", "#3fa284", "#b266c4", "#d3587a", "#8f9a34", "#3a9fc4")
_HOSTS = ("#a08a76", "#8a9a8c", "#96879f")
_GOLDEN_ANGLE = 0.381966  # of the circle: the next hue is far from all before it

CRITICAL = "#d62246"
TENSOR = "#7c8594"
STREAMED = "#c99a1e"


def device_colours(devices: Sequence[Device]) -> list[str]:
    """A colour as `#rrggbb` for each device; hosts are grey."""
    colours: list[str] = []
    used_colours = {True: 0, False: 0}
    for device in devices:
        is_host = device.kind == HOST
        colours.append(
            _colour(used_colours[is_host], _HOSTS if is_host else _ACCELERATORS, is_host)
        )
        used_colours[is_host] += 1
    return colours


def _colour(index: int, presets: Sequence[str], host: bool) -> str:
    if index < len(presets):
        return presets[index]
    hue = (0.6 + index * _GOLDEN_ANGLE) % 1
    light = (0.52, 0.62, 0.44)[index // 8 % 3]
    channels = colorsys.hls_to_rgb(hue, light, 0.12 if host else 0.5)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)
