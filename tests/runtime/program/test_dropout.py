"""Dropout of a compiled graph equals PyTorch's own on the CPU, to the bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from placewright.runtime.program.dropout import native_dropout, native_dropout_backward

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PROBABILITIES = (0.1, 0.2, 0.3, 0.47, 0.7, 0.83, 1.0)


@pytest.mark.parametrize(("dtype", "p"), list(itertools.product(DTYPES, PROBABILITIES)))
def test_outputs_gradients_and_random_states_are_those_of_dropout(dtype, p):
    x = torch.randn(1000).to(dtype).requires_grad_()
    gradient = torch.randn(1000).to(dtype)
    torch.manual_seed(1)
    expected = torch.dropout(x, p, True)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    with torch.no_grad():
        output, mask = native_dropout(x, p, True)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(output, expected)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    (expected_gradient,) = torch.autograd.grad(expected, x, gradient)
    assert torch.equal(native_dropout_backward(gradient, mask, scale), expected_gradient)


def test_nothing_is_dropped_without_training():
    x = torch.randn(4)
    assert torch.equal(native_dropout(x, 0.5, False)[0], x)
    assert torch.equal(native_dropout(x, 0.0, True)[0], x)
