"""A backward graph reads weights themselves, and nothing is computed twice."""

from __future__ import annotations

from collections import Counter

import pytest
from models import nn, place, torch, twin

from placewright.runtime.dynamo.compiled_graph import CompiledGraph

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Views(nn.Module):
    """Reads views of weights, views of views, and a view of an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.table = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        x = self.second(x.view(3, 6)) @ self.table[0].t()
        return torch.sigmoid(x @ self.table[1])


class Tied(nn.Module):
    """One weight, read as it is and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        return torch.exp(x @ self.weight).cos() @ self.weight.t()


def targets(graph):
    return Counter(
        str(node.target) for node in graph.module.graph.nodes if node.op == "call_function"
    )


@pytest.fixture
def flat_calls(monkeypatch):
    """The graphs that run, each with its flat arguments."""
    calls, call = [], CompiledGraph.__call__

    def recorded(graph, args):
        calls.append((graph, list(args)))
        return call(graph, args)

    monkeypatch.setattr(CompiledGraph, "__call__", recorded)
    return calls


@pytest.mark.parametrize("build", [Views, Tied])
def test_weights_are_read_themselves_and_gradients_are_equal_to_the_bit(build, flat_calls):
    model = build()
    reference = twin(model)
    place(model, X, training=True)
    inputs = X.clone().requires_grad_(), X.clone().requires_grad_()
    for each, x in zip((model, reference), inputs, strict=True):
        each(x).square().sum().backward()
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)

    _, (backward, args) = flat_calls
    layout_of = {
        weight.untyped_storage().data_ptr(): (weight.shape, weight.stride())
        for weight in model.parameters()
    }
    read = [value for value in args if value.untyped_storage().data_ptr() in layout_of]
    names = {name for name, _ in model.named_parameters() if not name.endswith("bias")}
    assert len(read) == len(names)
    for value in read:
        layout = layout_of[value.untyped_storage().data_ptr()]
        assert (value.shape, value.stride()) == layout
    assert {op.name for op in backward.program.graph.ops if op.kind == "weight"} == names


@pytest.mark.parametrize("build", [Views, Tied])
def test_only_views_are_computed_again(build):
    model = place(build(), X, training=True)
    model(X).sum().backward()
    forward, backward = (targets(graph) for graph in model.placed.graphs)
    views = {"aten.t.default", "aten.select.int", "aten.permute.default", "aten.view.default"}
    for name in ("aten.tanh.default", "aten.exp.default", "aten.cos.default"):
        assert forward[name] <= 1
        assert not backward[name]
    products = ("aten.mm.default", "aten.addmm.default")
    count = sum(forward[name] + backward[name] for name in products)
    assert count == {Views: 4 + 7, Tied: 2 + 3}[build]
    assert views & set(backward)
