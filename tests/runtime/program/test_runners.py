"""Ops that are easily taken for something else: any plan gives the model's own results."""

from __future__ import annotations

import pytest
from models import capture, nn, plans, torch, twin

from placewright.errors import GraphError
from placewright.frontends.pytorch import writes
from placewright.runtime import Executor
from placewright.runtime.program.runners import InputRead, node_runner


class Odd(nn.Module):
    """A layer, and something done with what it makes."""

    def __init__(self, then):
        super().__init__()
        self.inner, self.then = nn.Linear(8, 8), then

    def forward(self, x):
        return self.then(self.inner(x))


def set_row(y):
    y[0] = 3.0
    return y


def set_column(y):
    y[:, 0] = y.sum()
    return y


def fill_new(y):
    return torch.empty(3, 4).fill_(y.sum()) * 2


def fill_old(y):
    return y.clone().fill_(y.max())


def fill_self(y):
    total = y.sum()
    return total.fill_(total)


def spaced(y):
    return torch.linspace(y.min(), y.max(), 5)


def conjugate(y):
    return torch.fft.fft(y).conj().imag


def conjugate_kept(y):
    made = torch.fft.fft(y).conj()
    return torch.view_as_real(made.resolve_conj() * made)


def negative(y):
    return torch._neg_view(y) + 1


def complex_number(y):
    return torch.view_as_real(torch.view_as_complex(y.view(4, 4, 2)) * (1 + 2j))


def inverse(y):
    return torch.linalg.inv(y.T @ y + torch.eye(8))


FUNCTIONS = [
    *(set_row, set_column, fill_new, fill_old, fill_self, spaced),
    *(conjugate, conjugate_kept, negative, complex_number, inverse),
]


@pytest.mark.parametrize("then", FUNCTIONS)
def test_any_plan_gives_what_odd_ops_make(then):
    model, x = Odd(then), torch.randn(4, 8)
    program, problem = capture(model, x)
    with torch.no_grad():
        expected = model(x)
    for plan in plans(problem, 4):
        with Executor(program, twin(model), plan) as run:
            for _ in range(2):
                assert torch.allclose(run(x), expected, atol=1e-5)


def trains_alike(model, x):
    """Check that a step over two workers makes the loss and the weights that the model makes."""
    program, problem = capture(model, x, training=True)
    reference = twin(model)
    made = reference(x)
    loss = (made[0] if isinstance(made, tuple) else made).sum()
    loss.backward()
    torch.optim.SGD(reference.parameters(), lr=1e-3).step()
    for plan in plans(problem, 2):
        trained = twin(model)
        with Executor(program, trained, plan) as run:
            assert torch.allclose(run(x), loss, rtol=1e-4)
        for mine, theirs in zip(trained.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("then", [set_row, set_column, conjugate, complex_number, inverse])
def test_any_plan_trains_through_odd_ops(then):
    trains_alike(Odd(then), torch.randn(4, 8))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_any_plan_trains_a_recurrent_layer(kind):
    trains_alike(kind(8, 8), torch.randn(3, 4, 8))


def test_values_that_an_op_needs_and_does_not_read_are_not_made_up():
    program, _ = capture(Odd(fill_new), torch.randn(4, 8))
    fill = next(node for node in program.builder.nodes_with_ops if node.name == "fill")
    with pytest.raises(GraphError, match="op 'fill' needs the values of 'sum_1'"):
        node_runner(fill, {}, torch.device("cpu"))
    node_runner(fill, {fill.args[1]: InputRead(0)}, torch.device("cpu"))


def test_an_unforeseen_error_names_the_op(monkeypatch):
    def failing(node):
        raise IndexError("list index out of range")

    monkeypatch.setattr(writes, "describe_node", failing)
    message = "IndexError: list index out of range, at op 'linear'"
    with pytest.raises(GraphError, match=message):
        capture(nn.Linear(8, 8), torch.randn(4, 8))
