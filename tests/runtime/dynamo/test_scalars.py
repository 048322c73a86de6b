"""Symbolic graphs compute their sizes anew in every call."""

from __future__ import annotations

import pytest
from models import nn, place, torch

SIZES = (8, 5, 3, 8, 16, 7)
"""The first compiles a static graph, the second a symbolic one; later ones use it."""


class Symbolic(nn.Module):
    """A layer of width 8, and then one of the functions below."""

    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, x):
        return self.function(self.layer(x), x)


def arithmetic(y, x):
    rows = x.shape[0]
    return y * (rows // 2) + rows**2 - (rows * 3 + 1) % 5 + max(rows, 4) / rows


def new_tensors(y, x):
    padded = torch.cat([y, y.new_zeros(x.shape[0] + 1, 8), torch.ones(2 * x.shape[0], 8)])
    return padded + torch.zeros_like(padded), torch.full((y.shape[0], 2), 0.5) @ y[:2]


def negative_sizes(y, x):
    flat = y.view(-1)
    return flat.view(-1, 4).sum(0), y.reshape(2, -1, x.shape[0]).sum(1), y.unflatten(1, (-1, 2))


def transposed_view(y, x):
    """As a view it is an identity while there are 8 rows, and else none."""
    return y.view(8, x.shape[0]) * torch.arange(x.shape[0]), y.view(y.shape[1], -1).sum(0)


def flattened(y, x):
    """The same with sizes that no guard compares."""
    return y.flatten().view(8, -1) * 2, y.t().flatten().view(-1, 8)


def square(y, x):
    return y.t().reshape(x.shape[0], 8) + y, y.reshape(8, x.shape[0]).t() - y


def intermediate_sizes(y, x):
    long = torch.cat([y, y[1:]])
    half = long[: long.shape[0] // 2]
    return long.sum(0) / long.shape[0], half.expand(3, *half.shape).reshape(-1, 8)


def split(y, x):
    first, second = y.split([1, x.shape[0] - 1])
    return second * first, torch.arange(second.shape[0]), y.roll(x.shape[0] - 2, 0)


def sizes_as_outputs(y, x):
    return y, x.shape[0], x.numel() * 2, y.stride(0)


FUNCTIONS = [
    arithmetic,
    new_tensors,
    negative_sizes,
    transposed_view,
    flattened,
    pytest.param(square, marks=pytest.mark.slow),
    intermediate_sizes,
    pytest.param(split, marks=pytest.mark.slow),
    sizes_as_outputs,
]


def equal(mine, theirs):
    if isinstance(mine, tuple):
        return all(equal(*pair) for pair in zip(mine, theirs, strict=True))
    if isinstance(mine, torch.Tensor):
        return mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    return mine == theirs


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_symbolic_graph_is_right_for_all_sizes(function):
    model = place(Symbolic(function).eval(), torch.randn(8, 8))
    with torch.no_grad():
        for count in SIZES:
            x = torch.randn(count, 8)
            assert equal(model(x), model.placed.forward(x)), count
    assert [graph.is_symbolic for graph in model.placed.graphs[:2]] == [False, True]
    assert not any(graph.reason for graph in model.placed.graphs)
    assert not model.placed.eager_calls


@pytest.mark.parametrize("function", [transposed_view, flattened])
def test_a_symbolic_graph_made_at_the_width_of_the_layer_is_right(function):
    """The second call makes the symbolic graph; its 8 rows equal the hidden size."""
    model = place(Symbolic(function).eval(), torch.randn(8, 8))
    with torch.no_grad():
        for count in (5, 8, 3, 2, 8, 16):
            x = torch.randn(count, 8)
            assert equal(model(x), model.placed.forward(x)), count
    if function is flattened:  # views of the others make TorchDynamo guard the 8
        assert [graph.is_symbolic for graph in model.placed.graphs] == [False, True]


def test_gradients_are_right_for_all_sizes():
    model = place(Symbolic(transposed_view), torch.randn(8, 8), training=True)
    for count in SIZES:
        x = torch.randn(count, 8)
        gradients = []
        for forward in (model, model.placed.forward):
            model.zero_grad()
            sum(part.square().sum() for part in forward(x)).backward()
            gradients.append([weight.grad.clone() for weight in model.parameters()])
        assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True)), count
