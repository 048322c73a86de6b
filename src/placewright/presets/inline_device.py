"""Parses a device that a cluster string describes: `MyGPU(24GB,82TF,1008GB/s)`.

Figures come in any order; their units say what they are.

    24GB, 24GiB             memory; data sheets say GB and mean GiB of chips, so both are GiB
    82TF, 82TFLOPS          FLOP/s in float32; fp16=165TF for another dtype, int8=660TOPS
    1008GB/s, 1TB/s         memory bandwidth
    5us                     launch overhead
    reserve=2GiB            memory that plans leave free
    cpu, pcie4x8, nvlink3   the kind, and links by name

A preset's name takes what is missing from the preset: `A100(20GiB)`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placewright.device import HOST
from placewright.errors import ClusterError, ConfigError
from placewright.presets.names import find
from placewright.presets.preset_types import DevicePreset
from placewright.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.presets.preset_types import LinkPreset

_RATE = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*([kmgtp])(?:f|flops?|flop/s|ops?|op/s)", re.IGNORECASE)
_BYTES = re.compile(r"([0-9.]+)\s*([kmgt])b", re.IGNORECASE)
_SCALE = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "tfloat32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
}
_KINDS = ("gpu", HOST)
_EXAMPLES = {
    "memory": "memory, such as 24GB",
    "rates": "FLOP/s, such as 82TF",
    "memory_bandwidth": "memory bandwidth, such as 1008GB/s",
}


def parse_memory(text: str) -> int:
    """Bytes of memory in a cluster string, where a GB is a GiB of chips.

    Raises:
        ConfigError: It is not a size.
    """
    match = _BYTES.fullmatch(text)
    return parse_bytes(f"{match[1]}{match[2]}iB" if match else text)


def parse_device(
    name: str,
    figures: list[str],
    base: DevicePreset | None,
    links: Mapping[str, LinkPreset],
) -> DevicePreset:
    """The device of that name with these figures.

    Args:
        base: The preset of that name, if there is one.

    Raises:
        ClusterError: A figure is not understood or written twice, or one is missing.
    """
    values: dict[str, Any] = {}
    rates: dict[str, float] = {}
    for figure in figures:
        key, value = _parse_figure(name, figure, links)
        if key == "rates":
            dtype, rate = value
            if dtype in rates:
                raise ClusterError(f"{name} has two rates of {dtype}: keep one")
            rates[dtype] = rate
            continue
        if key in values:
            raise ClusterError(f"{name} has two figures for its {key.replace('_', ' ')}: keep one")
        values[key] = value
    source = "the cluster string"
    if base is not None:
        return replace(base, **values, rates={**base.rates, **rates}, source=source)
    present = {*values, *(["rates"] if rates else [])}
    missing = [example for key, example in _EXAMPLES.items() if key not in present]
    if missing:
        raise ClusterError(f"{name} is no preset, so it also needs its {' and its '.join(missing)}")
    is_host = values.get("kind") == HOST
    defaults = {
        "kind": "gpu",
        "reserve": 0 if is_host else min(2**30, values["memory"] // 8),
        "launch_overhead": 1e-6 if is_host else 5e-6,
        "link": "pcie5" if is_host else "pcie4",
    }
    return DevicePreset(name, rates=rates, source=source, **{**defaults, **values})


def _parse_figure(name: str, figure: str, links: Mapping[str, LinkPreset]) -> tuple[str, Any]:
    """The field that a figure is for, and its value; that of a rate is the dtype and FLOP/s."""
    label, equals, amount = (part.strip() for part in figure.rpartition("="))
    label = label.lower()
    rate = _RATE.fullmatch(amount)
    if label == "reserve":
        return "reserve", _parse(parse_memory, name, amount)
    if rate is not None:
        flops = float(rate[1][:20]) * _SCALE[rate[2].lower()]
        if not flops > 0:
            raise ClusterError(f"{name} has {figure!r}: expected more than 0 FLOP/s")
        return "rates", (_DTYPES.get(label, label) or "float32", flops)
    if equals:
        raise ClusterError(
            f"{name} has {figure!r}: expected a rate by dtype, such as fp16=165TF, or reserve=2GiB"
        )
    if amount.lower().endswith("/s"):
        bandwidth = _parse(parse_bytes, name, amount[:-2])
        if not bandwidth > 0:
            raise ClusterError(f"{name} has {figure!r}: expected a bandwidth > 0")
        return "memory_bandwidth", float(bandwidth)
    if amount.lower() in _KINDS:
        return "kind", amount.lower()
    link = find(amount, links)
    if link is not None:
        return ("peer" if link.kind in ("nvlink", "fabric", "socket") else "link"), link.name
    for key, parse in (("memory", parse_memory), ("launch_overhead", parse_seconds)):
        if amount[-1:].isalpha():
            try:
                return key, parse(amount)
            except ConfigError:
                continue
    raise ClusterError(
        f"{name} has {figure!r}: expected a figure with a unit, such as 24GB (memory), 82TF or "
        "fp16=165TF (FLOP/s), 1008GB/s (memory bandwidth), 5us (launch), or a link such as pcie4x8"
    )


def _parse(parse: Any, name: str, text: str) -> Any:
    try:
        return parse(text)
    except ConfigError as error:
        raise ClusterError(f"{name} has {error}") from None
