"""Captured graphs against published figures: FLOPs and parameters of whole networks."""

from __future__ import annotations

import pytest

from placewright import zoo

pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # full sizes: about a minute in all


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def flops(graph):
    return sum(op.flops for op in graph.ops)


@pytest.mark.parametrize(
    ("name", "published"),  # multiply-adds of one image, as torchvision publishes them
    [("resnet-50", 4.09e9), ("resnet-152", 11.51e9), ("inception-v3", 5.71e9)],
)
def test_convolutional_networks_have_the_published_flops(name, published):
    graph = zoo.load(f"{name}:batch=1,training=no")
    assert flops(graph) == pytest.approx(2 * published, rel=0.02)


def transformer_flops(layers, width, hidden, tokens, heads_out):
    """Products of one sequence, two FLOPs a multiply-add: projections, attention, perceptron."""
    projections = 4 * 2 * tokens * width * width
    attention = 2 * 2 * tokens * tokens * width  # scores, and their product with the values
    perceptron = 2 * 2 * tokens * width * hidden
    return layers * (projections + attention + perceptron) + heads_out


def test_bert_base_has_the_flops_of_the_formula():
    graph = zoo.load("bert-base:batch=1,training=no")
    pooler = 2 * 768 * 768
    assert flops(graph) == pytest.approx(transformer_flops(12, 768, 3072, 512, pooler), rel=0.02)


def test_gpt2_has_the_flops_of_the_formula():
    graph = zoo.load("gpt2:batch=1,training=no")
    head = 2 * 1024 * 768 * 50_257
    assert flops(graph) == pytest.approx(transformer_flops(12, 768, 3072, 1024, head), rel=0.02)


@pytest.mark.parametrize(
    ("name", "parameters", "buffers"),
    [
        ("resnet-50", 25_557_032, 53_120),  # means and variances of the batch norms
        ("bert-base", 109_482_240, None),
        ("gpt2", 124_439_808, 0),
    ],
)
def test_parameters_are_exactly_the_published_ones(name, parameters, buffers):
    graph = zoo.load(f"{name}:batch=1,training=no")
    weights = sum(sum(op.outputs) for op in graph.ops if op.kind == "weight")
    if buffers is None:  # positions and the like: less than a hundredth of a per cent
        assert 0 <= weights - 4 * parameters < 4e-4 * parameters
    else:
        assert weights == 4 * (parameters + buffers)
