"""A compiled backward pass is not differentiated without a word."""

from __future__ import annotations

import pytest
from models import nn, place, torch

from placewright.runtime.dynamo.double_backward import refuse_double_backward

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_a_penalty_on_gradients_is_refused_and_works_in_an_eager_block():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    place(model, X)

    def penalty():
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return gradient.square().sum()

    loss = penalty()
    with pytest.raises(RuntimeError, match="double backward"):
        loss.backward()
    with model.placed.eager():
        penalty().backward()
    assert model[0].weight.grad is not None


def test_gradients_that_are_differentiated_raise():
    tensor = torch.ones(2)
    first, none, number = refuse_double_backward([tensor, None, 3])
    assert torch.equal(first, tensor)
    assert (none, number) == (None, 3)
    with pytest.raises(RuntimeError, match=r"double backward: make it inside model\.placed\.eager"):
        first.sum().backward()
