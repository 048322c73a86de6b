"""Shell completion: commands, options, and names of models, devices, methods and recipes."""

from __future__ import annotations

import pytest

from placewright.cli import completion


@pytest.fixture
def complete(run, monkeypatch):
    """What bash is offered for a line of words."""

    def offered(*words):
        monkeypatch.setenv("_PLACEWRIGHT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(("placewright", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setattr("sys.argv", ["placewright"])
        return run().out.split()

    return offered


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sim",), ["simulate"]),
        (("place", "--obj"), ["--objective"]),
        (("place", "ser"), ["series-parallel"]),
        (("place", "chain", "--method", "order"), ["order-search"]),
        (("compare", "chain", "--methods", "heft,cpo"), ["heft,cpop"]),
        (("train", "placeto-j"), ["placeto-joint"]),
        (("export", "plan.json", "--to", "onnxr"), ["onnxruntime"]),
        (("place", "chain", "--objective", "p"), ["period"]),
    ],
)
def test_names_are_completed(complete, words, expected):
    assert complete(*words) == expected


def test_files_that_hold_a_model_are_offered(complete, tmp_path):
    for name in ("net.onnx", "net.py", "net.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "nets").mkdir()
    assert complete("place", "net") == ["net.onnx", "net.py", "nets/"]


def test_a_broken_configuration_stops_no_completion(complete, tmp_path):
    (tmp_path / "placewright.toml").write_text("model = ")
    assert complete("place", "ser") == ["series-parallel"]


def test_devices_are_completed_after_what_is_typed(complete):
    assert "2xP100" in complete("place", "chain", "--on", "2xP1")
    assert "2xP100+cpu" in complete("place", "chain", "--on", "2xP100+c")
    assert "P100-SXM2" in complete("place", "chain", "--on", "P100-S")
    assert "4xV100-nvlink2" in complete("place", "chain", "--on", "4xV100-nv")


def test_links_are_offered_where_a_link_is_named():
    offered = [name for name, _ in completion.complete_cluster("2x(4xV100)@25")]
    assert offered == ["2x(4xV100)@25GbE"]
    assert completion.complete_cluster("2xP100@P1") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(run, monkeypatch, shell):
    monkeypatch.setenv("_PLACEWRIGHT_COMPLETE", f"source_{shell}")
    monkeypatch.setattr("sys.argv", ["placewright"])
    ran = run()
    assert ran.status == 0
    assert "_PLACEWRIGHT_COMPLETE=complete_" + shell in ran.out
