"""The attention kernel gives the scores and gradients of attention's definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from placewright.policies import _additive_attention as kernel
from placewright.policies import seq2seq
from placewright.policies.additive_attention import (
    MAX_KEY,
    AttentionKeys,
    node_gradients,
    node_scores,
    torch_scores,
)
from placewright.policies.seq2seq import Placer


def sample_inputs(
    episodes: int, steps: int, keys: int, hidden: int, rows: int, size: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and match of float32, and the row of each episode."""
    rng = np.random.default_rng(keys * hidden + rows)
    shapes = (episodes, steps, hidden), (rows, keys, hidden), (hidden,)
    query, key, match = (
        torch.as_tensor(rng.normal(scale=size, size=shape), dtype=torch.float32) for shape in shapes
    )
    return query, key, match, torch.as_tensor(rng.integers(rows, size=episodes))


@pytest.mark.parametrize("keys", [1, 16, 17, 40])
@pytest.mark.parametrize("rows", [1, 3])
def test_scores_and_gradients_are_those_of_the_definition(keys: int, rows: int) -> None:
    *inputs, row_of = sample_inputs(5, 4, keys, 24, rows)
    weight = torch.as_tensor(np.random.default_rng(1).normal(size=(5, 4, keys)))
    ours = [tensor.clone().requires_grad_() for tensor in inputs]
    found = AttentionKeys.of(ours[1], row_of)
    assert found.packed is not None  # so that the kernel computes
    scores = found.scores(ours[0], ours[2])
    (scores * weight.float()).sum().backward()
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    expected = torch_scores(exact[0], exact[1][row_of], exact[2])
    (expected * weight).sum().backward()
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=2e-5)
    for own, right in zip(ours, exact, strict=True):
        torch.testing.assert_close(own.grad.double(), right.grad, rtol=0, atol=5e-5)


@pytest.mark.parametrize("keys", [16, 17])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("nodes", [1, 130])
def test_nodes_have_the_scores_and_gradients_of_the_definition(
    keys: int, rows: int, nodes: int
) -> None:
    query, key, match, row = sample_inputs(nodes, 1, keys, 24, rows)
    weight = torch.as_tensor(np.random.default_rng(1).normal(size=(nodes, keys)))
    packed = AttentionKeys.of(key, row).packed
    assert packed is not None
    exp_query, scores = node_scores(packed, query[:, 0], match, row, keys)
    found = node_gradients(packed, exp_query, match, row, weight.float())
    exact = [tensor.double().requires_grad_() for tensor in (query, key, match)]
    expected = torch_scores(exact[0], exact[1][row], exact[2])[:, 0]
    (expected * weight).sum().backward()
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=2e-5)
    for own, right in zip(found, exact, strict=True):
        gradient = right.grad.view(own.shape)
        torch.testing.assert_close(own.double(), gradient, rtol=1e-4, atol=1e-4)


def test_scores_are_right_where_exponentials_of_queries_would_overflow() -> None:
    query, keys, match, row_of = sample_inputs(4, 3, 20, 8, 2, size=20.0)
    keys, query = keys.clamp(-MAX_KEY, MAX_KEY), 5 * query
    assert query.abs().max() > 88  # e^88 is the largest float32
    found = AttentionKeys.of(keys, row_of)
    assert found.packed is not None
    expected = torch_scores(query.double(), keys[row_of].double(), match.double())
    torch.testing.assert_close(found.scores(query, match).double(), expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("value", [31.0, -31.0, float("nan")])
def test_keys_that_the_kernel_cannot_take_are_left_to_pytorch(value: float) -> None:
    query, keys, match, row_of = sample_inputs(4, 3, 20, 8, 2)
    keys[1, 2, 3] = value
    found = AttentionKeys.of(keys, row_of)
    assert found.packed is None
    torch.testing.assert_close(
        found.scores(query, match), torch_scores(query, keys[row_of], match), equal_nan=True
    )


def test_other_precisions_are_left_to_pytorch() -> None:
    query, keys, match, row_of = sample_inputs(4, 3, 20, 8, 2)
    assert AttentionKeys.of(keys.double(), row_of).packed is None
    exact = AttentionKeys.of(keys, row_of).scores(query, match).double()
    double = AttentionKeys.of(keys.double(), row_of).scores(query.double(), match.double())
    torch.testing.assert_close(exact, double, rtol=0, atol=2e-5)


def test_the_kernel_refuses_arrays_that_do_not_match() -> None:
    query, key = np.ones((2, 3, 4), np.float32), np.ones((1, 1, 4, 16), np.float32)
    match, row_of = np.ones(4, np.float32), np.zeros(2, np.int64)
    kernel.scores(query, key, match, row_of, 16)
    wrong = [
        (query, key, match, row_of, 17),
        (query, key, match[:3], row_of, 16),
        (query, key, match, row_of + 1, 16),
        (query, key, match, row_of[:1], 16),
        (query[:, :, :3].copy(), key, match, row_of, 16),
    ]
    for arrays in wrong:
        with pytest.raises(ValueError, match="arrays that do not match"):
            kernel.scores(*arrays)
    with pytest.raises(ValueError, match="gradients that do not match its queries"):
        kernel.gradients(query, key, match, row_of, np.ones((2, 2, 16), np.float32))


def test_a_placer_samples_and_learns_as_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    groups, count, devices = 21, 6, 3
    placer = Placer(10, 32, devices, True, temperature=2.0, tanh=5.0)
    features = torch.as_tensor(rng.normal(size=(2, groups, 10)), dtype=torch.float32)
    row_of = torch.arange(count) // 3
    legal = torch.ones((groups, devices), dtype=torch.bool)
    gumbel, noise = (
        torch.as_tensor(sample(size=(count, groups, devices)), dtype=torch.float32)
        for sample in (rng.gumbel, rng.normal)
    )

    def results() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        placer.zero_grad()
        device, log_prob, shift = placer.sample(
            placer.encode(features, row_of), legal, gumbel, noise
        )
        scored, entropy, _ = placer.score(placer.encode(features, row_of), legal, device, shift)
        (scored.sum() + entropy.sum()).backward()
        gradients = [parameter.grad for parameter in placer.parameters()]
        return [device, log_prob, scored.detach(), entropy.detach()], gradients

    ours, our_gradients = results()

    def plain(keys: torch.Tensor, row_of: torch.Tensor) -> AttentionKeys:
        return AttentionKeys(keys, row_of, None)

    monkeypatch.setattr(seq2seq.AttentionKeys, "of", plain)
    expected, expected_gradients = results()
    assert torch.equal(ours[0], expected[0])
    for own, right in zip(ours[1:], expected[1:], strict=True):
        torch.testing.assert_close(own, right, rtol=0, atol=2e-5)
    for own, right in zip(our_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-4)
