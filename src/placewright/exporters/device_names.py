"""The names of a cluster's devices in another runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.device import HOST
from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from placewright.exporters.base import ExportRequest


def is_host(request: ExportRequest, device: int) -> bool:
    return request.problem.cluster.devices[device].kind == HOST


def device_numbers(request: ExportRequest) -> list[int]:
    """Each device's number among the accelerators or among the hosts, in cluster order."""
    counts = {True: 0, False: 0}
    numbers = []
    for at in range(len(request.problem.cluster)):
        host = is_host(request, at)
        numbers.append(counts[host])
        counts[host] += 1
    return numbers


def target_names(request: ExportRequest, accelerator: str, host: str) -> list[str]:
    """Each device's name in the target: a pattern with `{}` for its number, or the user's name.

    Raises:
        ConfigError: The user names a device that the cluster does not have.
    """
    cluster = request.problem.cluster
    for name in request.names:
        if name not in cluster.position:
            raise ConfigError(
                f"a name is given for device {name!r}, which cluster {cluster.name!r} does not "
                f"have: {nearest(name, cluster.position)}"
            )
    return [
        request.names.get(
            device.name, (host if is_host(request, at) else accelerator).format(number)
        )
        for at, (device, number) in enumerate(
            zip(cluster.devices, device_numbers(request), strict=True)
        )
    ]
