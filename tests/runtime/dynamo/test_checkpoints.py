"""Checkpoints inside a placed model train as in PyTorch, or the call runs eagerly."""

from __future__ import annotations

import pytest
from models import nn, place, torch, twin
from torch.utils.checkpoint import checkpoint

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Recomputed(nn.Module):
    """A layer and a checkpoint around a dropout."""

    def __init__(self, p: float = 0.5, **options: bool) -> None:
        super().__init__()
        self.first, self.options = nn.Linear(4, 4), options
        self.last = nn.Sequential(nn.Linear(4, 4), nn.Dropout(p), nn.Tanh())

    def forward(self, x):
        return checkpoint(self.last, self.first(x), **self.options)


def train(model, x=X):
    """The output, the gradients, and the state of the random numbers after both passes."""
    torch.manual_seed(0)
    model.zero_grad()
    y = model(x)
    if y.requires_grad:
        y.square().sum().backward()
    return [y, *(weight.grad for weight in model.parameters()), torch.get_rng_state()]


def check_equal(model, reference, x=X):
    for mine, theirs in zip(train(model, x), train(reference, x), strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)


@pytest.mark.parametrize("p", [0.1, 0.35, 0.9, 1.0])
def test_a_dropout_inside_a_checkpoint_is_that_of_pytorch(p):
    model = Recomputed(p, use_reentrant=False)
    reference = twin(model)
    check_equal(place(model, X), reference)
    assert not model.placed.eager_calls


def test_a_dropout_that_changes_inside_a_checkpoint_is_compiled_again():
    model = Recomputed(use_reentrant=False)
    reference = twin(model)
    place(model, X)
    for p in (0.5, 0.9, 0.1):
        model.last[1].p = reference.last[1].p = p
        check_equal(model, reference)
    assert not model.placed.eager_calls
    assert not model.placed.calls.backend.failures


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_that_draws_other_numbers_runs_eagerly(use_reentrant):
    model = Recomputed(use_reentrant=use_reentrant, preserve_rng_state=False)
    reference = twin(model)
    check_equal(place(model, X), reference)
    (reason,) = model.placed.eager_calls
    assert ("is reentrant" if use_reentrant else "draws other random numbers") in reason


def test_a_checkpoint_that_saves_no_random_state_and_draws_none_is_compiled():
    model = Recomputed(use_reentrant=False, preserve_rng_state=False)
    model.last[1] = nn.Identity()
    reference = twin(model)
    check_equal(place(model, X), reference)
    assert not model.placed.eager_calls


def test_a_reentrant_checkpoint_of_what_needs_no_gradient_has_none():
    model = Recomputed(use_reentrant=True)
    model.first.requires_grad_(False)
    reference = twin(model)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        check_equal(place(model, X), reference)
    (reason,) = model.placed.eager_calls
    assert "a checkpoint is reentrant" in reason
    check_equal(model, reference, X.clone().requires_grad_())


class ClosedOver(nn.Module):
    """A reentrant checkpoint whose function reads a computed value that is no argument of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        inner = checkpoint(lambda z: torch.tanh(self.last(z) + y), x, use_reentrant=True)
        return inner + self.last(x)


def test_a_value_that_a_reentrant_checkpoint_closes_over_gets_no_gradient():
    model = ClosedOver()
    reference = twin(model)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        check_equal(place(model, X), reference)
    assert model.first.weight.grad is None


def test_a_checkpoint_that_cannot_be_compiled_runs_eagerly(monkeypatch):
    """TorchDynamo's graph, run as it is, would draw other numbers in the backward pass."""
    model = Recomputed(use_reentrant=False)
    reference = twin(model)
    place(model, X)

    def fail(*args, **options):
        raise ValueError("no partition")

    monkeypatch.setattr("placewright.runtime.dynamo.backend.partition_joint_graph", fail)
    check_equal(model, reference)
    (reason,) = model.placed.eager_calls
    assert "no partition" in reason
