"""A changed problem is the one that a changed cluster gives, without packing it again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Constraints, Graph, Problem, Roofline, Table, zoo
from placewright.explanations.cluster_upgrades import (
    channel_description,
    channel_name,
    faster_channels,
    faster_device,
    more_memory,
    quarter_more_memory,
    shorter_launches,
)


@pytest.fixture
def problem() -> Problem:
    return Problem(zoo.load("transformer:blocks=2"), Cluster.parse("2xP100+cpu"))


def same(changed: Problem, rebuilt: Problem) -> None:
    a, b = changed.arrays, rebuilt.arrays
    assert np.allclose(a.compute, b.compute, rtol=1e-12)
    for source, target in np.argwhere(a.link_class >= 0):
        one, other = (x.transfer[x.link_class[source, target]] for x in (a, b))
        assert np.allclose(one, other, rtol=1e-12)
    assert a.launch_overhead.tolist() == b.launch_overhead.tolist()
    assert a.capacity.tolist() == b.capacity.tolist()
    assert not np.array_equal(rebuilt.arrays.compute, 0)


def with_devices(problem: Problem, change) -> Problem:
    devices = tuple(change(at, device) for at, device in enumerate(problem.cluster.devices))
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def test_a_faster_device_has_twice_the_rates_and_the_same_launches(problem: Problem) -> None:
    def twice(at, device):
        rates = {dtype: 2 * rate for dtype, rate in device.rates.items()}
        fast = replace(device, rates=rates, memory_bandwidth=2 * device.memory_bandwidth)
        return fast if at == 1 else device

    change = faster_device(problem, 1)
    assert (change.description, change.location) == ("gpu1 twice as fast", "gpu1")
    same(change.apply(problem), with_devices(problem, twice))


def test_launches_are_halved_on_every_device(problem: Problem) -> None:
    rebuilt = with_devices(
        problem, lambda _, device: replace(device, launch_overhead=device.launch_overhead / 2)
    )
    same(shorter_launches(problem).apply(problem), rebuilt)


def test_memory_is_added_to_one_device(problem: Problem) -> None:
    change = more_memory(problem, 0, 2**31)
    assert change.description == "2 GiB more on gpu0"
    more = with_devices(
        problem, lambda at, d: replace(d, memory=d.memory + 2**31) if at == 0 else d
    )
    same(change.apply(problem), more)


def test_a_quarter_is_added_to_several_devices(problem: Problem) -> None:
    change = quarter_more_memory(problem, [0, 1])
    assert change.description == "a quarter more memory on gpu0 and gpu1"
    before, after = problem.arrays.capacity, change.apply(problem).arrays.capacity
    assert after.tolist() == [before[0] * 5 // 4, before[1] * 5 // 4, before[2]]
    many = Problem(problem.graph, Cluster.parse("5xP100"))
    assert quarter_more_memory(many, [0, 1, 3, 4]).description == (
        "a quarter more memory on gpu0, gpu1 and 2 others"
    )


@pytest.mark.parametrize("channels", [[0], [2], [0, 1, 2, 3]])
def test_a_faster_channel_has_twice_the_bandwidth_and_the_same_latency(
    problem: Problem, channels: list[int]
) -> None:
    cluster = problem.cluster
    wanted = {cluster.channels[at] for at in channels}
    links = {
        pair: replace(link, bandwidth=2 * link.bandwidth) if link.channel in wanted else link
        for pair, link in cluster.links.items()
    }
    rebuilt = replace(problem, cluster=replace(cluster, links=links))
    changed = faster_channels(problem, channels).apply(problem)
    same(changed, rebuilt)
    assert not np.array_equal(changed.arrays.link_class, problem.arrays.link_class)


def test_given_transfer_times_are_halved_whole(diamond: Graph, two_devices: Cluster) -> None:
    names = tuple(op.name for op in diamond.ops)
    table = Table(names, ("gpu",), np.ones((4, 1)), transfers=np.array([3.0, 4, 5, 6]))
    problem = Problem(diamond, two_devices, table)
    a = faster_channels(problem, [1]).apply(problem).arrays
    assert a.transfer[a.link_class[1, 0]].tolist() == [1.5, 2, 2.5, 3]
    assert a.transfer[a.link_class[0, 1]].tolist() == [3, 4, 5, 6]


def test_channels_are_called_after_their_link_or_by_name(
    layers: Graph, shared_wire: Cluster, exact: Roofline
) -> None:
    problem = Problem(layers, shared_wire, exact, Constraints())
    names = {channel_name(problem, at) for at in range(problem.arrays.channels)}
    assert names == {"gpu0→gpu1", "gpu1→gpu0", "up", "down"}
    spoken = {channel_description(problem, at) for at in range(problem.arrays.channels)}
    assert {"the link gpu0→gpu1", "the channel up"} < spoken
    assert faster_channels(problem, [0, 1]).description == "all links twice as fast"
