"""This machine in, its Cluster out: measured once, kept, and measured again when it has changed."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from placewright import files
from placewright.cluster import HOST, Cluster, Device, Link
from placewright.errors import ClusterError, PlacewrightError
from placewright.files.storage import read_data, write_data
from placewright.profiling.device_rates import Ability, measure_device
from placewright.profiling.links import (
    LARGE,
    Wire,
    measure_links,
)
from placewright.profiling.overhead import measure_handing
from placewright.profiling.sites import Site, sites_of
from placewright.runtime.machine import Machine, this_machine
from placewright.zoo.capture import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "here"
SLACK = 64 << 20
"""Bytes of a GPU that plans leave alone: what matrix libraries work in (32 MiB a stream on Hopper),
and what an allocator loses by rounding."""
KEPT_BACK = 10
"""One part in so many of the host's memory is left to everything else."""


@dataclass(frozen=True)
class Profile:
    """What was measured of this machine.

    Args:
        facts: Beside the cluster's own figures: spreads, pageable copies, versions and the day.
        fresh: Whether it was measured just now.
        kept: Where it is kept; None where it could not be.
    """

    machine: Machine
    cluster: Cluster
    facts: dict[str, Any]
    fresh: bool
    kept: Path | None


def parse_here(text: str) -> int | None:
    """How many CPU workers `here` or `here:workers=4` asks for; None where it does not say.

    Raises:
        ClusterError: It says something else.
    """
    name, colon, arguments = text.strip().partition(":")
    key, _, number = arguments.partition("=")
    if name.strip() != NAME or (colon and not (key.strip() == "workers" and number.isdecimal())):
        raise ClusterError(f"cluster {text!r}: expected here, or such as here:workers=2")
    return int(number) if colon else None


def here(
    workers: int | None = None,
    again: bool = False,
    note: Callable[[str], None] | None = None,
    said: Callable[[str], None] = lambda text: None,
) -> Profile:
    """This machine as a cluster.

    Args:
        workers: How many devices its cores make; see `Machine.usual_workers`.
        again: Measure, whatever is kept.
        note: Told in a line what takes long.
        said: Told what is being measured.

    Raises:
        ClusterError: There are fewer cores than workers.
        MissingDependency: PyTorch is not installed.
    """
    machine = this_machine()
    chosen = sites_of(machine, workers)
    path = kept_at(machine, chosen)
    kept = None if again else _load(machine, path)
    if kept is not None:
        return kept
    if note is not None:
        note(f"measuring this machine ({machine}): this takes a moment, once")
    return _measured(machine, chosen, path, said)


def kept_at(machine: Machine, chosen: list[Site]) -> Path:
    """The file that a machine's profile is kept in."""
    count = sum(not site.on_gpu for site in chosen)
    return cache_folder().parent / "machines" / f"{machine.key}-{count}.json"


def _measured(
    machine: Machine, chosen: list[Site], path: Path, said: Callable[[str], None]
) -> Profile:
    abilities: dict[str, Ability] = {}
    alike: dict[str, Ability] = {}  # equal hardware is measured once
    for site in chosen:
        if site.model not in alike:
            said(f"device {site.name}")
            alike[site.model] = measure_device(site)
        abilities[site.name] = alike[site.model]
    wires = measure_links(chosen, LARGE, said)
    cluster = assemble(machine, chosen, abilities, wires)
    said("handing tensors over")
    cluster = replace(cluster, links=_handed(cluster, chosen))
    facts = _facts(machine, abilities, wires)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.save(cluster, path)
        write_data(facts, _beside(path))
    except (PlacewrightError, OSError):  # a cache that cannot be written is no cache, and no error
        return Profile(machine, cluster, facts, True, None)
    return Profile(machine, cluster, facts, True, path)


def assemble(
    machine: Machine, chosen: list[Site], abilities: dict[str, Ability], wires: list[Wire]
) -> Cluster:
    """The cluster of what was measured.

    All GPUs are issued to by one thread of the host, which takes its time for each op.
    """
    hosts = sum(not site.on_gpu for site in chosen)
    devices = []
    for site in chosen:
        able = abilities[site.name]
        memory = machine.gpus[site.index].memory if site.on_gpu else machine.memory // hosts
        devices.append(
            Device(
                site.name,
                "gpu" if site.on_gpu else HOST,
                site.model,
                memory,
                SLACK if site.on_gpu else memory // KEPT_BACK,
                able.rates,
                able.bandwidth,
                able.launch,
                NAME if site.on_gpu else None,
            )
        )
    return Cluster(NAME, tuple(devices), {(w.source, w.target): w.link for w in wires})


def _handed(cluster: Cluster, chosen: list[Site]) -> dict[tuple[str, str], Link]:
    """The links, with what the runtime takes to hand a tensor from a worker to a GPU or back."""
    links = dict(cluster.links)
    workers = [site.name for site in chosen if not site.on_gpu]
    for gpu in (site.name for site in chosen if site.on_gpu):
        try:
            handing = measure_handing(cluster, workers[0], gpu)
        except (PlacewrightError, RuntimeError):  # the runtime cannot run there
            continue
        for worker in workers:
            for pair in ((worker, gpu), (gpu, worker)):
                links[pair] = replace(links[pair], handing=max(handing, links[pair].latency))
    return links


def _facts(machine: Machine, abilities: dict[str, Ability], wires: list[Wire]) -> dict[str, Any]:
    return {
        "machine": str(machine),
        "key": machine.key,
        "day": datetime.date.today().isoformat(),
        "versions": dict(machine.versions or {}),
        "devices": {name: asdict(able) for name, able in abilities.items()},
        "links": [
            {
                "from": wire.source,
                "to": wire.target,
                "pageable": wire.pageable,
                "spread": wire.spread,
            }
            for wire in wires
        ],
    }


def _load(machine: Machine, path: Path) -> Profile | None:
    """What is kept of this machine; None if there is nothing, or it cannot be read."""
    try:
        cluster, facts = files.load(path, "cluster"), read_data(_beside(path))
    except PlacewrightError:
        return None
    if not isinstance(facts, dict) or facts.get("key") != machine.key:
        return None
    return Profile(machine, cluster, facts, False, path)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}.facts.json")
