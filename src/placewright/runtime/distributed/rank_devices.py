"""The real devices of one rank: those of its host; a device of another rank is a name only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from placewright.errors import ConfigError
from placewright.frontends.pytorch.torch_version import check_running
from placewright.runtime.distributed.host_ranks import local_name
from placewright.runtime.machine import available_cores, load_torch
from placewright.runtime.real_devices import RealDevice, parse_device, share_cores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.runtime.distributed.host_ranks import HostRanks


def find_rank_devices(
    host_ranks: HostRanks, rank: int, device_map: Mapping[str, str] | None = None
) -> tuple[RealDevice, ...]:
    """The real device behind each device of a plan, as one rank sees them.

    A device of another rank is an idle worker: tensors go to it through the host's memory.

    Args:
        device_map: Real devices of some of the plan's devices, by their full names.

    Raises:
        ConfigError: A name tells no real device, or an entry of the map is written wrongly.
    """
    check_running(load_torch().__version__)
    names = host_ranks.device_names
    unknown = sorted(set(device_map or ()) - set(names))
    if unknown:
        raise ConfigError(
            f"the device map has {unknown[0]!r}: the plan's devices are {', '.join(names)}"
        )
    own = host_ranks.devices_of(rank)
    local = [
        parse_device(names[at], (device_map or {}).get(names[at]), local_name(names[at]))
        for at in own
    ]
    shared = dict(zip(own, share_cores(local, rank_cores()), strict=True))
    return tuple(shared.get(at, RealDevice(name)) for at, name in enumerate(names))


def rank_cores() -> tuple[int, ...]:
    """The cores of this process; processes that torchrun started on one host share its cores."""
    cores = available_cores()
    count, index = _number("LOCAL_WORLD_SIZE"), _number("LOCAL_RANK")
    if count is None or index is None or not 0 <= index < count:
        return cores
    if len(cores) < count:
        return (cores[index % len(cores)],)
    return cores[index * len(cores) // count : (index + 1) * len(cores) // count]


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None
