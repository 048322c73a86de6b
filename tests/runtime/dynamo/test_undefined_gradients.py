"""Weights that no part of a loss needs get no gradient, as PyTorch has it."""

from __future__ import annotations

import pytest
from models import alternating_plan, nn, place, torch, twin

from placewright.runtime.dynamo.backend import placewright
from placewright.runtime.dynamo.undefined_gradients import undefined_outputs

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Heads(nn.Module):
    """Two heads on one body, in a container or an object of outputs."""

    def __init__(self, kind: type = dict) -> None:
        super().__init__()
        self.body, self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.kind = kind

    def forward(self, x):
        body = torch.tanh(self.body(x))
        outputs = {"one": self.one(body), "other": self.other(body)}
        return self.kind(outputs if self.kind is dict else outputs.values())


def outputs_of(model):
    made = model(X)
    return list(made.values()) if isinstance(made, dict) else list(made)


@pytest.mark.parametrize("kind", [dict, tuple])
def test_a_head_that_is_not_trained_stays_as_it_is(kind):
    model = Heads(kind)
    reference = twin(model)
    place(model, X)
    optimizers = [
        torch.optim.Adam(each.parameters(), lr=0.1, weight_decay=0.1) for each in (model, reference)
    ]
    for trained in (0, 0, 1, 0):
        for each, optimizer in zip((model, reference), optimizers, strict=True):
            optimizer.zero_grad()
            outputs_of(each)[trained].square().sum().backward()
            optimizer.step()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            assert torch.equal(mine, theirs)
    assert not model.placed.eager_calls


def test_zero_times_a_loss_gives_zeros():
    model = place(Heads(), X)
    one, other = outputs_of(model)
    (one.sum() + 0.0 * other.sum()).backward()
    assert torch.equal(model.other.weight.grad, torch.zeros(2, 4))
    model.zero_grad()
    one, other = outputs_of(model)
    (one.sum() + other.detach().sum()).backward()
    assert model.other.weight.grad is None
    assert model.body.weight.grad is not None


def test_calls_whose_backward_passes_cross_do_not_disturb_each_other():
    model = place(Heads(), X)
    (first, _), (_, second) = outputs_of(model), outputs_of(model)
    second.sum().backward()
    assert model.one.weight.grad is None
    model.other.weight.grad = None
    first.sum().backward()
    assert model.one.weight.grad is not None
    assert model.other.weight.grad is None


def test_two_calls_in_one_loss_train_both_heads():
    model = Heads()
    reference = twin(model)
    place(model, X)
    for each in (model, reference):
        (outputs_of(each)[0].sum() + outputs_of(each)[1].sum()).backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_gradients_of_arguments_are_left_out_too():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, y):
            return self.layer(x), y * 2

    model = place(Two(), X, X + 1)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    model(x, y)[0].sum().backward()
    assert x.grad is not None
    assert y.grad is None


class Offsets(nn.Module):
    """Its gradients are those of its outputs: no executor runs a backward graph that has no ops."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.randn(3, 4)) for _ in range(2))

    def forward(self, x):
        return x + self.one, x + self.other


def test_a_backward_graph_that_no_executor_runs_leaves_them_out_too():
    model = Offsets()
    reference = twin(model)
    place(model, X)
    for trained in (0, 1, 0):
        for each in (model, reference):
            each.zero_grad()
            each(X)[trained].square().sum().backward()
        assert model.placed.graphs[1].reason == "there is nothing to compute"
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            assert mine.grad is None or torch.equal(mine.grad, theirs.grad)


def test_what_is_noted_does_not_outlive_a_backward_graph_that_no_executor_runs():
    class Asks(torch.autograd.Function):
        """Asks in its backward pass, which comes after the model's."""

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            found.append(undefined_outputs())
            return gradient

    model, found = place(Offsets(), X), []
    model(Asks.apply(X.clone().requires_grad_()))[1].sum().backward()
    assert found == [frozenset()]


def test_a_backward_pass_that_fails_leaves_nothing_noted_for_the_next():
    model = place(Heads(tuple), X)
    first = outputs_of(model)[0].sum()
    first.backward()
    with pytest.raises(RuntimeError, match="second time"):
        first.backward()

    class Reads(torch.autograd.Function):
        """Asks in its backward pass, without a hook of its own."""

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            found.append(undefined_outputs())
            return gradient

    found = []
    Reads.apply(X.clone().requires_grad_()).sum().backward()
    assert found == [frozenset()]


def test_batched_gradients_are_left_out_too():
    model = Heads(tuple)
    reference = twin(model)
    place(model, X)
    made = []
    for each in (model, reference):
        one, _ = outputs_of(each)
        made.append(
            torch.autograd.grad(
                one,
                list(each.parameters()),
                torch.eye(6).reshape(6, 3, 2),
                is_grads_batched=True,
                allow_unused=True,
            )
        )
    for mine, theirs in zip(*made, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs)


def test_every_graph_of_a_call_that_breaks_leaves_them_out():
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Heads(tuple), Heads(tuple)

        def forward(self, x):
            one, other = self.first(x)
            torch._dynamo.graph_break()
            last, _ = self.second(torch.cat((one, one), 1))
            return last, other

    model = Breaks()
    reference = twin(model)
    place(model, X)
    for each in (model, reference):
        each(X)[0].sum().backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, theirs.grad)
    assert len(model.placed.graphs) == 4


def test_the_backend_alone_leaves_them_out_too():
    model = Heads()
    reference = twin(model)
    options = {"plan": alternating_plan(model, X), "model": model}
    compiled = torch.compile(model, backend=placewright, options=options)
    compiled(X)["one"].sum().backward()
    reference(X)["one"].sum().backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
