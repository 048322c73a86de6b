"""`placewright profile` and `--on here`: this machine, measured in no time."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import placewright as pw  # noqa: E402
from placewright.profiling import copy_load  # noqa: E402
from placewright.profiling import machine_profile as home  # noqa: E402
from placewright.profiling import op_costs as measuring  # noqa: E402
from placewright.profiling.device_rates import DeviceRates  # noqa: E402
from placewright.profiling.links import MeasuredLink  # noqa: E402
from placewright.profiling.timing import Timing  # noqa: E402
from placewright.runtime.machine import Machine  # noqa: E402

MODEL = """
import torch

def build():
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)]
    return torch.nn.Sequential(*layers).eval(), (torch.rand(4, 64),)
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of two cores, whose ops take 10 µs each."""
    able = DeviceRates({"float32": 1e11, "bfloat16": 2e11}, 2e10, 2e-6, 2e-6, {})
    both = (("cpu0", "cpu1"), ("cpu1", "cpu0"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        home, "this_machine", lambda: Machine("EPYC", (0, 1), 8 << 30, versions={"torch": "2"})
    )
    monkeypatch.setattr(home, "measure_device", lambda site: able)
    monkeypatch.setattr(
        home,
        "measure_links",
        lambda sites, *_: [MeasuredLink(*pair, math.inf, 1e-5) for pair in both if len(sites) > 1],
    )
    monkeypatch.setattr(measuring, "fits_host", lambda *_: False)
    monkeypatch.setattr(measuring, "measure_op", lambda *_: Timing(1e-5, 0.0, 5))
    monkeypatch.setattr(measuring, "measure_overhead", lambda *_: 0.0)
    (tmp_path / "model.py").write_text(MODEL)


def test_the_machine_alone(run, machine, tmp_path):
    ran = run("profile", "-o", "here.toml")
    assert ran.status == 0
    assert "EPYC, 2 cores: measured now" in ran.out
    assert "cpu0 -> cpu1" in ran.out
    assert "cluster written to here.toml" in ran.out
    assert [d.name for d in pw.load(tmp_path / "here.toml", "cluster").devices] == ["cpu0", "cpu1"]
    assert "cached" in run("profile").out


def test_a_models_ops_go_into_a_table_that_place_takes(run, machine, tmp_path):
    ran = run("profile", "model.py:build", "--budget", "5s", "-o", "costs.json")
    assert ran.status == 0
    assert "op times written to costs.json" in ran.out
    table = pw.load(tmp_path / "costs.json", "costs")
    assert table.columns == ("EPYC x1",)
    asked = ("model.py:build", "--on", "here", "--costs", "costs.json")
    found = run("place", *asked, "--method", "single", "--json").data
    assert found["step_time"] == pytest.approx(3e-5)  # three ops
    assert run("place", *asked, "--method", "single").err == ""
    text = (tmp_path / "costs.json").read_text()
    (tmp_path / "costs.json").write_text(text.replace(table.machine, "0123"))
    assert "measured on another machine" in run("place", *asked, "--method", "single").err
    here = run("place", *asked[:3], "--costs", "here", "--method", "single", "--json").data
    assert here["step_time"] == pytest.approx(3e-5)


@pytest.mark.parametrize("how", ["profile", "place"])
def test_settings_of_the_models_file_are_those_its_times_are_kept_under(
    run, machine, monkeypatch, tmp_path, how
):
    def this_machine():
        versions = {"float32": torch.get_float32_matmul_precision()}
        return Machine("EPYC", (0, 1), 8 << 30, versions=versions)

    monkeypatch.setattr(home, "this_machine", this_machine)
    before = torch.get_float32_matmul_precision()
    other = "medium" if before != "medium" else "highest"
    settings = f'torch.set_float32_matmul_precision("{other}")'
    (tmp_path / "set.py").write_text(MODEL.replace("def build", f"{settings}\n\ndef build"))
    try:
        if how == "profile":
            ran = run("profile", "set.py:build", "-o", "costs.json")
            assert ran.status == 0, ran.err
            table = pw.load(tmp_path / "costs.json", "costs")
        else:
            table = pw.profile(f"{tmp_path / 'set.py'}:build").costs
        assert table.machine == this_machine().key
    finally:
        torch.set_float32_matmul_precision(before)
    assert table.machine != this_machine().key


def test_a_limit_tells_whether_weights_will_stream(run, machine, monkeypatch):
    asked = []
    monkeypatch.setattr(
        copy_load, "needs_streaming", lambda *given: asked.append(given[2]) or False
    )
    assert run("profile", "model.py:build", "--limit", "cpu0=1MiB").status == 0
    place = ("place", "model.py:build", "--on", "here", "--costs", "here", "--method", "single")
    assert run(*place, "--limit", "cpu0=2MiB").status == 0
    assert asked == [{"cpu0": 1 << 20}, {"cpu0": 2 << 20}]
    assert "no device 'gpu7'" in run("profile", "model.py:build", "--limit", "gpu7=1MiB").err


def test_json_says_what_was_measured(run, machine):
    data = run("profile", "model.py:build", "--json").data
    assert data["ops"]["different"] == 2
    assert data["ops"]["measured"] == 2
    assert data["cluster"]["name"] == "here"
    again = run("profile", "model.py:build", "--json").data
    assert (again["ops"]["known"], again["fresh"]) == (2, False)


def test_here_is_a_cluster_wherever_one_is_taken(run, machine):
    ran = run("place", "chain", "--on", "here", "--method", "single", "--json")
    assert ran.data["cluster"] == "here"
    assert "measuring this machine (EPYC, 2 cores)" in ran.err
    one = run("place", "chain", "--on", "here:workers=1", "--method", "single", "--json")
    assert [each["name"] for each in one.data["devices"]] == ["cpu"]
    assert run("simulate", "chain", "--on", "here", "--plan", "no.json").status == 1
    limited = run(
        "place", "chain", "--on", "here", "--limit", "cpu0=1MiB", "--method", "cpu-only", "--json"
    )
    assert limited.data["devices"][0]["limit"] == 1 << 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("profile", "--on", "2xP100"), "only this machine can be measured: expected here"),
        (("profile", "--on", "here:3"), "expected here, or such as here:workers=2"),
        (("profile", "--workers", "5"), "5 CPU workers on a machine of 2 cores"),
        (("profile", "--on", "here:workers=1", "--workers", "2"), "do not agree"),
        (("profile", "--budget", "soon"), "--budget: time 'soon'"),
        (("profile", "branches"), "branches is synthetic and cannot be run"),
        (("profile", "no.py:build"), "file 'no.py' does not exist"),
        (("profile", "-o", "no/costs.json"), "there is no folder 'no'"),
        (("place", "chain", "--on", "here:workers=3"), "3 CPU workers on a machine of 2 cores"),
        (("place", "chain", "--on", "2xP100", "--costs", "here"), "add --on here"),
    ],
)
def test_bad_input_is_answered_in_one_line(run, machine, arguments, said):
    ran = run(*arguments)
    assert ran.status == 1
    assert ran.out == ""
    assert said in ran.err
    lines = ran.err.splitlines()
    assert lines[-1].startswith("placewright: ")
    assert "Traceback" not in ran.err
