"""Changes to a cluster: a problem in, problems with a faster or larger cluster out.

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

Kind = Literal["device", "link", "memory", "launch", "plan"]


@dataclass(frozen=True, eq=False)
class Change:
    """One thing that could be better.

    Args:
        kind: What is changed.
        words: The change as a person would say it.
        where: The device or channel, if it is one.
        apply: Makes the changed problem; also for a contracted one, which has the same cluster.
    """

    kind: Kind
    words: str
    where: str
    apply: Callable[[Problem], Problem]


def faster_device(problem: Problem, device: int) -> Change:
    """Arithmetic and memory twice as fast; launch overheads as they are."""
    name = problem.cluster.devices[device].name

    def apply(problem: Problem) -> Problem:
        a = problem.arrays
        compute = a.compute.copy()
        launch = np.minimum(compute[:, device], problem.cluster.devices[device].launch)
        compute[:, device] = launch + (compute[:, device] - launch) / 2
        return problem.with_arrays(compute=compute)

    return Change("device", f"{name} twice as fast", name, apply)


def shorter_launches(problem: Problem) -> Change:
    """Launch overheads of all devices halved, those of an issuer too."""

    def apply(problem: Problem) -> Problem:
        a = problem.arrays
        launch = np.array([device.launch for device in problem.cluster.devices])
        compute = a.compute - np.minimum(a.compute, launch) / 2
        return problem.with_arrays(compute=compute, launch=a.launch / 2)

    return Change("launch", "launch overheads halved", "", apply)


def faster_channels(problem: Problem, channels: Sequence[int]) -> Change:
    """Bandwidth doubled, latency as it is; times that are given and not computed are halved."""
    one = len(channels) == 1
    where = channel_name(problem, channels[0]) if one else ""
    words = (
        f"{channel_words(problem, channels[0])} twice as fast" if one else "all links twice as fast"
    )

    def apply(problem: Problem) -> Problem:
        a, cluster = problem.arrays, problem.cluster
        transfer, link_class = list(a.transfer), a.link_class.copy()
        known: dict[int, int] = {}
        for source, target in np.argwhere(np.isin(a.channel, channels)).tolist():
            old = int(a.link_class[source, target])
            if old not in known:
                pair = cluster.devices[source].name, cluster.devices[target].name
                link = cluster.links[pair]
                known[old] = len(transfer)
                transfer.append(_doubled(a.transfer[old], a.sizes, link.bandwidth, link.latency))
            link_class[source, target] = known[old]
        return problem.with_arrays(transfer=np.stack(transfer), link_class=link_class)

    return Change("link", words, where, apply)


def more_memory(problem: Problem, device: int, extra: int) -> Change:
    """So many bytes more to use on one device."""
    name = problem.cluster.devices[device].name
    return Change("memory", f"{format_bytes(extra)} more on {name}", name, _more([device], [extra]))


def quarter_more_memory(problem: Problem, devices: Sequence[int]) -> Change:
    """A quarter more to use on each of several devices."""
    names = [problem.cluster.devices[at].name for at in devices]
    shown = names if len(names) < 4 else [*names[:2], f"{len(names) - 2} others"]
    words = f"a quarter more memory on {', '.join(shown[:-1])} and {shown[-1]}"
    extras = [int(problem.arrays.capacity[at]) // 4 for at in devices]
    return Change("memory", words, "", _more(devices, extras))


def _more(devices: Sequence[int], extras: Sequence[int]) -> Callable[[Problem], Problem]:
    def apply(problem: Problem) -> Problem:
        capacity = problem.arrays.capacity.copy()
        capacity[list(devices)] += np.array(extras, dtype=np.int64)
        return problem.with_arrays(capacity=capacity)

    return apply


def channel_name(problem: Problem, channel: int) -> str:
    """`cpu→gpu0` for the channel of one link, its own name where several share it."""
    names = [device.name for device in problem.cluster.devices]
    pairs = np.argwhere(problem.arrays.channel == channel).tolist()
    if len(pairs) == 1:
        return "→".join(names[end] for end in pairs[0])
    return problem.cluster.channels[channel]


def channel_words(problem: Problem, channel: int) -> str:
    """Such as `the link cpu→gpu0` or `the channel gpu0-pcie`."""
    one = int((problem.arrays.channel == channel).sum()) == 1
    return f"the {'link' if one else 'channel'} {channel_name(problem, channel)}"


def _doubled(
    seconds: NDArray[np.float64], sizes: NDArray[np.int64], bandwidth: float, latency: float
) -> NDArray[np.float64]:
    if np.allclose(seconds, latency + sizes / bandwidth, rtol=1e-9, atol=0):
        return latency + sizes / (2 * bandwidth)
    return seconds / 2
