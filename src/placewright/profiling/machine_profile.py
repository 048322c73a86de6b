"""Profiles this machine as a Cluster: measured once, cached, measured again after changes.

The cache is a file of the user's, and the store, which machines of the same kind may share.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from placewright import files
from placewright.cache import cache_folder
from placewright.cluster import Cluster
from placewright.device import HOST, Device, Link
from placewright.errors import ClusterError, PlacewrightError
from placewright.files.storage import read_data, write_data
from placewright.logs import log_duration
from placewright.profiling.device_rates import DeviceRates, measure_device
from placewright.profiling.links import (
    LARGE_BYTES,
    MeasuredLink,
    measure_links,
)
from placewright.profiling.overhead import measure_handoff
from placewright.runtime.machine import Machine, this_machine
from placewright.runtime.real_devices import RealDevice, machine_devices
from placewright.store import open_store
from placewright.store.store import warn_of_failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLUSTER_NAME = "here"
GPU_RESERVE = 64 << 20
"""Bytes of a GPU that plans leave free: workspaces of matrix libraries (32 MiB per stream on
Hopper), and what the allocator loses by rounding."""
HOST_RESERVE_DIVISOR = 10
"""This fraction of the host's memory is left to everything else."""


@dataclass(frozen=True)
class MachineProfile:
    """What was measured of this machine.

    Args:
        facts: In addition to the cluster: spreads, pageable copies, versions and the day.
        fresh: Whether it was measured just now.
        path: Its file in the cache; None if it could not be written.
    """

    machine: Machine
    cluster: Cluster
    facts: dict[str, Any]
    fresh: bool
    path: Path | None


def parse_workers(text: str) -> int | None:
    """The number of CPU workers in `here:workers=4`; None for `here`.

    Raises:
        ClusterError: It is neither of these.
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
    machine: Machine | None = None,
) -> MachineProfile:
    """This machine as a cluster.

    Args:
        workers: How many CPU devices to make of its cores; None: `Machine.default_workers`.
        refresh: Measure again, ignoring the cache.
        notify: Called with a line of text before a long measurement.
        progress: Called with what is being measured.
        machine: This machine, or the part of it that is this process's; None: all of it.

    Raises:
        ClusterError: There are fewer cores than workers.
        MissingDependency: PyTorch is not installed.
    """
    machine = this_machine() if machine is None else machine
    real_devices = machine_devices(machine, workers)
    path = profile_path(machine, real_devices)
    cached = None if refresh else _load_cached(machine, path)
    if cached is not None:
        return cached
    if notify is not None:
        notify(f"measuring this machine ({machine}): one-time, about 30 s")
    with log_duration(f"measuring this machine ({machine})"):
        return _measure_machine(machine, real_devices, path, progress)


def profile_path(machine: Machine, real_devices: list[RealDevice]) -> Path:
    """The cache file of a machine's profile."""
    count = sum(not real_device.is_gpu for real_device in real_devices)
    return cache_folder("machines") / f"{machine.key}-{count}.json"


def _measure_machine(
    machine: Machine, real_devices: list[RealDevice], path: Path, progress: Callable[[str], None]
) -> MachineProfile:
    rates: dict[str, DeviceRates] = {}
    rates_by_model: dict[str, DeviceRates] = {}  # equal hardware is measured once
    for real_device in real_devices:
        if real_device.model not in rates_by_model:
            progress(f"device {real_device.name}")
            rates_by_model[real_device.model] = measure_device(real_device)
        rates[real_device.name] = rates_by_model[real_device.model]
    links = measure_links(real_devices, LARGE_BYTES, progress)
    cluster = build_cluster(machine, real_devices, rates, links)
    progress("handoff between workers and GPUs")
    cluster = replace(cluster, links=_links_with_handoff(cluster, real_devices))
    facts = _facts(machine, rates, links)
    store = open_store()
    data = {"cluster": files.to_data(cluster), "facts": facts}
    warn_of_failure(lambda: store.put_profile(path.stem, data), None)
    return MachineProfile(machine, cluster, facts, True, _write_files(path, cluster, facts))


def _write_files(path: Path, cluster: Cluster, facts: dict[str, Any]) -> Path | None:
    """Cache a profile; its file, or None if that cannot be written, which is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.save(cluster, path)
        write_data(facts, _facts_path(path))
    except (PlacewrightError, OSError):
        return None
    return path


def build_cluster(
    machine: Machine,
    real_devices: list[RealDevice],
    rates: dict[str, DeviceRates],
    links: list[MeasuredLink],
) -> Cluster:
    """The cluster of the measured devices and links.

    One thread of the host issues to all GPUs, which takes time for each op.
    """
    hosts = sum(not real_device.is_gpu for real_device in real_devices)
    devices = []
    for real_device in real_devices:
        device_rates = rates[real_device.name]
        memory = (
            machine.gpus[real_device.index].memory
            if real_device.is_gpu
            else machine.memory // hosts
        )
        devices.append(
            Device(
                real_device.name,
                "gpu" if real_device.is_gpu else HOST,
                real_device.model,
                memory,
                GPU_RESERVE if real_device.is_gpu else memory // HOST_RESERVE_DIVISOR,
                device_rates.rates,
                device_rates.bandwidth,
                device_rates.launch,
                CLUSTER_NAME if real_device.is_gpu else None,
            )
        )
    return Cluster(
        CLUSTER_NAME,
        tuple(devices),
        {(measured.source, measured.target): measured.link for measured in links},
    )


def _links_with_handoff(
    cluster: Cluster, real_devices: list[RealDevice]
) -> dict[tuple[str, str], Link]:
    """The links, with the runtime's latency to pass a tensor from a worker to a GPU or back."""
    links = dict(cluster.links)
    workers = [real_device.name for real_device in real_devices if not real_device.is_gpu]
    for gpu in (real_device.name for real_device in real_devices if real_device.is_gpu):
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
    """The cached profile of this machine; None if there is none, or it cannot be read."""
    try:
        cluster, facts = files.load(path, "cluster"), read_data(_facts_path(path))
    except PlacewrightError:
        return _load_stored(machine, path)
    if not isinstance(facts, dict) or facts.get("key") != machine.key:
        return None
    return MachineProfile(machine, cluster, facts, False, path)


def _load_stored(machine: Machine, path: Path) -> MachineProfile | None:
    """The profile in the store, which then has a file as well."""
    store = open_store()
    data = warn_of_failure(lambda: store.get_profile(path.stem), None)
    facts = {} if data is None else data.get("facts")
    if data is None or not isinstance(facts, dict) or facts.get("key") != machine.key:
        return None
    try:
        cluster = files.from_data(data.get("cluster"), "cluster")
    except PlacewrightError:
        return None
    return MachineProfile(machine, cluster, facts, False, _write_files(path, cluster, facts))


def _facts_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.facts.json")


def profile_ranks(
    workers: int | None = None,
    refresh: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    bandwidth: float | None = None,
) -> MachineProfile:
    """The machines of all ranks of the process group as one cluster, links between them included.

    All ranks call it. Machines are measured one after the other, since ranks may share one. The
    profile is complete on rank 0; on the others it is of their own machine.

    Args:
        bandwidth: Bytes per second that a rank may send, for tests and benchmarks.

    Raises:
        ExecutionError: There is no process group, or a rank has failed.
    """
    from placewright.profiling.rank_links import join_clusters, measure_rank_links
    from placewright.runtime.distributed.bandwidth_limit import BandwidthLimit
    from placewright.runtime.distributed.rank_devices import rank_cores
    from placewright.runtime.distributed.session import RankSession

    limit = None if bandwidth is None else BandwidthLimit(bandwidth)
    session = RankSession({"purpose": "profile"}, limit=limit)
    try:
        machine = replace(this_machine(), cores=rank_cores())
        with session.turn():
            profile = profile_machine(workers, refresh, progress=progress, machine=machine)
        progress("links between ranks")
        links = measure_rank_links(session)
        cluster = join_clusters(session, profile.cluster, links)
        if session.is_leader:
            session.close()
        else:
            session.serve()
    except Exception as error:
        session.fail(error)
        raise
    return replace(profile, cluster=cluster)
