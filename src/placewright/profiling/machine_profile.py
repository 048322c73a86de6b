"""Profiles this machine as a Cluster: measured once, cached, measured again after changes."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from placewright import files
from placewright.cluster import HOST, Cluster, Device, Link
from placewright.errors import ClusterError, PlacewrightError
from placewright.files.storage import read_data, write_data
from placewright.profiling.device_rates import DeviceRates, measure_device
from placewright.profiling.links import (
    LARGE_BYTES,
    MeasuredLink,
    measure_links,
)
from placewright.profiling.overhead import measure_handoff
from placewright.profiling.sites import Site, sites_of
from placewright.runtime.machine import Machine, this_machine
from placewright.zoo.capture import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLUSTER_NAME = "here"
GPU_RESERVE = 64 << 20
"""Bytes of a GPU that plans leave alone: what matrix libraries work in (32 MiB a stream on Hopper),
and what an allocator loses by rounding."""
HOST_RESERVE_DIVISOR = 10
"""One part in so many of the host's memory is left to everything else."""


@dataclass(frozen=True)
class MachineProfile:
    """What was measured of this machine.

    Args:
        facts: Beside the cluster's own figures: spreads, pageable copies, versions and the day.
        fresh: Whether it was measured just now.
        path: Where it is kept; None where it could not be.
    """

    machine: Machine
    cluster: Cluster
    facts: dict[str, Any]
    fresh: bool
    path: Path | None


def parse_workers(text: str) -> int | None:
    """How many CPU workers `here` or `here:workers=4` asks for; None where it does not say.

    Raises:
        ClusterError: It says something else.
    """
    name, colon, arguments = text.strip().partition(":")
    key, _, number = arguments.partition("=")
    if name.strip() != CLUSTER_NAME or (
        colon and not (key.strip() == "workers" and number.isdecimal())
    ):
        raise ClusterError(f"cluster {text!r}: expected here, or such as here:workers=2")
    return int(number) if colon else None


def profile_machine(
    workers: int | None = None,
    refresh: bool = False,
    notify: Callable[[str], None] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> MachineProfile:
    """This machine as a cluster.

    Args:
        workers: How many devices its cores make; see `Machine.usual_workers`.
        refresh: Measure, whatever is kept.
        notify: Told in a line what takes long.
        progress: Told what is being measured.

    Raises:
        ClusterError: There are fewer cores than workers.
        MissingDependency: PyTorch is not installed.
    """
    machine = this_machine()
    sites = sites_of(machine, workers)
    path = profile_path(machine, sites)
    cached = None if refresh else _load_cached(machine, path)
    if cached is not None:
        return cached
    if notify is not None:
        notify(f"measuring this machine ({machine}): this takes a moment, once")
    return _measure_machine(machine, sites, path, progress)


def profile_path(machine: Machine, sites: list[Site]) -> Path:
    """The file that a machine's profile is kept in."""
    count = sum(not site.on_gpu for site in sites)
    return cache_folder().parent / "machines" / f"{machine.key}-{count}.json"


def _measure_machine(
    machine: Machine, sites: list[Site], path: Path, progress: Callable[[str], None]
) -> MachineProfile:
    rates: dict[str, DeviceRates] = {}
    rates_by_model: dict[str, DeviceRates] = {}  # equal hardware is measured once
    for site in sites:
        if site.model not in rates_by_model:
            progress(f"device {site.name}")
            rates_by_model[site.model] = measure_device(site)
        rates[site.name] = rates_by_model[site.model]
    links = measure_links(sites, LARGE_BYTES, progress)
    cluster = build_cluster(machine, sites, rates, links)
    progress("handing tensors over")
    cluster = replace(cluster, links=_links_with_handoff(cluster, sites))
    facts = _facts(machine, rates, links)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.save(cluster, path)
        write_data(facts, _facts_path(path))
    except (PlacewrightError, OSError):  # a cache that cannot be written is no cache, and no error
        return MachineProfile(machine, cluster, facts, True, None)
    return MachineProfile(machine, cluster, facts, True, path)


def build_cluster(
    machine: Machine, sites: list[Site], rates: dict[str, DeviceRates], links: list[MeasuredLink]
) -> Cluster:
    """The cluster of what was measured.

    All GPUs are issued to by one thread of the host, which takes its time for each op.
    """
    hosts = sum(not site.on_gpu for site in sites)
    devices = []
    for site in sites:
        device_rates = rates[site.name]
        memory = machine.gpus[site.index].memory if site.on_gpu else machine.memory // hosts
        devices.append(
            Device(
                site.name,
                "gpu" if site.on_gpu else HOST,
                site.model,
                memory,
                GPU_RESERVE if site.on_gpu else memory // HOST_RESERVE_DIVISOR,
                device_rates.rates,
                device_rates.bandwidth,
                device_rates.launch,
                CLUSTER_NAME if site.on_gpu else None,
            )
        )
    return Cluster(
        CLUSTER_NAME,
        tuple(devices),
        {(measured.source, measured.target): measured.link for measured in links},
    )


def _links_with_handoff(cluster: Cluster, sites: list[Site]) -> dict[tuple[str, str], Link]:
    """The links, with what the runtime takes to hand a tensor from a worker to a GPU or back."""
    links = dict(cluster.links)
    workers = [site.name for site in sites if not site.on_gpu]
    for gpu in (site.name for site in sites if site.on_gpu):
        try:
            handoff_latency = measure_handoff(cluster, workers[0], gpu)
        except (PlacewrightError, RuntimeError):  # the runtime cannot run there
            continue
        for worker in workers:
            for pair in ((worker, gpu), (gpu, worker)):
                links[pair] = replace(
                    links[pair], handoff_latency=max(handoff_latency, links[pair].latency)
                )
    return links


def _facts(
    machine: Machine, rates: dict[str, DeviceRates], links: list[MeasuredLink]
) -> dict[str, Any]:
    return {
        "machine": str(machine),
        "key": machine.key,
        "day": datetime.date.today().isoformat(),
        "versions": dict(machine.versions or {}),
        "devices": {name: asdict(device_rates) for name, device_rates in rates.items()},
        "links": [
            {
                "from": link.source,
                "to": link.target,
                "pageable": link.pageable,
                "spread": link.spread,
            }
            for link in links
        ],
    }


def _load_cached(machine: Machine, path: Path) -> MachineProfile | None:
    """What is kept of this machine; None if there is nothing, or it cannot be read."""
    try:
        cluster, facts = files.load(path, "cluster"), read_data(_facts_path(path))
    except PlacewrightError:
        return None
    if not isinstance(facts, dict) or facts.get("key") != machine.key:
        return None
    return MachineProfile(machine, cluster, facts, False, path)


def _facts_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.facts.json")
