"""The memory limits of `place`: what plans may use of them, and what is said where none does."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.device import HOST
from placewright.errors import ConfigError, PlanError
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.cuda.library_memory import library_bytes
from placewright.runtime.real_devices import find_real_devices
from placewright.workload_result import WorkloadResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from placewright.cluster import Cluster
    from placewright.result import Result
    from placewright.runtime.real_devices import RealDevice

MACHINE_BYTES = 2 << 30
"""Bytes of a GPU that measuring this machine needs, even if a limit is lower; once."""
MIN_MARGIN = 1 << 20
"""Bytes of a GPU that a plan gets less, at least, after one that did not keep its limit."""


@dataclass(frozen=True)
class PlacementLimits:
    """Bytes that may be used, by device.

    Args:
        device_map: Real devices of some of the cluster's devices.
    """

    sizes: Mapping[str, int]
    device_map: Mapping[str, str] | None

    def machine_caps(self) -> dict[int, int]:
        """Bytes of each GPU with a limit that measuring this machine may take, by its number."""
        caps: dict[int, int] = {}
        for name, limit in self.sizes.items():
            with contextlib.suppress(ConfigError):  # a cluster's own name
                (device,) = find_real_devices([name], self.device_map)
                if device.is_gpu and device.index < current_backend().device_count():
                    caps[device.index] = caps.get(device.index, 0) + limit
        return {index: max(cap, MACHINE_BYTES) for index, cap in caps.items()}

    def check(self, cluster: Cluster) -> None:
        """Refuse limits that leave nothing for a plan."""
        for name, reserve in _gpu_reserves(cluster).items():
            limit = self.sizes.get(name)
            if limit is not None and limit <= reserve:
                raise PlanError(
                    f"the limit of {name} is {limit:,} bytes, and libraries need {reserve:,} there "
                    "for themselves: raise it"
                )

    def usable(self, cluster: Cluster) -> dict[str, int]:
        """What a plan may use of each limit: libraries need the rest of a GPU's."""
        reserves = _gpu_reserves(cluster)
        return {name: limit - reserves.get(name, 0) for name, limit in self.sizes.items()}

    def library_bytes(self, real_devices: Iterable[RealDevice]) -> dict[str, int]:
        """What libraries take now of each GPU with a limit."""
        return {
            device.name: library_bytes(device.index)
            for device in real_devices
            if device.is_gpu and device.name in self.sizes
        }

    def margins(self) -> dict[str, int]:
        """How much less memory the next plan has, where one did not keep its limits."""
        return {name: max(limit // 32, MIN_MARGIN) for name, limit in self.sizes.items()}


def check_fits(result: Result | WorkloadResult, cluster: Cluster) -> None:
    """Refuse a plan that does not fit, with limits that would do."""
    if result.fits:
        return
    reserves = _gpu_reserves(cluster)
    if isinstance(result, WorkloadResult):
        first, peaks = result.calls[0], dict(result.peaks)
    else:
        first, peaks = result, {use.name: use.peak for use in result.devices}
    limits = {use.name: use.limit for use in first.devices}
    needed = {
        name: peak + reserves.get(name, 0) for name, peak in peaks.items() if peak > limits[name]
    }
    texts = ", ".join(f"{name}={size / 2**30:.2f}GiB" for name, size in needed.items())
    raise PlanError(
        f"no plan was found that keeps the limits: the best needs {texts}; raise them, or give "
        "the search more time (budget=)"
    )


def _gpu_reserves(cluster: Cluster) -> dict[str, int]:
    """Bytes that libraries need on each GPU, by its name."""
    return {device.name: device.reserve for device in cluster.devices if device.kind != HOST}
