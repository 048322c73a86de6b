"""Dry runs: calls that compute nothing, and the graphs that are planned from them."""

from __future__ import annotations

import pytest
from models import nn, torch, workers

from placewright.deployment.call_capture import begin_capture, empty_weights
from placewright.errors import GraphError
from placewright.runtime.dynamo.dry_run import record_calls


class Sums(nn.Module):
    """A product, then a sum over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x).relu(), x.sum(0)


def test_a_dry_run_returns_zeros_and_a_later_call_is_served_by_its_graph():
    model = Sums().eval()
    placed = begin_capture(model, workers())
    x = torch.rand(3, 8)
    with torch.no_grad():
        with record_calls(placed.backend) as run:
            outputs = model(x)
        assert [tuple(output.shape) for output in outputs] == [(3, 4), (8,)]
        assert not any(output.any() for output in outputs)
        assert len(run.calls) == len(placed.graphs) == 1
        right = placed.forward(x)
        assert all(torch.equal(*pair) for pair in zip(model(x), right, strict=True))
        assert len(placed.graphs) == 1


def test_a_symbolic_graph_becomes_the_graph_of_one_size():
    model = Sums().eval()
    placed = begin_capture(model, workers())
    with torch.no_grad(), record_calls(placed.backend) as run:
        for rows in (3, 5, 9):
            model(torch.rand(rows, 8))
    assert [call.graph.is_symbolic for call in run.calls] == [False, True, True]
    programs = [call.program() for call in run.calls]
    assert all(program.scalars is None for program in programs)
    linear = [
        next(op for op in program.graph.ops if op.name == "layer.linear") for program in programs
    ]
    assert [op.outputs for op in linear] == [(rows * 4 * 4,) for rows in (3, 5, 9)]
    names = [{op.name for op in program.graph.ops} for program in programs]
    assert names[0] == names[1] == names[2]
    assert len({call.key for call in run.calls}) == 3


def test_weights_on_meta_have_memory_during_a_dry_run_alone():
    with torch.device("meta"):
        model = Sums().eval()
    placed = begin_capture(model, workers())
    with torch.no_grad(), empty_weights(model), record_calls(placed.backend) as run:
        assert not model.layer.weight.is_meta
        model(torch.rand(3, 8))
    assert model.layer.weight.is_meta
    assert run.calls[0].program().graph.position["layer.weight"] >= 0


def test_a_call_that_must_run_eagerly_is_an_error_in_a_dry_run():
    model = Sums().eval()
    placed = begin_capture(model, workers())
    with (
        torch.no_grad(),
        record_calls(placed.backend),
        placed.eager(),
        pytest.raises(GraphError, match="'Sums' cannot be captured: it is inside"),
    ):
        model(torch.rand(3, 8))
