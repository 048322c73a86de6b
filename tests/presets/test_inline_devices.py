"""Devices that a cluster string describes by their figures."""

from __future__ import annotations

import re

import pytest

from placewright import Cluster, presets
from placewright.errors import ClusterError

GIB = 2**30


def test_units_say_what_a_figure_is_in_any_order() -> None:
    gpu, host = Cluster.parse("MyGPU(24GB,82TF,1008GB/s)+cpu").devices
    assert (gpu.name, gpu.kind, gpu.model) == ("gpu0", "gpu", "MyGPU")
    assert gpu.memory == 24 * GIB  # of chips, as on a data sheet
    assert gpu.rates == {"float32": 82e12}
    assert gpu.memory_bandwidth == 1008e9
    assert (gpu.reserve, gpu.launch_overhead) == (GIB, 5e-6)
    assert host.model == "cpu"
    shuffled = Cluster.parse("MyGPU( 1.008TB/s, 82 TFLOPS, 24GiB ) + cpu")
    assert shuffled.devices == (gpu, host)


def test_a_dtype_may_have_a_rate_of_its_own() -> None:
    (gpu,) = Cluster.parse("X(8GB,10TF,fp16=40TF,bf16=41TF,int8=80TOPS,1GB/s)").devices
    assert gpu.rates == {"float32": 10e12, "float16": 40e12, "bfloat16": 41e12, "int8": 80e12}
    (half,) = Cluster.parse("X(8GB,fp16=40TF,1GB/s)").devices
    assert half.rate("float32") == 40e12  # the slowest that is known


def test_a_link_a_launch_a_reserve_and_a_kind_may_be_given() -> None:
    cluster = Cluster.parse(
        "2xX(8GB,1TF,9GB/s,20us,reserve=2GiB,pcie3x8,nvlink2)+Y(9GB,1TF,9GB/s,cpu)"
    )
    left, right, host = cluster.devices
    assert (left.launch_overhead, left.reserve, host.kind) == (20e-6, 2 * GIB, "cpu")
    assert cluster.links["gpu0", "gpu1"].bandwidth == presets.preset_link("nvlink2").bandwidth
    assert cluster.links["cpu", "gpu0"].bandwidth == presets.preset_link("pcie3x8").bandwidth
    assert right.model == "X"


def test_a_presets_name_takes_what_is_missing_from_the_preset() -> None:
    (plain,), (changed,) = Cluster.parse("A100").devices, Cluster.parse("A100(20GiB)").devices
    assert changed.memory == 20 * GIB
    assert changed.rates == plain.rates
    assert changed.memory_bandwidth == plain.memory_bandwidth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X(24GB,82TF)", "X is no preset, so it also needs its memory bandwidth, such as 1008GB/s"),
        ("X(24GB,1GB/s)", "X is no preset, so it also needs its FLOP/s, such as 82TF"),
        ("X(1TF,1GB/s)", "X is no preset, so it also needs its memory, such as 24GB"),
        ("X(24,1TF,1GB/s)", "X has '24': expected a figure with a unit, such as 24GB (memory)"),
        ("X(24GB,24GB)", "X has two figures for its memory: keep one"),
        ("X(1TF,2TF)", "X has two rates of float32: keep one"),
        ("X(24GB,0TF,1GB/s)", "X has '0TF': expected more than 0 FLOP/s"),
        ("X(24GB,1TF,0GB/s)", "X has '0GB/s': expected a bandwidth > 0"),
        ("X(warp=9)", "X has 'warp=9': expected a rate by dtype, such as fp16=165TF"),
        ("X()", "X has '': expected a figure with a unit"),
        ("X(24GB", "found the end, expected ')' after the figures of a device"),
    ],
)
def test_an_incomplete_device_says_what_it_needs(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)):
        Cluster.parse(text)
