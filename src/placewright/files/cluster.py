"""Clusters in files: devices and links, in full or as presets with changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from placewright.cluster import Cluster
from placewright.device import Device, Link
from placewright.errors import ClusterError
from placewright.files import validation
from placewright.files.header import body, make_header
from placewright.files.validation import Data, plain_number
from placewright.presets import preset_device, preset_link


def cluster_data(cluster: Cluster) -> Data:
    """A cluster as plain data, with every link, given or routed."""
    names = [device.name for device in cluster.devices]
    links = []
    for at, source in enumerate(names):
        for target in names[at + 1 :]:
            forward, backward = (
                _link_data(cluster, source, target),
                _link_data(cluster, target, source),
            )
            ends = {"from": source, "to": target}
            if forward == backward:
                links.append({**ends, **forward, "both": True})
            else:
                links += [{**ends, **forward}, {"from": target, "to": source, **backward}]
    devices = [device_data(device) for device in cluster.devices]
    return make_header("cluster") | {"name": cluster.name, "devices": devices, "links": links}


def read_cluster(data: object, where: str = "") -> Cluster:
    """The cluster that plain data describe."""
    values = validation.fields(
        body(data, "cluster", where), _CLUSTER, where, required=("name", "devices")
    )
    links: dict[tuple[str, str], Link] = {}
    for ends, link in values.get("links", ()):
        for pair in ends:
            if pair in links:
                raise ClusterError(f"two links lead from {pair[0]!r} to {pair[1]!r}: keep one")
            links[pair] = link
    return Cluster(values["name"], tuple(values["devices"]), links)


def device_data(device: Device) -> Data:
    """A device as plain data, without default values."""
    default = Device(device.name)
    data: Data = {"name": device.name}
    data |= {key: getattr(device, key) for key in ("kind", "model", "issuer")}
    data |= {key: int(getattr(device, key)) for key in ("memory", "reserve")}
    data |= {
        key: plain_number(getattr(device, key)) for key in ("memory_bandwidth", "launch_overhead")
    }
    data["rates"] = {dtype: plain_number(rate) for dtype, rate in device.rates.items()}
    changed = [
        key for key in _DEVICE if key in data and getattr(device, key) != getattr(default, key)
    ]
    return {key: data[key] for key in ("name", *changed)}


def read_device(data: object, where: str) -> Device:
    """The device that plain data describe; other keys override those of its `preset`."""
    values = validation.fields(
        data, _DEVICE, where, required=("name",), renamed=_RENAMED_DEVICE_KEYS
    )
    model = values.pop("preset", None)
    if model is None:
        return Device(**values)
    return preset_device(model, values.pop("name"), **values)


def _link_data(cluster: Cluster, source: str, target: str) -> Data:
    link = cluster.links[source, target]
    data: dict[str, Any] = {"bandwidth": plain_number(link.bandwidth)}
    if link.latency:
        data["latency"] = float(link.latency)
    if link.pageable_bandwidth is not None:
        data["pageable_bandwidth"] = plain_number(link.pageable_bandwidth)
    if link.handoff_latency is not None:
        data["handoff_latency"] = float(link.handoff_latency)
    if link.channel != f"{source}->{target}":  # the default: each direction has its own
        data["channel"] = link.channel
    return data


def _read_link(data: object, where: str) -> tuple[list[tuple[str, str]], Link]:
    """The pairs of devices of an entry, and their link."""
    values = validation.fields(
        data, _LINK, where, required=("from", "to"), renamed=_RENAMED_LINK_KEYS
    )
    ends = [(values.pop("from"), values.pop("to"))]
    if values.pop("both", False):
        ends.append(ends[0][::-1])
    preset = values.pop("preset", None)
    if preset is not None:
        return ends, replace(preset_link(preset), **values)
    if "bandwidth" not in values:
        raise ClusterError(f"{where} has no bandwidth: add 'bandwidth' or 'preset'")
    return ends, Link(**values)


_DEVICE = {
    "name": validation.text,
    "preset": validation.text,
    "kind": validation.text,
    "model": validation.text,
    "memory": validation.size,
    "reserve": validation.size,
    "rates": validation.mapping_of(validation.rate),
    "memory_bandwidth": validation.rate,
    "launch_overhead": validation.number,
    "issuer": validation.text,
}
_LINK = {
    "from": validation.text,
    "to": validation.text,
    "preset": validation.text,
    "bandwidth": validation.rate,
    "latency": validation.number,
    "channel": validation.text,
    "pageable_bandwidth": validation.rate,
    "handoff_latency": validation.number,
    "both": validation.flag,
}
_RENAMED_DEVICE_KEYS = {"bandwidth": "memory_bandwidth", "launch": "launch_overhead"}
_RENAMED_LINK_KEYS = {"loose": "pageable_bandwidth", "handing": "handoff_latency"}
_CLUSTER = {
    "name": validation.text,
    "devices": validation.list_of(read_device),
    "links": validation.list_of(_read_link),
}
