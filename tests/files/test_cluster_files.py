"""Clusters in files: TOML by hand, presets, links both ways, and what is refused."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placewright import Cluster, Constraints, Device, Link, load, save
from placewright.errors import ClusterError, ConfigError, FileError, PlacewrightError
from placewright.files import from_data, to_data

Data = dict[str, Any]
Write = Callable[..., Path]
CLUSTER = {"placewright": "cluster", "version": 2}


CLUSTER_TOML = """
placewright = "cluster"
version = 2
name = "mine"

[[devices]]
name = "gpu0"
preset = "P100"
reserve = "1 GiB"

[[devices]]
name = "gpu1"
kind = "gpu"
model = "odd"
memory = "16 GiB"
rates = { float32 = 9.3e12, float16 = inf }
memory_bandwidth = 732e9
launch_overhead = 1e-5
issuer = "main"

[[devices]]
name = "cpu"
kind = "cpu"
memory = 1000

[[links]]
from = "gpu0"
to = "gpu1"
preset = "pcie3"
channel = "switch"
both = true

[[links]]
from = "gpu0"
to = "cpu"
bandwidth = 12e9
latency = 1e-5
both = true

[[links]]
from = "cpu"
to = "gpu1"
bandwidth = inf

[[links]]
from = "gpu1"
to = "cpu"
bandwidth = 6e9
"""


def test_a_cluster_is_read_from_toml(write: Write) -> None:
    from placewright.presets import preset_device, preset_link

    cluster = load(write(CLUSTER_TOML, "mine.toml"), kind="cluster")
    gpu0, gpu1, cpu = cluster.devices
    assert cluster.name == "mine"
    assert gpu0 == replace(preset_device("P100", "gpu0"), reserve=2**30)
    rates = {"float32": 9.3e12, "float16": math.inf}
    assert gpu1 == Device("gpu1", "gpu", "odd", 16 * 2**30, 0, rates, 732e9, 1e-5, "main")
    assert cpu == Device("cpu", "cpu", memory=1000)
    switch = replace(preset_link("pcie3"), channel="switch")
    assert cluster.links == {
        ("gpu0", "gpu1"): switch,
        ("gpu1", "gpu0"): switch,
        ("gpu0", "cpu"): Link(12e9, 1e-5, "gpu0->cpu"),
        ("cpu", "gpu0"): Link(12e9, 1e-5, "cpu->gpu0"),
        ("cpu", "gpu1"): Link(math.inf, 0, "cpu->gpu1"),
        ("gpu1", "cpu"): Link(6e9, 0, "gpu1->cpu"),
    }


@pytest.mark.parametrize("suffix", [".toml", ".toml.gz", ".json"])
def test_a_cluster_comes_back_from_toml_and_json(tmp_path: Path, write: Write, suffix: str) -> None:
    cluster = load(write(CLUSTER_TOML, "mine.toml"))
    save(cluster, tmp_path / f"again{suffix}")
    again = load(tmp_path / f"again{suffix}")
    assert again == cluster
    assert again.fingerprint == cluster.fingerprint


def test_routed_and_shared_links_come_back(
    tmp_path: Path, in_a_row: Cluster, shared_wire: Cluster
) -> None:
    for cluster in (in_a_row, shared_wire):
        save(cluster, tmp_path / "cluster.toml")
        assert load(tmp_path / "cluster.toml") == cluster


def test_equal_links_there_and_back_are_written_once(two_devices: Cluster) -> None:
    assert to_data(two_devices)["links"] == [
        {"from": "gpu0", "to": "gpu1", "bandwidth": 1.0, "both": True}
    ]


def test_odd_names_survive_toml(tmp_path: Path) -> None:
    names = ('a"b\\c', "ünï👍", "tab\tnew\nline\x7f", "dot.ted", "")
    constraints = Constraints(
        pins=dict.fromkeys(names, "gpu0"), forbid={"x y": names}, colocate=(names,)
    )
    save(constraints, tmp_path / "constraints.toml")
    assert load(tmp_path / "constraints.toml") == constraints
    rates = {"float 32": 1.0, "bfloat16": 1e300}
    cluster = Cluster('"c"', (Device("a", rates=rates, model="\u2028"),), {})
    save(cluster, tmp_path / "cluster.toml")
    assert load(tmp_path / "cluster.toml") == cluster


def test_half_a_surrogate_pair_cannot_be_toml_but_can_be_json(tmp_path: Path) -> None:
    cluster = Cluster("\ud800", (Device("a"),), {})
    with pytest.raises(FileError, match=r"c\.toml: cannot be written: .*surrogates not allowed"):
        save(cluster, tmp_path / "c.toml")
    save(cluster, tmp_path / "c.json")
    assert load(tmp_path / "c.json") == cluster


def test_toml_that_is_written_is_toml(tmp_path: Path, gpu_and_host: Cluster) -> None:
    save(gpu_and_host, tmp_path / "cluster.toml")
    assert tomllib.loads((tmp_path / "cluster.toml").read_text()) == to_data(gpu_and_host)


def cluster_of(links: object = (), **device: object) -> Data:
    devices = [{"name": "a"} | device, {"name": "b"}]
    default = {"from": "a", "to": "b", "bandwidth": 1, "both": True}
    return CLUSTER | {"name": "c", "devices": devices, "links": links or [default]}


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (
            cluster_of(memory=-1),
            ClusterError,
            "device 'a' has memory -1 and reserve 0: expected finite numbers >= 0",
        ),
        (
            cluster_of(memory="16 gigs"),
            ConfigError,
            "devices[0].memory is size '16 gigs': expected a number and a unit, such as '16 GiB'",
        ),
        (cluster_of(memory=1.5), ConfigError, "devices[0].memory is 1.5: expected a whole number"),
        (
            cluster_of(memory="9000000 TiB"),
            ConfigError,
            "devices[0].memory is 9895604649984000000: expected a whole number within 64 bits",
        ),
        (
            cluster_of(memory_bandwidth=math.nan),
            ConfigError,
            "devices[0].memory_bandwidth is nan: expected a fin",
        ),
        (
            cluster_of(memory_bandwidth="fast"),
            ConfigError,
            "devices[0].memory_bandwidth is 'fast': expected a n",
        ),
        (
            cluster_of(memory_bandwidth=0),
            ClusterError,
            "device 'a' has memory bandwidth 0.0 and launch overhead 0.0",
        ),
        (
            cluster_of(launch_overhead="inf"),
            ConfigError,
            "devices[0].launch_overhead is 'inf': expected a number",
        ),
        (
            cluster_of(launch_overhead=-1),
            ClusterError,
            "device 'a' has memory bandwidth inf and launch overhead -1.0",
        ),
        (cluster_of(rates=3), ConfigError, "devices[0].rates is 3: expected an object"),
        (cluster_of(rates={"float32": 0}), ClusterError, "device 'a' has rate 0.0 for float32"),
        (
            cluster_of(rates={"float32": "x"}),
            ConfigError,
            "devices[0].rates['float32'] is 'x': expected a number",
        ),
        (
            cluster_of(memry=1),
            ConfigError,
            "devices[0] has an unknown key 'memry': did you mean 'm",
        ),
        (cluster_of(name="b"), ClusterError, "two devices are named 'b': names must be unique"),
        (cluster_of(name="a b"), ClusterError, "device name 'a b': expected a word without"),
        (cluster_of(preset="P1000"), ClusterError, "unknown device 'P1000': did you mean 'P100'?"),
        (cluster_of([{"from": "a"}]), ConfigError, "links[0] has no 'to': add it"),
        (
            cluster_of([{"from": "a", "to": "b"}]),
            ClusterError,
            "links[0] has no bandwidth: add 'bandwidth' or 'preset'",
        ),
        (
            cluster_of([{"from": "a", "to": "b", "bandwidth": 1}]),
            ClusterError,
            "cluster 'c' has no route from 'b' to 'a': add a link",
        ),
        (
            cluster_of([{"from": "a", "to": "bb", "bandwidth": 1}]),
            ClusterError,
            "a link names device 'bb': did you mean 'b'?",
        ),
        (
            cluster_of([{"from": "a", "to": "a", "bandwidth": 1}]),
            ClusterError,
            "a link leads from 'a' to itself: expected two devices",
        ),
        (
            cluster_of([{"from": "a", "to": "b", "bandwidth": 1}] * 2),
            ClusterError,
            "two links lead from 'a' to 'b': keep one",
        ),
        (
            cluster_of([{"from": "a", "to": "b", "bandwidth": -1}]),
            ClusterError,
            "a link has bandwidth -1.0: expected > 0",
        ),
        (
            cluster_of([{"from": "a", "to": "b", "bandwidth": 1, "latency": -1}]),
            ClusterError,
            "a link has latency -1.0: expected 0 to 1e+18 s",
        ),
        (
            cluster_of([{"from": "a", "to": "b", "preset": "pcie33"}]),
            ClusterError,
            "unknown link 'pcie33': did you mean 'pcie3'?",
        ),
        (
            cluster_of([{"from": "a", "to": "b", "bandwidth": 1, "both": "yes"}]),
            ConfigError,
            "links[0].both is 'yes': expected true or false",
        ),
        (cluster_of() | {"devices": []}, ClusterError, "cluster 'c' has no devices: expected at"),
        (cluster_of() | {"link": []}, ConfigError, "the file has an unknown key 'link': did you"),
    ],
)
def test_a_malformed_cluster_is_refused(
    data: Data, error: type[PlacewrightError], message: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}") as caught:
        from_data(data)
    assert type(caught.value) is error
