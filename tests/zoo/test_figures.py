"""Figures of built-in models: shipped, and equal to those of a capture."""

from __future__ import annotations

import pytest

from placewright import zoo
from placewright.zoo import ENTRIES
from placewright.zoo.figures import GraphFigures, _shipped_figures, figures_of, step_mode

CAPTURED = [name for name, entry in ENTRIES.items() if entry.network is not None]


def test_every_captured_network_has_shipped_figures() -> None:
    shipped = {name: arguments for name, (arguments, _) in _shipped_figures().items()}
    assert shipped == {name: dict(ENTRIES[name].defaults) for name in CAPTURED}


@pytest.mark.parametrize("name", ["dlrm"])
def test_shipped_figures_are_those_of_a_capture(name: str) -> None:
    pytest.importorskip("torch")
    assert _shipped_figures()[name][1] == GraphFigures.of(zoo.load(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTURED)
def test_all_shipped_figures_are_those_of_a_capture(name: str) -> None:
    pytest.importorskip("torch")
    assert _shipped_figures()[name][1] == GraphFigures.of(zoo.load(name))


def test_figures_of_a_generated_graph_are_counted() -> None:
    figures = figures_of(ENTRIES["offload"])
    assert figures is not None
    assert (figures.ops, figures.resident) == (32, 16 * 352 * 2**20)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("gpt2", "training"),
        ("llama-8b", "prefill"),
        ("unet", "inference"),
        ("cifar10", "training"),
        ("transformer", "inference"),
    ],
)
def test_a_model_says_what_its_step_does(name: str, mode: str) -> None:
    assert step_mode(ENTRIES[name]) == mode
