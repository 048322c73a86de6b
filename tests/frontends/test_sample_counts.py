"""Samples and tokens of a step: known from names, never invented."""

from __future__ import annotations

from typing import Any

import pytest

from placewright import Graph, Op, from_torch, zoo
from placewright.errors import GraphError
from placewright.files import from_data, to_data
from placewright.frontends.sample_counts import step_counts


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ({"batch": 8}, {"samples": 8}),
        ({"batch_size": 8, "seq_len": 16}, {"samples": 8, "tokens": 128}),
        ({"batch": 8, "context": 16}, {"samples": 8}),  # a step of decode makes one token
        ({"tokens": 16}, {}),  # of how many samples is unknown
        ({"batch": True, "tokens": 4}, {}),
        ({"batch": "8"}, {}),
        ({}, {}),
    ],
)
def test_only_clear_names_count(sizes: dict[str, Any], counts: dict[str, int]) -> None:
    assert step_counts(sizes) == counts


@pytest.mark.parametrize(
    ("name", "samples", "tokens"),
    [
        ("transformer:tokens=7", None, 7),
        ("branches:batch=4", 4, None),
        ("chain", None, None),
        ("cifar10:batch=16", 16, None),
    ],
)
def test_built_in_models_know_what_a_step_processes(
    name: str, samples: int | None, tokens: int | None
) -> None:
    graph = zoo.load(name)
    assert (graph.samples, graph.tokens) == (samples, tokens)


@pytest.mark.parametrize(
    ("name", "samples", "tokens"),
    [
        ("llama-8b:size=test,batch=3", 3, 18),
        ("llama-8b:size=test,batch=3,mode=decode", 3, 3),
        ("gpt2:size=test", 2, 12),
        ("t5:size=test", 2, None),  # its tokens are of two kinds
        pytest.param("resnet-50:size=test", 2, None, marks=pytest.mark.slow),
    ],
)
def test_captured_networks_know_what_a_step_processes(
    name: str, samples: int, tokens: int | None
) -> None:
    pytest.importorskip("torch")
    graph = zoo.load(name)
    assert (graph.samples, graph.tokens) == (samples, tokens)


def test_ids_of_a_language_model_are_counted_by_their_name() -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(10, 4)

        def forward(self, input_ids: Any) -> Any:
            return self.embedding(input_ids)

    class Other(Model):
        def forward(self, x: Any) -> Any:
            return self.embedding(x)

    ids = torch.zeros(2, 5, dtype=torch.long)
    for graph in (from_torch(Model(), (ids,)), from_torch(Model(), (), {"input_ids": ids})):
        assert (graph.samples, graph.tokens) == (2, 10)
    assert from_torch(Other(), (ids,)).samples is None


def test_counts_are_kept_in_files_and_change_no_fingerprint() -> None:
    plain = Graph("g", (Op("a"),))
    counted = plain.with_counts(samples=2, tokens=6)
    assert from_data(to_data(counted)) == counted
    assert counted.fingerprint == plain.fingerprint
    assert "samples" not in to_data(plain)
    with pytest.raises(GraphError, match="has 0 samples per step: expected > 0"):
        Graph("g", (Op("a"),), samples=0)
