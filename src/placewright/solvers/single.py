"""Single-device plans, which every split must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from placewright.solvers.search import Search


@dataclass(frozen=True)
class SingleDevice:
    """Every op on the named device, except those that may not be there."""

    device: str

    @property
    def name(self) -> str:
        return f"single {self.device}"

    def run(self, search: Search) -> None:
        cluster = search.problem.cluster
        position = cluster.position
        if self.device not in position:
            raise ConfigError(
                f"cluster {cluster.name!r} has no device {self.device!r}: "
                f"{nearest(self.device, position)}"
            )
        _judge_devices(search, [position[self.device]])


@dataclass(frozen=True)
class SingleDevices:
    """Every op on one device, for each device."""

    name = "single"

    def run(self, search: Search) -> None:
        _judge_devices(search, list(range(len(search.problem.cluster))))


@dataclass(frozen=True)
class CpuOnly:
    """Every op on the host."""

    name = "cpu-only"

    def run(self, search: Search) -> None:
        cluster = search.problem.cluster
        if cluster.host is None:
            raise ConfigError(
                f"cluster {cluster.name!r} has no cpu: add one, or choose another method"
            )
        _judge_devices(search, [cluster.host])


def _judge_devices(search: Search, devices: list[int]) -> None:
    search.judge(search.problem.single_device_placements()[devices])
