"""Clusters in files: devices and links, given in full or as presets with what differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from placewright.cluster import Cluster, Device, Link
from placewright.errors import ClusterError
from placewright.files import validation
from placewright.files.header import body, head
from placewright.files.validation import Data, written


def cluster_data(cluster: Cluster) -> Data:
    """A cluster as plain data, with every link that it has or was routed."""
    names = [device.name for device in cluster.devices]
    links = []
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            there, back = _link_data(cluster, one, other), _link_data(cluster, other, one)
            ends = {"from": one, "to": other}
            if there == back:
                links.append({**ends, **there, "both": True})
            else:
                links += [{**ends, **there}, {"from": other, "to": one, **back}]
    devices = [device_data(device) for device in cluster.devices]
    return head("cluster") | {"name": cluster.name, "devices": devices, "links": links}


def read_cluster(data: object, where: str = "") -> Cluster:
    """The cluster that plain data describe."""
    found = validation.fields(
        body(data, "cluster", where), _CLUSTER, where, need=("name", "devices")
    )
    links: dict[tuple[str, str], Link] = {}
    for ends, link in found.get("links", ()):
        for pair in ends:
            if pair in links:
                raise ClusterError(f"two links lead from {pair[0]!r} to {pair[1]!r}: keep one")
            links[pair] = link
    return Cluster(found["name"], tuple(found["devices"]), links)


def device_data(device: Device) -> Data:
    """A device as plain data: what is not default."""
    default = Device(device.name)
    data: Data = {"name": device.name}
    data |= {key: getattr(device, key) for key in ("kind", "model", "issuer")}
    data |= {key: int(getattr(device, key)) for key in ("memory", "reserve")}
    data |= {key: written(getattr(device, key)) for key in ("bandwidth", "launch")}
    data["rates"] = {dtype: written(rate) for dtype, rate in device.rates.items()}
    kept = [key for key in _DEVICE if key in data and getattr(device, key) != getattr(default, key)]
    return {key: data[key] for key in ("name", *kept)}


def read_device(data: object, where: str) -> Device:
    """The device that plain data describe; `preset` names the model that the rest changes."""
    found = validation.fields(data, _DEVICE, where, need=("name",))
    model = found.pop("preset", None)
    if model is None:
        return Device(**found)
    from placewright.presets import preset_device

    return preset_device(model, found.pop("name"), **found)


def _link_data(cluster: Cluster, source: str, target: str) -> Data:
    link = cluster.links[source, target]
    data: dict[str, Any] = {"bandwidth": written(link.bandwidth)}
    if link.latency:
        data["latency"] = float(link.latency)
    if link.loose is not None:
        data["loose"] = written(link.loose)
    if link.handing is not None:
        data["handing"] = float(link.handing)
    if link.channel != f"{source}->{target}":  # each direction has its own unless said
        data["channel"] = link.channel
    return data


def _link(data: object, where: str) -> tuple[list[tuple[str, str]], Link]:
    """The pairs of devices that an entry is for, and their link."""
    found = validation.fields(data, _LINK, where, need=("from", "to"))
    ends = [(found.pop("from"), found.pop("to"))]
    if found.pop("both", False):
        ends.append(ends[0][::-1])
    preset = found.pop("preset", None)
    if preset is not None:
        from placewright.presets import preset_link

        return ends, replace(preset_link(preset), **found)
    if "bandwidth" not in found:
        raise ClusterError(f"{where} has no bandwidth: add 'bandwidth' or 'preset'")
    return ends, Link(**found)


_DEVICE = {
    "name": validation.text,
    "preset": validation.text,
    "kind": validation.text,
    "model": validation.text,
    "memory": validation.size,
    "reserve": validation.size,
    "rates": validation.named(validation.rate),
    "bandwidth": validation.rate,
    "launch": validation.number,
    "issuer": validation.text,
}
_LINK = {
    "from": validation.text,
    "to": validation.text,
    "preset": validation.text,
    "bandwidth": validation.rate,
    "latency": validation.number,
    "channel": validation.text,
    "loose": validation.rate,
    "handing": validation.number,
    "both": validation.flag,
}
_CLUSTER = {
    "name": validation.text,
    "devices": validation.each(read_device),
    "links": validation.each(_link),
}
