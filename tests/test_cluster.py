"""Devices, links and clusters: what they refuse, how links are routed, what identifies one."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

from placewright import Cluster, Device, Link
from placewright.errors import ClusterError


def joined(*names: str, link: Link | None = None) -> Cluster:
    """Devices of these names, each linked to every other."""
    pairs = [(one, other) for one in names for other in names if one != other]
    return Cluster(
        "joined", tuple(Device(name) for name in names), dict.fromkeys(pairs, link or Link(1))
    )


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a@b", "f(x)", "a,b"])
def test_a_device_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(ClusterError) as error:
        Device(name)
    assert str(error.value) == f"device name {name!r}: expected a word without '+@(), '"


def test_a_device_has_no_negative_bytes() -> None:
    message = "device 'a' has memory -1 and reserve 0: expected finite numbers >= 0"
    with pytest.raises(ClusterError, match=message):
        Device("a", memory=-1)
    with pytest.raises(
        ClusterError, match="has memory 0 and reserve -2: expected finite numbers >= 0"
    ):
        Device("a", reserve=-2)


@pytest.mark.parametrize("bandwidth", [0, -1.0, math.nan])
def test_a_device_moves_bytes(bandwidth: float) -> None:
    message = f"has memory bandwidth {bandwidth} and launch overhead 0.0: expected a bandwidth > 0"
    with pytest.raises(ClusterError, match=message):
        Device("a", memory_bandwidth=bandwidth)


@pytest.mark.parametrize("launch", [-1e-6, math.inf, math.nan])
def test_a_device_starts_ops_in_finite_time(launch: float) -> None:
    with pytest.raises(ClusterError, match=f"launch overhead {launch}: .* an overhead of 0 to 1e"):
        Device("a", launch_overhead=launch)


@pytest.mark.parametrize("rate", [0, -1.0, math.nan])
def test_a_device_computes(rate: float) -> None:
    with pytest.raises(ClusterError, match=f"'a' has rate {rate} for float16: expected > 0"):
        Device("a", rates={"float32": 1.0, "float16": rate})


def test_a_plan_may_use_what_the_reserve_leaves() -> None:
    assert Device("a", memory=10, reserve=3).capacity == 7
    assert Device("a", memory=10, reserve=30).capacity == 0


def test_an_unlisted_dtype_runs_as_float32_or_as_the_slowest() -> None:
    both = Device("a", rates={"float16": 8.0, "float32": 4.0, "float64": 2.0})
    assert both.rate("float16") == 8
    assert both.rate("bfloat16") == 4
    assert Device("a", rates={"float16": 8.0, "float64": 2.0}).rate("bfloat16") == 2
    assert Device("a").rate("float32") == math.inf


@pytest.mark.parametrize("bandwidth", [0, -1.0, math.nan])
def test_a_link_moves_bytes(bandwidth: float) -> None:
    with pytest.raises(ClusterError, match=f"a link has bandwidth {bandwidth}: expected > 0"):
        Link(bandwidth)


@pytest.mark.parametrize("latency", [-1.0, math.inf, math.nan])
def test_a_link_delivers_in_finite_time(latency: float) -> None:
    message = f"a link has latency {latency}: expected 0 to 1e"
    with pytest.raises(ClusterError, match=message):
        Link(1, latency)


def test_a_cluster_has_devices() -> None:
    with pytest.raises(ClusterError, match="cluster 'void' has no devices: expected at least one"):
        Cluster("void", (), {})


def test_device_names_are_unique() -> None:
    with pytest.raises(ClusterError, match="two devices are named 'a': names must be unique"):
        Cluster("twins", (Device("a"), Device("b"), Device("a")), {})


def test_a_link_to_nowhere_offers_the_nearest_device() -> None:
    message = r"a link names device 'gpu': did you mean 'gpu0'\?"
    with pytest.raises(ClusterError, match=message):
        Cluster("c", (Device("gpu0"), Device("cpu9")), {("cpu9", "gpu"): Link(1)})


def test_a_link_leads_elsewhere() -> None:
    with pytest.raises(ClusterError, match="a link leads from 'a' to itself: expected two devices"):
        Cluster("c", (Device("a"), Device("b")), {("a", "a"): Link(1)})


def test_a_device_that_cannot_be_reached_is_refused() -> None:
    message = "cluster 'one-way' has no route from 'b' to 'a': add a link"
    with pytest.raises(ClusterError, match=message):
        Cluster("one-way", (Device("a"), Device("b")), {("a", "b"): Link(1)})


def test_a_cluster_of_one_device_needs_no_links(one_device: Cluster) -> None:
    assert len(one_device) == 1
    assert one_device.links == {}
    assert one_device.channels == ()


def test_each_direction_has_a_channel_of_its_own_unless_said(shared_wire: Cluster) -> None:
    assert joined("a", "b").channels == ("a->b", "b->a")
    assert shared_wire.channels == ("gpu0->gpu1", "up", "gpu1->gpu0", "down")


def test_a_routed_link_adds_latencies_and_is_as_wide_as_its_narrowest(in_a_row: Cluster) -> None:
    # left to middle: 4 bytes a second, 1 s; middle to right: 2 bytes a second, 3 s
    assert in_a_row.links["left", "right"] == Link(2, 1 + 3, "middle->right")
    assert in_a_row.links["right", "left"] == Link(2, 3 + 1, "right->middle")
    assert in_a_row.channels == ("left->middle", "middle->right", "middle->left", "right->middle")


def test_a_route_can_be_long() -> None:
    names = ("a", "b", "c", "d")
    widths = {("a", "b"): 5.0, ("b", "c"): 3.0, ("c", "d"): 4.0, ("d", "a"): 9.0}
    ring = Cluster(
        "ring",
        tuple(Device(name) for name in names),
        {pair: Link(width, 1) for pair, width in widths.items()},
    )
    assert ring.links["a", "d"] == Link(3, 3, "b->c")
    assert ring.links["b", "a"] == Link(3, 3, "b->c")
    assert ring.links["d", "c"] == Link(3, 3, "b->c")
    assert len(ring.links) == 4 * 3


def test_a_route_takes_the_way_that_is_quickest_for_a_megabyte() -> None:
    # by "slow": 2 x 1 MB / 1 MB/s = 2 s; by "far": 2 x (0.5 s + 1 MB / 4 MB/s) = 1.5 s
    slow, far = Link(1e6), Link(4e6, 0.5)
    links = {("a", "slow"): slow, ("slow", "b"): slow, ("a", "far"): far, ("far", "b"): far}
    links |= {(target, source): link for (source, target), link in links.items()}
    cluster = Cluster("c", tuple(Device(name) for name in ("a", "slow", "far", "b")), links)
    assert cluster.links["a", "b"] == Link(4e6, 1.0, "a->far")


def test_a_link_that_is_given_is_never_routed_around() -> None:
    links = {("a", "b"): Link(1, 9), ("a", "c"): Link(100), ("c", "b"): Link(100)}
    links |= {("b", "c"): Link(100), ("c", "a"): Link(100), ("b", "a"): Link(1, 9)}
    cluster = Cluster("c", (Device("a"), Device("b"), Device("c")), links)
    assert cluster.links["a", "b"] == Link(1, 9, "a->b")


def routed_step_by_step(
    names: list[str], links: dict[tuple[str, str], Link]
) -> dict[tuple[str, str], Link]:
    """Floyd and Warshall's algorithm, pair by pair."""
    seconds = {pair: link.latency + 1e6 / link.bandwidth for pair, link in links.items()}
    routes = dict(links)
    for relay, source, target in itertools.product(names, repeat=3):
        if source == target or relay in (source, target) or (source, target) in links:
            continue
        first, second = routes.get((source, relay)), routes.get((relay, target))
        if first is None or second is None:
            continue
        via = seconds[source, relay] + seconds[relay, target]
        if via < seconds.get((source, target), math.inf):
            seconds[source, target] = via
            narrow = first if first.bandwidth <= second.bandwidth else second
            routes[source, target] = dataclasses.replace(
                narrow, latency=first.latency + second.latency
            )
    return routes


@pytest.mark.parametrize("seed", range(20))
def test_routes_are_those_of_the_algorithm_pair_by_pair(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"d{at}" for at in range(rng.randint(2, 9))]
    pairs = list(itertools.pairwise([*names, names[0]])) if len(names) > 2 else [("d0", "d1")]
    pairs += [(b, a) for a, b in pairs if rng.random() < 0.5 or len(names) == 2]
    links = {
        pair: Link(rng.choice([1.0, 2.0, 1e6]), rng.choice([0.0, 0.1, 3.0]), f"{pair[0]}>{pair[1]}")
        for pair in pairs
    }
    cluster = Cluster("ring", tuple(map(Device, names)), links)
    assert cluster.links == routed_step_by_step(names, links)


def test_hundreds_of_devices_in_a_row_are_routed() -> None:
    names = [f"d{at}" for at in range(400)]  # 64 million steps, pair by pair
    links = {
        pair: Link(1.0, 1.0) for a, b in itertools.pairwise(names) for pair in ((a, b), (b, a))
    }
    cluster = Cluster("row", tuple(map(Device, names)), links)
    assert cluster.links["d0", "d399"].latency == 399


def test_more_devices_than_pairs_can_be_linked_are_refused() -> None:
    devices = tuple(Device(f"d{at}") for at in range(1025))
    with pytest.raises(ClusterError, match="has 1,025 devices: expected at most 1,024"):
        Cluster("many", devices, {})
    with pytest.raises(ClusterError, match="expected a count from 1 to 1024"):
        Cluster.parse("1600xcpu")


def test_only_text_is_read_as_a_cluster() -> None:
    with pytest.raises(ClusterError, match=r"found None instead of a cluster: expected text like"):
        Cluster.parse(None)  # type: ignore[arg-type]


def test_the_host_is_the_first_cpu(gpu_and_host: Cluster, two_devices: Cluster) -> None:
    assert gpu_and_host.host == 1
    assert two_devices.host is None


def test_positions_follow_the_devices(shared_wire: Cluster) -> None:
    assert shared_wire.position == {"gpu0": 0, "gpu1": 1, "cpu": 2}


def test_a_cluster_shows_its_devices(shared_wire: Cluster) -> None:
    assert repr(shared_wire) == "Cluster('shared_wire', gpu0, gpu1, cpu)"


def test_some_of_the_devices_keep_their_order_links_and_routes(in_a_row: Cluster) -> None:
    outer = in_a_row.subset(["right", "left"])
    assert outer.name == "in_a_row:left,right"
    assert [device.name for device in outer.devices] == ["left", "right"]
    assert outer.links["left", "right"] == in_a_row.links["left", "right"]
    assert outer.channels == ("middle->right", "right->middle")


def test_all_of_the_devices_are_the_same_cluster(shared_wire: Cluster) -> None:
    assert shared_wire.subset(["cpu", "gpu1", "gpu0"]).fingerprint == shared_wire.fingerprint


def test_an_unknown_device_to_use_offers_the_nearest(shared_wire: Cluster) -> None:
    message = r"cluster 'shared_wire' has no device 'gpu2': did you mean 'gpu1'\?"
    with pytest.raises(ClusterError, match=message):
        shared_wire.subset(["cpu", "gpu2"])


def test_no_devices_to_use_are_refused(shared_wire: Cluster) -> None:
    with pytest.raises(ClusterError, match="has no devices"):
        shared_wire.subset([])


def test_a_fingerprint_is_of_the_content_not_the_name() -> None:
    cluster = joined("a", "b")
    assert dataclasses.replace(cluster, name="other").fingerprint == cluster.fingerprint
    assert joined("a", "b").fingerprint == cluster.fingerprint
    turned = dict(reversed(cluster.links.items()))
    assert dataclasses.replace(cluster, links=turned).fingerprint == cluster.fingerprint
    assert len(cluster.fingerprint) == 32


def test_a_fingerprint_does_not_depend_on_the_order_of_rates() -> None:
    one = Cluster("c", (Device("a", rates={"float32": 1.0, "float16": 2.0}),), {})
    other = Cluster("c", (Device("a", rates={"float16": 2.0, "float32": 1.0}),), {})
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"name": "b"},
        {"kind": "cpu"},
        {"model": "P100"},
        {"memory": 11},
        {"reserve": 1},
        {"rates": {"float32": 2.0}},
        {"memory_bandwidth": 5.0},
        {"launch_overhead": 1e-6},
        {"issuer": "thread"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_fingerprint_changes_with_any_field_of_a_device(change: dict[str, object]) -> None:
    device = Device("a", memory=10, rates={"float32": 1.0})
    before = Cluster("c", (device,), {})
    after = Cluster("c", (dataclasses.replace(device, **change),), {})
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize("link", [Link(2), Link(1, 1), Link(1, 0, "wire")])
def test_a_fingerprint_changes_with_any_field_of_a_link(link: Link) -> None:
    assert joined("a", "b", link=link).fingerprint != joined("a", "b").fingerprint


def test_a_fingerprint_changes_with_the_order_of_devices() -> None:
    assert joined("a", "b").fingerprint != joined("b", "a").fingerprint
