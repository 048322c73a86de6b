"""The network of GO: segments and the device head."""

from __future__ import annotations

import pytest

from placewright import Cluster, Problem, zoo

torch = pytest.importorskip("torch")

from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.policies.go.plan_features import pair_features  # noqa: E402

SMALL = GoConfig(hidden=16, heads=2, segment=8, layers=1)

HERE, INTO, LOAD, LATE = 0, 1, 7, 15


def problem(text="layered:ops=40,seed=1,weights=yes", cluster="3xP100+cpu", **how) -> Problem:
    return Problem(zoo.load(text), Cluster.parse(cluster), **how)


def test_the_memory_of_a_segment_takes_no_gradient():
    """What a later segment says changes with an earlier one, but teaches it nothing."""
    torch.manual_seed(0)
    layer = SMALL.build(problem()).task
    x = torch.randn(1, 24, 16, requires_grad=True)  # three segments of 8
    whole = torch.zeros(16 + 8)
    layer(x, whole)[0, 16:].sum().backward()
    assert x.grad[0, 16:].abs().sum() > 0
    assert x.grad[0, :16].abs().sum() == 0
    with torch.no_grad():
        moved = x.clone()
        moved[0, 8:16] += 1.0
        assert (layer(moved, whole)[0, 16:] - layer(x, whole)[0, 16:]).abs().max() > 1e-4
        far = x.clone()
        far[0, :8] += 1.0  # two segments before: one layer does not see it
        assert (layer(far, whole)[0, 16:] - layer(x, whole)[0, 16:]).abs().max() < 1e-6


def test_devices_are_told_by_what_is_on_them():
    """With its own numbers hidden, a unit's device is still not like another one."""
    given = problem("branches:modules=3", "3xP100")
    policy = SMALL.build(given)
    seen = policy.observe(given)
    with torch.no_grad():
        torch.manual_seed(0)
        policy.place.ask.weight.normal_()
        state = torch.zeros(
            1,
            len(seen),
            3,
            pair_features(
                seen.tensors(policy.torch_device), torch.zeros(1, len(seen), dtype=torch.long)
            ).shape[3],
        )
        state[0, : len(seen) // 2, 1, HERE] = 1.0
        state[0, len(seen) // 2 :, 0, HERE] = 1.0
        policy.place.linear.zero_()
        policy.place.pair.weight.zero_()
        x = torch.randn(1, len(seen), SMALL.hidden)
        each = torch.zeros(3, seen.tensors(policy.torch_device).features.device.shape[1])
        logits = policy.place(x, state, each, 0)
        swapped = policy.place(x, state[:, :, [1, 0, 2]], each, 0)
    assert (logits[..., 0] - logits[..., 1]).abs().min() > 1e-6
    torch.testing.assert_close(logits[..., [1, 0, 2]], swapped)
