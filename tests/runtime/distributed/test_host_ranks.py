"""Hosts are numbered in the plan's order, and a map says otherwise."""

from __future__ import annotations

import pytest

from placewright.errors import ConfigError
from placewright.runtime.distributed.host_ranks import HostRanks

NAMES = ("b/gpu0", "b/cpu", "a/gpu0", "a/cpu")


def test_hosts_are_ranks_in_the_order_of_their_devices():
    assert HostRanks.of(NAMES, 2).ranks == (0, 0, 1, 1)
    assert HostRanks.of(NAMES, 2).devices_of(1) == (2, 3)


def test_a_map_of_one_host_moves_the_others_to_the_ranks_that_are_left():
    assert HostRanks.of(NAMES, 2, {"a": 0}).ranks == (1, 1, 0, 0)
    assert HostRanks.of(NAMES, 2, {"a/cpu": 0}).ranks == (1, 1, 0, 0)


def test_devices_without_hosts_need_a_map_of_all_of_them():
    assert HostRanks.of(("cpu0", "cpu1", "cpu2"), 2, {"cpu0": 0, "cpu1": 1, "cpu2": 1}).ranks == (
        0,
        1,
        1,
    )
    with pytest.raises(ConfigError, match="device 'cpu1' names no host"):
        HostRanks.of(("cpu0", "cpu1"), 2, {"cpu0": 0})


@pytest.mark.parametrize(
    ("names", "size", "given", "text"),
    [
        (NAMES, 3, None, "are on 2 ranks, and there are 3 processes"),
        (NAMES, 1, None, "has 2 hosts .* 1 processes: start as many processes as hosts"),
        (NAMES, 2, {"c": 0}, "'c', which is no host or device of the plan"),
        (NAMES, 2, {"a": 2}, "has rank 2: there are 2 processes"),
        (NAMES, 2, {"a/cpu": 0, "a/gpu0": 1}, r"'a' have the ranks \[0, 1\]"),
        (NAMES, 1, {"a": 0, "b": 0}, "two hosts one rank"),
    ],
)
def test_maps_and_sizes_that_do_not_go_with_the_plan_are_errors(names, size, given, text):
    with pytest.raises(ConfigError, match=text):
        HostRanks.of(names, size, given)
