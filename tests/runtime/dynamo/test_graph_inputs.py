"""Graphs of TorchDynamo's have the names of the plan, so that a plan matches exactly."""

from __future__ import annotations

import numpy as np
import pytest
from models import nn, place, torch, workers

import placewright as pw
from placewright.runtime.plan_matching import match_plan

X = torch.ones(2, 4)


class Nested(nn.Module):
    """A list of blocks, a dictionary of heads, and tensors of the root's own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, y=None, *, bias=None):
        for block in self.blocks:
            x = block(x)
        x = self.heads["a"](x) * self.scale + self.shift
        x = x if bias is None else x + bias
        return x if y is None else x + y


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens):
        return self.out(self.words(tokens))


class Starred(nn.Module):
    """Any number of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, first, *others, **named):
        return self.layer(first) + others[0] * others[1] + named["factor"]


class SameName(nn.Module):
    """An argument with the name of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, bias):
        return bias["x"] + self.bias if isinstance(bias, dict) else bias * self.bias


def sequential():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4)))


CALLS = {
    "nested with keywords": (Nested, (X, X + 1), {"bias": X + 2}),
    "keywords alone": (Nested, (), {"x": X, "bias": X + 1}),
    "sequential root": (sequential, (X,), {}),
    "tied": (Tied, (torch.arange(3),), {}),
    "starred": (Starred, (X, X + 1, X + 2), {"factor": X + 3}),
    "same name": (SameName, (X,), {}),
    "containers": (SameName, ({"x": X},), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_ops_and_modules_are_named_as_in_the_plan(call):
    build, args, kwargs = CALLS[call]
    model = build().eval()
    planned = pw.from_torch(model, args, kwargs)
    plan = pw.Plan.of(pw.Problem(planned, workers(1)), np.zeros(len(planned), dtype=int))
    pw.apply(plan, model)
    with torch.no_grad():
        model(*args, **kwargs)
    (graph,) = model.placed.graphs
    assert {op.name: op.module for op in graph.program.graph.ops} == {
        op.name: op.module for op in planned.ops
    }
    assert match_plan(plan, graph.program.graph) is plan
    assert graph.plan is plan


@pytest.mark.parametrize("call", ["nested with keywords", "tied"])
def test_a_backward_pass_finds_its_ops_in_a_training_plan(call):
    build, args, kwargs = CALLS[call]
    model = place(build(), *args, training=True, **kwargs)
    plan = model.placed.plan
    model(*args, **kwargs).sum().backward()
    forward, backward = (graph.program.graph for graph in model.placed.graphs)
    assert {op.name for op in forward.ops} <= set(plan.ops)
    others = {op.name for op in backward.ops} - set(plan.ops)
    assert {name.partition(".")[0] for name in others} <= {"saved", "tangents"}
    assert any(".backward." in op.name for op in backward.ops)


@pytest.mark.parametrize("call", ["keywords alone", "sequential root", "starred", "same name"])
def test_a_training_step_runs_in_the_order_of_its_plan(call):
    build, args, kwargs = CALLS[call]
    model = place(build(), *args, training=True, **kwargs)
    model.placed.train_step(*args, **kwargs)
    (graph,) = model.placed.train._backend.graphs
    assert graph.plan is model.placed.plan
    assert not model.placed.eager_calls


def test_a_module_inside_the_model_is_found_by_its_weights():
    """A graph break leaves graphs whose root is the broken function's module."""

    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            x = self.inner(x)
            torch._dynamo.graph_break()
            return torch.relu(x)

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Breaks(), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x))

    model = place(Root().eval(), X)
    with torch.no_grad():
        assert torch.equal(model(X), model.placed.forward(X))
    names = {op.name for graph in model.placed.graphs for op in graph.program.graph.ops}
    assert {"first.inner.weight", "first.inner.linear", "last.weight", "last.linear"} <= names
