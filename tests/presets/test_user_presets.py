"""Devices and links of the user's own, in files of the configuration folder."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from placewright import Cluster, presets
from placewright.errors import ClusterError
from placewright.user_folders import config_folder

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
MINE = """
[MyGPU]
memory = "24 GiB"
float32 = 80e12
ratios = { float16 = 2 }
memory_bandwidth = 1e12
link = "mylink"

[Modded]
like = "rtx4090"
memory = "48 GiB"
"""
LINK = '[mylink]\nkind = "pcie"\nbandwidth = 7e9\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACEWRIGHT_CONFIG", str(tmp_path))
    return tmp_path


def test_the_folder_is_the_one_that_the_environment_names(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PLACEWRIGHT_CONFIG", str(tmp_path / "a"))
    assert config_folder() == tmp_path / "a"
    monkeypatch.delenv("PLACEWRIGHT_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_folder() == tmp_path / "placewright"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_folder() == tmp_path / ".config" / "placewright"


def test_devices_and_links_of_ones_own_can_be_named(folder: Path) -> None:
    (folder / "devices.toml").write_text(MINE)
    (folder / "links.toml").write_text(LINK)
    cluster = Cluster.parse("mygpu+cpu")
    gpu = cluster.devices[0]
    assert gpu.rates == {"float32": 80e12, "float16": 160e12}
    assert (gpu.reserve, gpu.launch_overhead) == (GIB, 5e-6)
    assert cluster.links["cpu", "gpu0"].bandwidth == 7e9
    modded, plain = (presets.preset_device(name, "gpu0") for name in ("modded", "RTX4090"))
    assert modded.memory == 48 * GIB
    assert modded.rates == plain.rates
    assert str(folder) in presets.device_presets()[-1].source


def test_a_changed_file_is_read_again(folder: Path) -> None:
    file = folder / "devices.toml"
    file.write_text('[Mine]\nlike = "A100"\nmemory = "1 GiB"\n')
    assert Cluster.parse("Mine").devices[0].memory == GIB
    file.write_text('[Mine]\nlike = "A100"\nmemory = "2 GiB"\n')
    os.utime(file, ns=(1, 1))
    assert Cluster.parse("Mine").devices[0].memory == 2 * GIB


def test_a_device_that_hides_a_preset_is_said_once(folder: Path, caplog) -> None:
    (folder / "devices.toml").write_text('[A100]\nlike = "H100"\nmemory = "3 GiB"\n')
    with caplog.at_level(logging.WARNING, "placewright"):
        assert Cluster.parse("A100").devices[0].memory == 3 * GIB
        Cluster.parse("2xA100+cpu")
    (record,) = caplog.records
    assert record.getMessage() == (
        f"A100 is described by {folder / 'devices.toml'}, not by the preset of that name"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[G]\nkind = 'cpu'\nmemory = '64 GiB'\n", "has no 'rates' .* no 'memory_bandwidth'"),
        ("[G]\nlike = 'B100'\n", "is like 'B100', which is not described"),
        ("[G]\nlike = 'G'\n", "is like itself"),
        ("[G]\nlike = 'A100'\nmemroy = 1\n", "unknown key 'memroy': did you mean 'memory'"),
        ("[G]\nlike = 'A100'\nmemory = true\n", "has memory True: expected str or int"),
        ("[G]\nlike = 'A100'\nmemory = 'much'\n", "has size 'much'"),
        ("[G]\nlike = 'A100'\nlink = 'string'\n", "link 'string', which is no link"),
        ("[G]\nlike = 'A100'\nrates = { float32 = 'x' }\n", "has float32 at 'x' FLOP/s"),
        ("[G]\nlike = 'A100'\nmemory_bandwidth = -1\n", "is no device: .* bandwidth > 0"),
        ("[G]\nlike = 'A100'\nratios = { int8 = 2 }\n", "has ratios and no float32"),
        ("G = 3\n", "'G' is 3: expected a table"),
        ("[G\n", "cannot be read"),
    ],
)
def test_a_malformed_file_is_named_with_the_device(folder: Path, text: str, message: str) -> None:
    (folder / "devices.toml").write_text(text)
    with pytest.raises(ClusterError, match=message) as error:
        Cluster.parse("cpu")
    assert str(error.value).startswith(str(folder / "devices.toml"))
