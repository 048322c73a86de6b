"""Cluster strings and the devices and links they can name."""

from __future__ import annotations

import re
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright import Cluster, Link, presets
from placewright.errors import ClusterError
from placewright.files import load
from placewright.presets.names import normalize

GIB = 2**30
PCIE3, PCIE4, PCIE5 = (presets.preset_link(f"pcie{generation}") for generation in (3, 4, 5))


def names(text: str) -> list[str]:
    return [device.name for device in Cluster.parse(text).devices]


def models(text: str) -> list[str]:
    return [device.model for device in Cluster.parse(text).devices]


def test_every_preset_is_a_cluster_of_one() -> None:
    for preset in presets.device_presets():
        for word in (preset.name, preset.name.upper(), *preset.also):
            (device,) = Cluster.parse(word).devices
            assert device.model == preset.name
            assert device.kind == preset.kind
            assert device.memory == preset.memory
            assert device.memory_bandwidth == preset.memory_bandwidth


def test_every_preset_has_figures_in_the_right_units_and_a_source() -> None:
    for preset in presets.device_presets():
        gpu = preset.kind == "gpu"
        assert gpu or preset.kind == "cpu"
        assert 8 * GIB <= preset.memory <= 512 * GIB
        assert preset.memory > 2 * preset.reserve
        if preset.unified:  # the system leaves about two thirds to the GPU
            assert preset.memory / 4 < preset.reserve < preset.memory / 2
        else:
            assert preset.reserve == (GIB if gpu else 0)
        assert 50e9 < preset.memory_bandwidth <= 8e12
        assert 5e-6 <= preset.launch_overhead <= 1e-5 if gpu else preset.launch_overhead == 1e-6
        assert all(1e11 < rate <= 5e15 for rate in preset.rates.values())
        assert re.search(r"\(20\d\d\)|unverified|\.(com|net|dev|me|io|co|ai)\b", preset.source)


def test_every_preset_computes_no_slower_in_a_smaller_dtype() -> None:
    for preset in presets.device_presets():
        rates = preset.rates
        by_size = [
            {rates[dtype] for dtype in group if dtype in rates}
            for group in (("float64",), ("float32",), ("tfloat32",), ("float16", "bfloat16"))
        ]
        for wide, narrow in pairwise(group for group in by_size if group):
            assert max(wide) <= min(narrow)
        assert all(rates[small] >= preset.float16 for small in ("float8", "int8") if small in rates)
        # A byte per 3 to 3000 FLOPs in float32: a rate and a bandwidth of other units are far off.
        assert 3 < preset.float32 / preset.memory_bandwidth < 300


def test_what_was_not_read_is_marked() -> None:
    marked = {preset.name for preset in presets.device_presets() if "unverified" in preset.source}
    assert {"RTX4070", "A10G", "M2-Max", "Milan"} <= marked
    assert not {"RTX4090", "L40S", "A100", "cpu"} & marked
    assert not any("http" in preset.source for preset in presets.device_presets())


def test_every_preset_names_links_and_presets_that_there_are() -> None:
    for preset in presets.device_presets():
        assert presets.preset_link(preset.link).channel == ""
        if preset.peer:
            assert presets.preset_link(preset.peer).bandwidth > 1e9
        if preset.with_peer:
            assert presets.preset_device(preset.with_peer, "gpu0").kind == preset.kind


def test_every_link_has_figures_in_the_right_units_and_a_source() -> None:
    for preset in presets.link_presets():
        assert preset.kind in {"pcie", "nvlink", "fabric", "socket", "package", "network"}
        assert 1e8 < preset.bandwidth < 900e9
        assert 1e-6 <= preset.latency <= 1e-4
        assert preset.source
        for word in (preset.name, preset.name.lower(), *preset.also):
            assert presets.preset_link(word) == Link(preset.bandwidth, preset.latency)


def test_the_catalogue_holds_what_the_papers_and_people_of_today_use() -> None:
    devices = {preset.name for preset in presets.device_presets()}
    assert {"K40", "K80", "P100", "V100", "A100", "H100", "H200"} <= devices
    assert {"cpu", "Haswell", "Broadwell", "SapphireRapids", "Genoa"} <= devices
    links = {word for preset in presets.link_presets() for word in (preset.name, *preset.also)}
    assert {"pcie3", "pcie4", "pcie5", "nvlink1", "nvlink2", "nvlink3", "nvlink4"} <= links
    assert {"10GbE", "25GbE", "100GbE", "infiniband", "EDR", "HDR", "NDR"} <= links


def test_no_two_presets_share_a_name() -> None:
    for made in (presets.device_presets(), presets.link_presets()):
        words = [normalize(word) for preset in made for word in (preset.name, *preset.also)]
        assert len(words) == len(set(words))
        assert not {f"rtx{word}" for word in words} & set(words)  # RTX may be left out


OWNED = {
    "RTX3060": "3060, rtx-3060, RTX 3060, NVIDIA GeForce RTX 3060, RTX3060-12GB",
    "RTX4070TiSuper": "4070 Ti Super, rtx4070tisuper, RTX-4070-Ti-Super",
    "RTX4090": "4090, RTX4090, rtx_4090, GeForce RTX 4090, RTX 4090 24GB",
    "RTX5090": "5090, RTX-5090",
    "T4": "t4, Tesla T4, T4-16GB",
    "L40S": "l40s, NVIDIA L40S, L40S-48GB",
    "A10G": "A10G, a10g",
    "A100-80GB": "A100 80GB, a100-80gb",
    "RTXA6000": "A6000, RTX A6000, rtx-a6000",
    "RTX6000Ada": "RTX 6000 Ada, 6000-ada",
    "RTXPRO6000": "RTX PRO 6000, PRO6000",
    "B200": "b200, NVIDIA B200",
    "GB200": "gb200",
    "MI300X": "mi300x, AMD Instinct MI300X",
    "Gaudi3": "Gaudi 3, Intel Gaudi 3",
    "M2-Max": "M2 Max, m2max, Apple M2 Max, M2-Max-64GB, m2 max 96gb",
    "M4": "M4, M4-16GB",
    "AGX-Orin": "Jetson AGX Orin, agx-orin, NVIDIA Jetson AGX Orin 64GB",
    "Milan": "EPYC 7763, AMD EPYC 7763, milan-512GB",
    "Ryzen-7950X": "Ryzen 7950X, ryzen-7950x-128GB",
    "i9-13900K": "i9-13900K, Core i9-13900K, 13900k",
    "desktop-ddr4": "ddr4, desktop-ddr4-16GB",
}


@pytest.mark.parametrize("model", OWNED)
def test_a_device_is_found_as_people_write_it(model: str) -> None:
    for text in OWNED[model].split(", "):
        assert models(text) == [model]
        assert models(f"2x({text})@10GbE") == [model, model]


def test_a_dash_between_digits_is_no_ornament() -> None:
    for text in ("A10-0", "L4-0S", "H10-0"):
        with pytest.raises(ClusterError):
            Cluster.parse(text)


def test_a_size_after_a_name_is_one_that_is_sold() -> None:
    (device,) = Cluster.parse("M2-Max-64GB").devices
    assert device.memory == 64 * GIB
    assert device.reserve == pytest.approx(64 * GIB / 3, rel=0.01)
    assert Cluster.parse("A100+cpu-64GB").devices[1].memory == 64 * GIB
    with pytest.raises(ClusterError, match="'M2-Max' has no link or variant '65GB'"):
        Cluster.parse("M2-Max-65GB")


def test_unified_memory_leaves_no_host_beside_it() -> None:
    with pytest.raises(ClusterError, match="M2-Max shares its memory with its own CPU"):
        Cluster.parse("M2-Max+cpu")
    with pytest.raises(ClusterError, match=r"each is a computer, as in 2x\(M2-Max\)@10GbE"):
        Cluster.parse("2xM2-Max")
    links = Cluster.parse("2x(M2-Max)@10GbE").links
    assert links["node0/gpu0", "node1/gpu0"].bandwidth == presets.preset_link("10GbE").bandwidth


def test_a_bridge_joins_two_cards() -> None:
    bridge = presets.preset_link("nvlinkbridge")
    links = Cluster.parse("2x3090-nvlink").links
    assert links["gpu0", "gpu1"] == Link(bridge.bandwidth, bridge.latency, "gpu0-nvlink")
    with pytest.raises(ClusterError, match="4 RTX3090 joined by nvlinkbridge: it joins 2"):
        Cluster.parse("4x3090-nvlink")


def test_a_makers_own_fabric_joins_its_devices() -> None:
    fabric = presets.preset_link("infinityfabric")
    for text in ("8xMI300X-fabric", "8xMI300X-infinityfabric"):
        links = Cluster.parse(text).links
        assert links["gpu0", "gpu7"] == Link(fabric.bandwidth, fabric.latency, "gpu0-fabric")
    with pytest.raises(ClusterError, match="'MI300X' has no link or variant 'nvlink'"):
        Cluster.parse("8xMI300X-nvlink")


def test_fewer_lanes_are_that_share_of_a_slot() -> None:
    links = Cluster.parse("A100-pcie4x8+cpu").links
    assert links["cpu", "gpu0"].bandwidth == PCIE4.bandwidth / 2
    assert Cluster.parse("4060Ti+cpu").links["cpu", "gpu0"].bandwidth == PCIE4.bandwidth / 2


@pytest.mark.parametrize("word", ["RTX2080", "GTX1080", "W7900", "Q40S", "TPUv5"])
def test_an_unknown_device_is_never_taken_for_one_of_another_family(word: str) -> None:
    with pytest.raises(ClusterError) as error:
        Cluster.parse(f"{word}+cpu")
    assert f"describe it as '{word}(24GB,82TF,1008GB/s)'" in str(error.value)


@pytest.mark.parametrize(
    ("word", "near"), [("L41S", "L40S"), ("RTX4091", "RTX4090"), ("Genao", "Genoa")]
)
def test_a_misspelt_device_is_taken_for_one_of_its_family(word: str, near: str) -> None:
    with pytest.raises(ClusterError, match=f"unknown device {word!r}: did you mean {near!r}"):
        Cluster.parse(word)


def test_a_preset_that_is_like_another_keeps_what_it_does_not_say() -> None:
    small, large = presets.preset_device("A100", "a"), presets.preset_device("A100-80GB", "a")
    assert (small.memory, large.memory) == (40 * GIB, 80 * GIB)
    assert (small.memory_bandwidth, large.memory_bandwidth) == (1555e9, 2039e9)
    assert small.rates == large.rates


def test_a_k80_is_one_of_the_two_on_a_board() -> None:
    device = presets.preset_device("K80", "gpu0")
    assert device.memory == 24 * GIB // 2
    assert device.memory_bandwidth == 480e9 / 2
    assert device.rates["float32"] == pytest.approx(8.74e12 / 2)


def test_a_cpu_rate_is_cores_times_flops_a_cycle_times_clock() -> None:
    assert presets.preset_device("Haswell", "cpu").rate("float32") == 18 * 32 * 2.3e9
    assert presets.preset_device("cpu", "cpu").rate("float32") == pytest.approx(16 * 32 * 2.45e9)


def test_float16_without_hardware_for_it_is_float32() -> None:
    kepler = next(preset for preset in presets.device_presets() if preset.name == "K40")
    assert "float16" not in kepler.rates
    assert kepler.float16 == kepler.float32 == 4.29e12


def test_a_device_by_its_preset_takes_overrides() -> None:
    device = presets.preset_device("p100", "left", memory=8 * GIB, model="mine", issuer="main")
    plain = presets.preset_device("P100", name="left")
    assert plain.model == "P100"
    assert plain.memory == 16 * GIB
    assert (device.name, device.memory, device.model) == ("left", 8 * GIB, "mine")
    assert device.issuer == "main"
    assert device.rates == plain.rates


def test_an_unknown_preset_offers_the_nearest() -> None:
    with pytest.raises(ClusterError, match=r"unknown device 'P10': did you mean 'P100'\?"):
        presets.preset_device("P10", "gpu0")
    with pytest.raises(ClusterError, match=r"unknown link 'pci3': did you mean 'pcie3'\?"):
        presets.preset_link("pci3")


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("cpu", "cpu"),
        ("P100", "gpu0"),
        ("H100+cpu", "gpu0 cpu"),
        ("2xcpu", "cpu0 cpu1"),
        ("2xP100+cpu", "gpu0 gpu1 cpu"),
        ("cpu+2xP100", "cpu gpu0 gpu1"),
        ("2xP100+2xK80+cpu", "gpu0 gpu1 gpu2 gpu3 cpu"),
        ("8xA100-nvlink", "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7"),
        ("2x(2xV100)@25GbE", "node0/gpu0 node0/gpu1 node1/gpu0 node1/gpu1"),
        (
            "2x(2xA100-nvlink+cpu)@infiniband",
            "node0/gpu0 node0/gpu1 node0/cpu node1/gpu0 node1/gpu1 node1/cpu",
        ),
        ("(V100)+2x(A100+cpu)@10GbE", "node0/gpu0 node1/gpu0 node1/cpu node2/gpu0 node2/cpu"),
        ("2x(2xcpu)@10GbE", "node0/cpu0 node0/cpu1 node1/cpu0 node1/cpu1"),
        ("(2xV100+cpu)", "gpu0 gpu1 cpu"),
        ("1x(V100)@25GbE", "gpu0"),
    ],
)
def test_devices_are_numbered_by_kind_in_each_node_and_a_lone_cpu_is_not(
    text: str, devices: str
) -> None:
    assert names(text) == devices.split()
    assert Cluster.parse(text).name == text


def test_case_and_spaces_do_not_matter() -> None:
    plain = Cluster.parse("2x(4xV100-32GB-nvlink+cpu)@25GbE")
    loose = Cluster.parse("  2 X ( 4 x v100-32gb-NVLink + CPU ) @ 25gbe\n")
    assert loose.fingerprint == plain.fingerprint
    assert loose.name == "2 X ( 4 x v100-32gb-NVLink + CPU ) @ 25gbe"


def test_a_memory_variant_is_part_of_the_name() -> None:
    assert models("2xV100-32GB+A100-80gb") == ["V100-32GB", "V100-32GB", "A100-80GB"]
    assert models("V100-16GB+A100-40GB+H200-141GB") == ["V100", "A100", "H200"]
    assert Cluster.parse("A100-80GB-nvlink").devices[0].memory == 80 * GIB


def test_a_p100_with_nvlink_is_the_sxm2_module() -> None:
    assert models("2xP100-nvlink") == ["P100-SXM2", "P100-SXM2"]
    assert models("2xP100-pcie") == ["P100", "P100"]


DEVICE = "expected a device, such as P100 or cpu"
NETWORK = "expected a network, such as 25GbE or infiniband"
BETWEEN = "expected '@' and a network, such as 25GbE or infiniband"
SLOTS = "pcie, pcie3, pcie4, pcie5, pcie3x8, pcie3x4, pcie4x8, pcie4x4, ..."
NETWORKS = (
    "1GbE, 2.5GbE, 5GbE, 10GbE, 25GbE, 100GbE, 200GbE, 400GbE, infiniband-EDR, infiniband-HDR, "
    "infiniband-NDR"
)
NOT_A_NODE = "a device beside nodes: put it in parentheses, as a node"


@pytest.mark.parametrize(
    ("text", "character", "message"),
    [
        ("", 1, f"found the end, {DEVICE}"),
        ("   ", 4, f"found the end, {DEVICE}"),
        ("2x", 3, f"found the end, {DEVICE}"),
        ("2x+cpu", 3, f"found '+', {DEVICE}"),
        ("P100+", 6, f"found the end, {DEVICE}"),
        ("2x(2x(cpu))@25GbE", 6, f"found '(', {DEVICE}"),
        ("4 P100", 3, "found 'P', expected 'x' after a count, as in 2xP100"),
        ("10GbE", 3, "found 'G', expected 'x' after a count, as in 2xP100"),
        ("0xcpu", 1, "found '0', expected a count from 1 to 1024"),
        ("cpu+1025xP100", 5, "found '1025', expected a count from 1 to 1024"),
        ("9" * 5000 + "xcpu", 1, "found '999999999', expected a count from 1 to 1024"),
        ("2xP100 cpu", 8, "found 'c', expected '+' or the end"),
        ("P100,cpu", 5, "found ',', expected '+' or the end"),
        ("2x(cpu)@25GbE)", 14, "found ')', expected '+' or the end"),
        ("2x(cpu", 7, "found the end, expected '+' or ')'"),
        ("2x(cpu@25GbE)", 7, "found '@', expected '+' or ')'"),
        ("2x(cpu)@", 9, f"found the end, {NETWORK}"),
        ("2x(cpu)", 8, f"found the end, {BETWEEN}"),
        ("(cpu)@25GbE+(cpu)", 18, f"found the end, {BETWEEN}"),
        ("2x(cpu)@25GbE + 4xP100", 17, NOT_A_NODE),
        ("P100+(cpu)", 1, NOT_A_NODE),
        ("4xV100@ 25GbE", 7, "only nodes have a network: write it as in 2x(4xV100)@25GbE"),
        ("1024xcpu+P100", 14, "1025 devices, expected at most 1024"),
        ("1024x(cpu+P100)@25GbE", 22, "2048 devices, expected at most 1024"),
        ("2xP10O+cpu", 3, "unknown device 'P10O': did you mean 'P100'?"),
        ("cpu + H10-nvlink", 7, "unknown device 'H10': did you mean 'H100'?"),
        ("V10-32GB-nvlink", 1, "unknown device 'V10-32GB': did you mean 'V100-32GB'?"),
        ("A100-60GB", 6, "'A100' has no link or variant '60GB': did you mean '80GB'?"),
        ("4xA100-nvlnk", 8, "'A100' has no link or variant 'nvlnk': did you mean 'nvlink'?"),
        ("cpu-pci", 5, "'cpu' has no link or variant 'pci': did you mean 'upi'?"),
        ("K80-nvlink", 5, "'K80' has no link or variant 'nvlink': known: " + SLOTS),
        ("2x(cpu)@25Gb", 9, "unknown network '25Gb': did you mean '25GbE'?"),
        ("2x(cpu)@pcie3", 9, "unknown network 'pcie3': known: " + NETWORKS),
    ],
)
def test_a_bad_string_is_told_where_and_what(text: str, character: int, message: str) -> None:
    with pytest.raises(ClusterError) as error:
        Cluster.parse(text)
    assert str(error.value) == f"cluster {text!r}, character {character}: {message}"


PIECES = (
    *("2x", "3x", "0x", "99999x", "x", "2", "(", ")", "@", "+", "-", " ", "²", "\n", "é"),
    *("P100", "a100", "K80", "cpu", "Genoa", "-nvlink", "-pcie3", "-80GB", "-upi"),
    *("25GbE", "infiniband", "@10GbE", "toaster", "4090", "M2-Max", "64GB", "Mine("),
    *("24GB", "82TF", "1GB/s", ",", "fp16=1TF", "reserve=1GB", "=", "cpu)"),
)


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=9).map("".join)))
def test_any_text_is_a_cluster_or_one_line_of_error(text: str) -> None:
    try:
        cluster, error = Cluster.parse(text), ""
    except ClusterError as caught:
        cluster, error = None, str(caught)
    assert error.splitlines() == ([error] if cluster is None else [])


GROUPS = ("P100", "A100-80GB-nvlink", "h100-pcie4", "cpu", "Haswell")


@st.composite
def well_formed(draw: st.DrawFn) -> tuple[str, int]:
    """A cluster string and how many devices it has."""

    def groups() -> tuple[str, int]:
        group = st.tuples(st.integers(1, 3), st.sampled_from(GROUPS))
        parts = draw(st.lists(group, min_size=1, max_size=3))
        written = "+".join(f"{count}x{name}" for count, name in parts)
        return written, sum(count for count, _ in parts)

    nodes = [(draw(st.integers(1, 2)), groups()) for _ in range(draw(st.integers(0, 2)))]
    if not nodes:
        return groups()
    written = "+".join(f"{count}x({inner})" for count, (inner, _) in nodes)
    return f"{written}@100GbE", sum(count * devices for count, (_, devices) in nodes)


@settings(max_examples=100, deadline=None)
@given(well_formed())
def test_every_string_of_the_grammar_is_a_cluster(case: tuple[str, int]) -> None:
    text, devices = case
    cluster = Cluster.parse(text)
    assert len(cluster) == devices
    assert set(cluster.links) == set(permutations(cluster.position, 2))
    for channel in cluster.channels:
        senders = {source for (source, _), link in cluster.links.items() if link.channel == channel}
        assert len(senders) == 1 or channel.endswith("-net")  # only a network card is shared


def test_all_that_a_gpu_sends_over_pcie_shares_its_slot() -> None:
    links = Cluster.parse("2xP100+cpu").links
    assert links == Cluster.parse("2xP100-pcie+cpu").links
    out = Link(PCIE3.bandwidth, PCIE3.latency, "gpu0-pcie")
    assert links["gpu0", "gpu1"] == links["gpu0", "cpu"] == out
    assert links["gpu1", "gpu0"].channel == links["gpu1", "cpu"].channel == "gpu1-pcie"


def test_a_host_has_a_channel_to_each_gpu() -> None:
    links = Cluster.parse("2xP100+cpu").links
    assert links["cpu", "gpu0"] == Link(PCIE3.bandwidth, PCIE3.latency, "cpu->gpu0")
    assert links["cpu", "gpu1"].channel == "cpu->gpu1"


def test_nvlink_joins_the_gpus_of_a_group_and_pcie_the_host() -> None:
    links = Cluster.parse("3xA100-nvlink+cpu").links
    nvlink = presets.preset_link("nvlink3")
    assert links["gpu0", "gpu1"] == Link(nvlink.bandwidth, nvlink.latency, "gpu0-nvlink")
    assert links["gpu0", "gpu2"] == links["gpu0", "gpu1"]
    assert links["gpu0", "cpu"] == Link(PCIE4.bandwidth, PCIE4.latency, "gpu0-pcie")
    assert links["cpu", "gpu0"] == Link(PCIE4.bandwidth, PCIE4.latency, "cpu->gpu0")


def test_nvlink_does_not_reach_another_group() -> None:
    links = Cluster.parse("2xA100-nvlink+2xA100-nvlink").links
    assert links["gpu0", "gpu1"].channel == "gpu0-nvlink"
    assert links["gpu0", "gpu2"] == Link(PCIE4.bandwidth, PCIE4.latency, "gpu0-pcie")


def test_a_link_of_unequal_ends_is_the_slower() -> None:
    links = Cluster.parse("H100+A100+P100+cpu").links
    assert links["gpu0", "gpu1"].bandwidth == links["gpu1", "gpu0"].bandwidth == PCIE4.bandwidth
    assert links["gpu0", "gpu2"].bandwidth == links["gpu2", "gpu1"].bandwidth == PCIE3.bandwidth
    assert links["gpu0", "cpu"].bandwidth == PCIE5.bandwidth
    assert links["gpu0", "gpu2"].channel == "gpu0-pcie"


def test_an_old_host_slows_a_new_gpu() -> None:
    assert Cluster.parse("H100+Haswell").links["gpu0", "cpu"].bandwidth == PCIE3.bandwidth


def test_a_pcie_suffix_is_the_slot_to_the_host_too() -> None:
    links = Cluster.parse("2xA100-pcie3+cpu").links
    assert links["gpu0", "gpu1"].bandwidth == links["cpu", "gpu0"].bandwidth == PCIE3.bandwidth
    faster = Cluster.parse("2xA100-pcie5+cpu").links
    assert faster["gpu0", "cpu"].bandwidth == PCIE4.bandwidth  # no card is faster than itself


def test_an_older_nvlink_can_be_asked_for_but_not_a_newer() -> None:
    nvlink1, nvlink2 = presets.preset_link("nvlink1"), presets.preset_link("nvlink2")
    slow, own = (Cluster.parse(f"2xV100-{link}").links for link in ("nvlink1", "nvlink4"))
    assert slow["gpu0", "gpu1"].bandwidth == nvlink1.bandwidth
    assert own["gpu0", "gpu1"].bandwidth == nvlink2.bandwidth


def test_two_sockets_are_linked_to_each_other_and_to_every_gpu() -> None:
    cluster = Cluster.parse("2xcpu+P100")
    xgmi = presets.preset_link("xgmi")
    assert cluster.links["cpu0", "cpu1"] == Link(xgmi.bandwidth, xgmi.latency, "cpu0-socket")
    assert cluster.links["cpu1", "cpu0"].channel == "cpu1-socket"
    assert cluster.links["cpu1", "gpu0"].channel == "cpu1->gpu0"
    mixed = Cluster.parse("Haswell+Genoa").links
    assert mixed["cpu1", "cpu0"].bandwidth == presets.preset_link("qpi").bandwidth
    chosen = Cluster.parse("2xGenoa-upi").links
    assert chosen["cpu0", "cpu1"].bandwidth == presets.preset_link("upi").bandwidth


def test_between_nodes_latencies_add_up_and_the_sender_has_one_card() -> None:
    cluster = Cluster.parse("2x(2xV100-nvlink+cpu)@25GbE")
    net = presets.preset_link("25GbE")
    # gpu0 to its card over PCIe, the network, the other card to its gpu0 over PCIe
    both = net.latency + PCIE3.latency + PCIE3.latency
    assert cluster.links["node0/gpu0", "node1/gpu0"] == Link(net.bandwidth, both, "node0-net")
    one = net.latency + PCIE3.latency
    assert cluster.links["node0/gpu0", "node1/cpu"] == Link(net.bandwidth, one, "node0-net")
    assert cluster.links["node1/cpu", "node0/gpu0"] == Link(net.bandwidth, one, "node1-net")
    assert cluster.links["node0/cpu", "node1/cpu"] == Link(net.bandwidth, net.latency, "node0-net")
    assert cluster.links["node0/gpu0", "node0/gpu1"].channel == "node0/gpu0-nvlink"
    assert cluster.links["node1/cpu", "node1/gpu0"].channel == "node1/cpu->node1/gpu0"


def test_a_network_is_no_faster_than_the_slots_at_its_ends() -> None:
    links = Cluster.parse("2x(V100+cpu)@NDR").links
    assert links["node0/gpu0", "node1/gpu0"].bandwidth == PCIE3.bandwidth
    assert links["node0/cpu", "node1/cpu"].bandwidth == presets.preset_link("NDR").bandwidth


def test_nodes_without_a_network_take_the_next_one_and_the_slower_counts() -> None:
    links = Cluster.parse("(cpu)+(cpu)@10GbE+(cpu)@100GbE+(cpu)@NDR").links
    slow, middle = presets.preset_link("10GbE"), presets.preset_link("100GbE")
    assert links["node0/cpu", "node1/cpu"].bandwidth == slow.bandwidth
    assert (
        links["node0/cpu", "node3/cpu"].bandwidth
        == links["node3/cpu", "node1/cpu"].bandwidth
        == slow.bandwidth
    )
    assert links["node2/cpu", "node3/cpu"].bandwidth == middle.bandwidth
    assert links["node2/cpu", "node3/cpu"].latency == middle.latency  # the larger of both


def test_the_default_reserve_is_a_gibibyte_a_gpu() -> None:
    gpu, cpu = Cluster.parse("P100+cpu").devices
    assert (gpu.capacity, cpu.capacity) == (15 * GIB, 256 * GIB)


def test_the_file_in_the_documentation_is_the_cluster_it_describes(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "workstation.toml").write_text(block, encoding="utf-8")
    cluster = load(tmp_path / "workstation.toml", "cluster")
    assert [device.memory // GIB for device in cluster.devices] == [12, 16, 64]
    assert cluster.channels == ("left->right", "up", "right->left", "down")
    assert cluster.links["host", "right"] == Link(PCIE3.bandwidth, PCIE3.latency, "down")


def test_the_strings_in_the_documentation_are_clusters() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\S+)` \| ", page.partition("The grammar")[0], flags=re.MULTILINE)
    assert len(table) == 12
    for text in table:
        assert len(Cluster.parse(text)) > 0
