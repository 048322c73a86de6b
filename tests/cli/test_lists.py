"""`placewright models` and `placewright clusters`: every name that can be used is listed."""

from __future__ import annotations

from dataclasses import replace

import pytest

import placewright as pw
from placewright import presets, zoo
from placewright.files.cluster import read_cluster


def test_every_model_is_listed_with_its_size_and_arguments(run):
    ran = run("models")
    assert (ran.status, ran.err) == (0, "")
    rows = [line.split() for line in ran.out.splitlines()]
    for name, entry in zoo.ENTRIES.items():
        if entry.network is None:
            assert any(row[:1] + row[2:3] == [name, f"{len(zoo.load(name)):,}"] for row in rows)
    assert any(row[:3] == ["gpt2", "training", "1,695"] for row in rows)  # not captured yet
    assert "blocks=16,tokens=1,width=4096" in ran.out
    assert "\\n" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_captured_network_has_its_figures(run, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(zoo, "ENTRIES", {"dlrm": _small(zoo.ENTRIES["dlrm"])})
    assert run("models", "--json").data["models"][0]["ops"] is None
    (found,) = run("models", "--capture", "--json").data["models"]
    assert found["ops"] > 0
    assert found["parameters"] > 26 * 50 * 8  # at least the tables: 50 rows of 8 numbers each


def _small(entry: zoo.Entry) -> zoo.Entry:
    assert entry.network is not None
    network = replace(entry.network, full={**entry.network.full, **entry.network.test})
    return zoo.network_entry(network)


def test_models_as_json_count_ops_tensors_weights_and_flops(run):
    found = {each["name"]: each for each in run("models", "--json").data["models"]}
    assert found.keys() == zoo.ENTRIES.keys()
    offload = found["offload"]
    # 16 blocks, each an op and a weight of 352 MiB of bfloat16, two FLOPs a parameter and token
    assert (offload["ops"], offload["tensors"]) == (32, 32)
    assert offload["resident"] == 16 * 352 * 2**20
    assert offload["parameters"] == 16 * 352 * 2**20 // 2
    assert offload["flops"] == 16 * 2 * 352 * 2**20 / 2
    assert offload["arguments"] == {"blocks": 16, "tokens": 1}


def test_a_model_that_needs_a_missing_package_is_listed_all_the_same(run, monkeypatch):
    def build():
        raise pw.errors.MissingDependency("torch", "torch")

    entry = zoo.Entry("heavy", "needs another library", build, {})
    monkeypatch.setitem(zoo.ENTRIES, "heavy", entry)
    ran = run("models")
    assert ran.status == 0
    assert ["heavy", "–", "–", "–", "–", "–", "–"] in [
        line.split() for line in ran.out.splitlines()
    ]


def test_every_device_and_link_is_listed_with_its_source(run):
    ran = run("clusters", "--sources")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    flat = " ".join(ran.out.split())
    for preset in (*presets.device_presets(), *presets.link_presets()):
        assert any(line.split()[:1] == [preset.name] for line in lines)
        assert " ".join(f"{preset.name}: {preset.source}".split()) in flat
    (p100,) = [line.split() for line in lines if line.startswith("P100 ")]
    assert p100[-8:] == ["GiB", "9.3", "T", "18.7", "T", "732", "8", "µs"]
    assert max(map(len, lines)) <= 80
    assert "Sources" not in run("clusters").out


def test_a_cluster_is_shown_with_its_devices_and_links(run):
    ran = run("clusters", "2xA100-nvlink+cpu", "--sources")
    assert (ran.status, ran.err) == (0, "")
    rows = [line.split() for line in ran.out.splitlines()]
    devices = [" ".join(row) for row in rows]
    assert "gpu0 A100 gpu 40 GiB 39 GiB 19.5 T 312 T 1,555 5 µs" in devices
    assert ["gpu0", "–", "270", "25"] in rows  # NVLink to gpu1, PCIe to the host
    assert ["cpu", "25", "25", "–"] in rows
    assert "A100: NVIDIA A100 data sheet (2021), A100-SXM4 40 GB" in ran.out
    many = run("clusters", "2x(8xA100-nvlink+cpu)@25GbE")
    assert "from \\ to" not in many.out  # too wide for a matrix
    assert "node0/gpu0->node0/gpu1 and 111 more" in many.out


def test_a_cluster_file_is_shown_with_what_it_lacks(run, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'placewright = "cluster"\nversion = 2\nname = "mine"\n'
        '[[devices]]\nname = "gpu0"\npreset = "A100"\n'
        '[[devices]]\nname = "host"\nkind = "cpu"\nmemory = "64 GiB"\n'
        '[[links]]\nfrom = "gpu0"\nto = "host"\nboth = true\npreset = "pcie4"\n'
    )
    ran = run("clusters", str(tmp_path / "mine.toml"))
    assert "host has no rates and no memory bandwidth: it needs measured costs" in ran.out
    placed = run("place", "chain", "--on", str(tmp_path / "mine.toml"))
    assert placed.status == 1
    assert "device 'host' has no rates and no memory bandwidth" in placed.err
    assert "its ops would take no time: add rates" in placed.err


@pytest.mark.parametrize(
    "text", ["MyGPU(24GB,82TF,1008GB/s)+cpu", "2x(MyGPU(1TB/s,24GB,82TF))@25GbE"]
)
def test_the_slash_of_a_bandwidth_is_not_that_of_a_path(run, text):
    assert "MyGPU" in run("clusters", text).out
    ran = run("clusters", "folder/5GB/s.toml")
    assert "no such file" in ran.err


def test_a_cluster_as_json_is_a_cluster_file(run):
    found = run("clusters", "2x4090+cpu", "--json").data
    assert [device["model"] for device in found["devices"]] == ["RTX4090", "RTX4090", "cpu"]
    assert read_cluster(found).fingerprint == pw.Cluster.parse("2x4090+cpu").fingerprint


def test_clusters_as_json_are_in_seconds_and_bytes(run):
    found = run("clusters", "--json").data
    p100 = next(each for each in found["devices"] if each["name"] == "P100")
    assert p100["memory"] == 16 * 2**30
    assert p100["reserve"] == 2**30
    assert p100["rates"]["float32"] == 9.3e12
    assert p100["launch"] == 8e-6
    assert p100["peer"] is None
    pcie = next(each for each in found["links"] if each["name"] == "pcie3")
    assert (pcie["bandwidth"], pcie["latency"]) == (12e9, 1e-5)
    assert pcie["source"]
