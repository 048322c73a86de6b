"""A cluster in, what another runtime calls each of its devices out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.cluster import HOST
from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from placewright.exporters.base import Ask


def is_host(ask: Ask, device: int) -> bool:
    return ask.problem.cluster.devices[device].kind == HOST


def numbered(ask: Ask) -> list[int]:
    """Each device's number among those of its sort: accelerators and hosts, in cluster order."""
    counts = {True: 0, False: 0}
    numbers = []
    for at in range(len(ask.problem.cluster)):
        host = is_host(ask, at)
        numbers.append(counts[host])
        counts[host] += 1
    return numbers


def named(ask: Ask, accelerator: str, host: str) -> list[str]:
    """Each device's name in the target: patterns with `{}` for its number, or the user's word.

    Raises:
        ConfigError: The user names a device that the cluster does not have.
    """
    cluster = ask.problem.cluster
    for name in ask.names:
        if name not in cluster.position:
            raise ConfigError(
                f"a name is given for device {name!r}, which cluster {cluster.name!r} does not "
                f"have: {nearest(name, cluster.position)}"
            )
    return [
        ask.names.get(device.name, (host if is_host(ask, at) else accelerator).format(number))
        for at, (device, number) in enumerate(zip(cluster.devices, numbered(ask), strict=True))
    ]
