"""Reads presets from TOML files: those of this folder, and the user's own, which go before them."""

from __future__ import annotations

import logging
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from placewright.device import HOST
from placewright.errors import ClusterError, ConfigError, nearest
from placewright.presets.names import normalize
from placewright.presets.preset_types import DevicePreset, LinkPreset
from placewright.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEVICE_FILES = ("devices.toml", "cards.toml", "unified.toml", "hosts.toml")
"""The files of this folder that describe devices, GPUs first."""
USER_DEVICE_FILE, USER_LINK_FILE = "devices.toml", "links.toml"
"""The files of the user's configuration folder."""

_GPU_DEFAULTS = {"reserve": "1 GiB", "launch_overhead": 5e-6, "link": "pcie4"}
_HOST_DEFAULTS = {"reserve": "0 B", "launch_overhead": 1e-6, "link": "pcie5"}
_OWN_KEYS = ("also", "abstract", "source")  # not taken over by tables that are like this one
_RATE_KEYS = ("rates", "float32", "ratios")
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("kind", "like", "link", "peer", "with_peer", "source"), (str,)),
    **dict.fromkeys(("memory", "reserve"), (str, int)),
    **dict.fromkeys(("also", "sizes"), (list,)),
    **dict.fromkeys(("rates", "ratios"), (dict,)),
    **dict.fromkeys(("bandwidth", "latency", "float32"), (int, float)),
    **dict.fromkeys(("memory_bandwidth", "launch_overhead"), (int, float)),
    **dict.fromkeys(("unified", "abstract"), (bool,)),
    "peer_limit": (int,),
}
_LINK_KINDS = ("pcie", "nvlink", "fabric", "socket", "package", "network")
_DEVICE_KEYS = {field.name for field in fields(DevicePreset)} - {"name"}
_DEVICE_KEYS |= {"like", "abstract", "float32", "ratios"}
_LINK_KEYS = {field.name for field in fields(LinkPreset)} - {"name"} | {"like"}

Table = dict[str, Any]


def read_devices(user_file: Path | None, links: Mapping[str, LinkPreset]) -> list[DevicePreset]:
    """Every device preset; the user's come last.

    Raises:
        ClusterError: The user's file is malformed.
    """
    shipped: dict[str, Table] = {}
    for file in DEVICE_FILES:
        shipped |= _read(Path(__file__).parent / file)
    own = _read(user_file) if user_file is not None else {}
    tables = shipped | own
    return [
        _device(name, tables, Path(file), links)
        for file, group in (("devices.toml", shipped), (user_file or "", own))
        for name, table in group.items()
        if not table.get("abstract")
    ]


def read_links(user_file: Path | None) -> list[LinkPreset]:
    """Every link preset; the user's come last.

    Raises:
        ClusterError: The user's file is malformed.
    """
    shipped = _read(Path(__file__).parent / "links.toml")
    own = _read(user_file) if user_file is not None else {}
    tables = shipped | own
    return [
        _link(name, tables, Path(file))
        for file, group in (("links.toml", shipped), (user_file or "", own))
        for name in group
    ]


def by_name(presets: list[Any]) -> dict[str, Any]:
    """Presets by all of their normalized names; a later one goes before an earlier one."""
    table: dict[str, Any] = {}
    shadowed: dict[str, str] = {}
    for preset in presets:
        for name in (preset.name, *preset.also):
            previous = table.get(normalize(name))
            if previous is not None and previous is not preset:
                shadowed[previous.name] = preset.source
            table[normalize(name)] = preset
    for name, source in shadowed.items():
        logging.getLogger("placewright").warning(
            "%s is described by %s, not by the preset of that name", name, source
        )
    return table


def _read(file: Path) -> dict[str, Table]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterError(f"{file}: cannot be read: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ClusterError(
                f"{file}: {name!r} is {table!r}: expected a table of one device or link, such as "
                f"[{name}]"
            )
    return tables


def _device(
    name: str, tables: dict[str, Table], file: Path, links: Mapping[str, LinkPreset]
) -> DevicePreset:
    def fail(message: str) -> NoReturn:
        raise ClusterError(f"{file}: device {name!r} {message}")

    merged = _merge(name, tables, _DEVICE_KEYS, fail)
    kind = merged.setdefault("kind", "gpu")
    defaults = _HOST_DEFAULTS if kind == HOST else _GPU_DEFAULTS
    merged = {**defaults, "source": str(file), **merged}
    if "float32" in merged:
        base = merged.pop("float32")
        ratios = {"float32": 1, **merged.pop("ratios", {})}
        merged["rates"] = {dtype: base * ratio for dtype, ratio in ratios.items()}
    missing = [
        f"{key!r} ({example})"
        for key, example in (
            ("memory", 'such as "24 GiB"'),
            ("rates", "FLOP/s by dtype, such as { float32 = 82e12 }"),
            ("memory_bandwidth", "bytes per second, such as 1008e9"),
        )
        if not merged.get(key)
    ]
    if missing:
        fail(f"has no {', no '.join(missing)}: add what is missing, or 'like' another device")
    for dtype, rate in merged["rates"].items():
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
            fail(f"has {dtype} at {rate!r} FLOP/s: expected a number > 0")
    for key in ("link", "peer"):
        if merged.get(key) and normalize(merged[key]) not in links:
            names = [preset.name for preset in links.values()]
            fail(f"has {key} {merged[key]!r}, which is no link: {nearest(merged[key], names)}")
    try:
        for key in ("memory", "reserve"):
            merged[key] = _bytes(merged[key])
        merged["sizes"] = tuple(_bytes(size) for size in merged.get("sizes", ()))
    except ConfigError as error:
        fail(f"has {error}")
    merged["also"] = tuple(merged.get("also", ()))
    try:
        preset = DevicePreset(name=name, **merged)
        preset.device("device")  # checks the figures
    except ClusterError as error:
        fail(f"is no device: {error}")
    return preset


def _link(name: str, tables: dict[str, Table], file: Path) -> LinkPreset:
    def fail(message: str) -> NoReturn:
        raise ClusterError(f"{file}: link {name!r} {message}")

    merged = _merge(name, tables, _LINK_KEYS, fail)
    merged = {"latency": 1e-5, "source": str(file), **merged, "also": tuple(merged.get("also", ()))}
    if merged.get("kind") not in _LINK_KINDS:
        fail(f"has kind {merged.get('kind')!r}: expected one of {', '.join(_LINK_KINDS)}")
    if "bandwidth" not in merged:
        fail("has no 'bandwidth': add it in bytes per second, such as 25e9")
    try:
        preset = LinkPreset(name=name, **merged)
        _ = preset.link  # checks the figures
    except ClusterError as error:
        fail(f"is no link: {error}")
    return preset


def _merge(
    name: str, tables: dict[str, Table], known: set[str], fail: Callable[[str], NoReturn]
) -> Table:
    """A table with the keys of those that it is like."""
    chain: list[str] = []
    at: str | None = name
    while at is not None:
        base = next((each for each in tables if normalize(each) == normalize(at)), None)
        if base is None:
            fail(f"is like {at!r}, which is not described: {nearest(at, tables)}")
        if base in chain:
            if base != name or len(chain) > 1:
                fail(f"is like itself: {' is like '.join([*chain, base])}")
            fail("is like itself: name another device")
        chain.append(base)
        at = tables[base].get("like")
    merged: Table = {}
    for base in reversed(chain):
        table = tables[base]
        for key, value in table.items():
            if key not in known:
                fail(f"has an unknown key {key!r}: {nearest(key, known)}")
            if type(value) not in _TYPES[key]:
                words = " or ".join(kind.__name__ for kind in _TYPES[key])
                fail(f"has {key} {value!r}: expected {words}")
        if any(key in table for key in _RATE_KEYS):
            dropped = ("float32", "ratios") if "rates" in table else ("rates",)
            merged = {key: value for key, value in merged.items() if key not in dropped}
        own = {} if base == name else dict.fromkeys(_OWN_KEYS)
        merged |= {key: value for key, value in table.items() if key not in own and key != "like"}
    merged.pop("abstract", None)
    if "ratios" in merged and "float32" not in merged:
        fail("has ratios and no float32: add the FLOP/s of float32")
    return merged


def _bytes(value: str | int) -> int:
    return parse_bytes(value) if isinstance(value, str) else value
