"""Cluster changes: problems with a faster or larger cluster.

Only the arrays change (`Problem.with_arrays`), so that asking costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem

ChangeKind = Literal["host", "device", "link", "memory", "launch", "plan"]


@dataclass(frozen=True, eq=False)
class ClusterChange:
    """A change of the cluster.

    Args:
        kind: What is changed.
        description: The change as a person would say it.
        location: The device or channel, if it is one.
        apply: Makes the changed problem; also for a contracted one, which has the same cluster.
    """

    kind: ChangeKind
    description: str
    location: str
    apply: Callable[[Problem], Problem]


def faster_device(problem: Problem, device: int) -> ClusterChange:
    """Arithmetic and memory twice as fast; launch overheads as they are."""
    name = problem.cluster.devices[device].name

    def apply(problem: Problem) -> Problem:
        a = problem.arrays
        compute = a.compute.copy()
        launch = np.minimum(compute[:, device], problem.cluster.devices[device].launch_overhead)
        compute[:, device] = launch + (compute[:, device] - launch) / 2
        return problem.with_arrays(compute=compute)

    return ClusterChange("device", f"{name} twice as fast", name, apply)


def shorter_launches(problem: Problem) -> ClusterChange:
    """Launch overheads of all devices halved, those of an issuer too."""

    def apply(problem: Problem) -> Problem:
        a = problem.arrays
        launch = np.array([device.launch_overhead for device in problem.cluster.devices])
        compute = a.compute - np.minimum(a.compute, launch) / 2
        return problem.with_arrays(compute=compute, launch_overhead=a.launch_overhead / 2)

    return ClusterChange("launch", "launch overheads halved", "", apply)


def faster_channels(problem: Problem, channels: Sequence[int]) -> ClusterChange:
    """Bandwidth doubled, latency as it is; times that are given and not computed are halved."""
    is_single = len(channels) == 1
    location = channel_name(problem, channels[0]) if is_single else ""
    description = (
        f"{channel_description(problem, channels[0])} twice as fast"
        if is_single
        else "all links twice as fast"
    )

    def apply(problem: Problem) -> Problem:
        a, cluster = problem.arrays, problem.cluster
        transfer, link_class = list(a.transfer), a.link_class.copy()
        new_rows: dict[int, int] = {}
        for source, target in np.argwhere(np.isin(a.channel, channels)).tolist():
            old_row = int(a.link_class[source, target])
            if old_row not in new_rows:
                pair = cluster.devices[source].name, cluster.devices[target].name
                link = cluster.links[pair]
                new_rows[old_row] = len(transfer)
                transfer.append(
                    _double_bandwidth(a.transfer[old_row], a.sizes, link.bandwidth, link.latency)
                )
            link_class[source, target] = new_rows[old_row]
        return problem.with_arrays(transfer=np.stack(transfer), link_class=link_class)

    return ClusterChange("link", description, location, apply)


def more_memory(problem: Problem, device: int, extra_bytes: int) -> ClusterChange:
    """More usable memory on one device."""
    name = problem.cluster.devices[device].name
    return ClusterChange(
        "memory",
        f"{format_bytes(extra_bytes)} more on {name}",
        name,
        _add_memory([device], [extra_bytes]),
    )


def quarter_more_memory(problem: Problem, devices: Sequence[int]) -> ClusterChange:
    """A quarter more usable memory on each of several devices."""
    names = [problem.cluster.devices[device].name for device in devices]
    name_list = names if len(names) < 4 else [*names[:2], f"{len(names) - 2} others"]
    description = f"a quarter more memory on {', '.join(name_list[:-1])} and {name_list[-1]}"
    extra_bytes = [int(problem.arrays.capacity[device]) // 4 for device in devices]
    return ClusterChange("memory", description, "", _add_memory(devices, extra_bytes))


def _add_memory(devices: Sequence[int], extra_bytes: Sequence[int]) -> Callable[[Problem], Problem]:
    def apply(problem: Problem) -> Problem:
        capacity = problem.arrays.capacity.copy()
        capacity[list(devices)] += np.array(extra_bytes, dtype=np.int64)
        return problem.with_arrays(capacity=capacity)

    return apply


def channel_name(problem: Problem, channel: int) -> str:
    """`cpu→gpu0` for the channel of one link, its own name where several share it."""
    names = [device.name for device in problem.cluster.devices]
    pairs = np.argwhere(problem.arrays.channel == channel).tolist()
    if len(pairs) == 1:
        return "→".join(names[endpoint] for endpoint in pairs[0])
    return problem.cluster.channels[channel]


def channel_description(problem: Problem, channel: int) -> str:
    """Such as `the link cpu→gpu0` or `the channel gpu0-pcie`."""
    is_single = int((problem.arrays.channel == channel).sum()) == 1
    return f"the {'link' if is_single else 'channel'} {channel_name(problem, channel)}"


def _double_bandwidth(
    seconds: NDArray[np.float64], sizes: NDArray[np.int64], bandwidth: float, latency: float
) -> NDArray[np.float64]:
    if np.allclose(seconds, latency + sizes / bandwidth, rtol=1e-9, atol=0):
        return latency + sizes / (2 * bandwidth)
    return seconds / 2
