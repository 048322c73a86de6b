"""Which rank runs which devices of a plan: hosts are numbered in the order of their devices.

A device of a plan for several hosts is named `HOST/DEVICE`, such as `node0/gpu1`. The host that the
plan names first is rank 0, the next one rank 1, and so on. A map of hosts, or of single devices,
gives them other ranks. All devices of one host belong to one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.device import HOST_SEPARATOR
from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def host_of(device: str) -> str:
    """The host's part of a device's name; empty: it has none."""
    return device.rpartition(HOST_SEPARATOR)[0]


def local_name(device: str) -> str:
    """The name of a device on its own host."""
    return device.rpartition(HOST_SEPARATOR)[2]


@dataclass(frozen=True)
class HostRanks:
    """The rank of each device of a plan, in the plan's order."""

    device_names: tuple[str, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(
        cls, device_names: Sequence[str], world_size: int, rank_map: Mapping[str, int] | None = None
    ) -> HostRanks:
        """The ranks of a plan's devices.

        Args:
            world_size: How many processes there are.
            rank_map: Ranks of some hosts or devices, by name.

        Raises:
            ConfigError: A device has no host and no rank, a rank is used by two hosts, or there are
                more or fewer hosts than processes.
        """
        given = dict(rank_map or {})
        hosts = list(dict.fromkeys(host_of(name) or name for name in device_names))
        unknown = [name for name in given if name not in hosts and name not in device_names]
        if unknown:
            raise ConfigError(
                f"the rank map has {unknown[0]!r}, which is no host or device of the plan: "
                f"{nearest(unknown[0], [*hosts, *device_names])}"
            )
        free = [rank for rank in range(world_size) if rank not in given.values()]
        rank_of: dict[str, int] = {}
        for host in hosts:
            own = {given[name] for name in device_names if name in given and _is_on(name, host)}
            own |= {given[host]} if host in given else set()
            if len(own) > 1:
                raise ConfigError(
                    f"the devices of host {host!r} have the ranks {sorted(own)}: expected one rank "
                    "for all devices of a host"
                )
            if own:
                rank_of[host] = own.pop()
            elif not any(host_of(name) == host for name in device_names):
                raise ConfigError(
                    f"device {host!r} names no host: expected names such as node0/cpu, or a rank "
                    f"map with its rank, such as {host}=0"
                )
        for host in hosts:
            if host not in rank_of and not free:
                raise ConfigError(
                    f"the plan has {len(hosts)} hosts ({', '.join(hosts)}), and there are "
                    f"{world_size} processes: start as many processes as hosts"
                )
            if host not in rank_of:
                rank_of[host] = free.pop(0)
        _check_ranks(rank_of, world_size, any(map(host_of, device_names)))
        ranks = tuple(rank_of[host_of(name) or name] for name in device_names)
        return cls(tuple(device_names), ranks)

    def devices_of(self, rank: int) -> tuple[int, ...]:
        """The positions of the devices of a rank."""
        return tuple(at for at, other in enumerate(self.ranks) if other == rank)


def _is_on(device: str, host: str) -> bool:
    return (host_of(device) or device) == host


def _check_ranks(rank_of: Mapping[str, int], world_size: int, named_hosts: bool) -> None:
    used = set(rank_of.values())
    outside = [rank for rank in used if not 0 <= rank < world_size]
    if outside:
        raise ConfigError(
            f"the rank map has rank {outside[0]}: there are {world_size} processes, of ranks 0 to "
            f"{world_size - 1}"
        )
    if len(used) < world_size:
        raise ConfigError(
            f"the plan's devices are on {len(used)} ranks, and there are {world_size} processes: "
            "start one process for each host of the plan"
        )
    if named_hosts and len(used) < len(rank_of):
        raise ConfigError(
            "the rank map gives two hosts one rank: each host is a process of its own"
        )
