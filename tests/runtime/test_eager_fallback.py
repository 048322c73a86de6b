"""Eager calls under a cap of memory: prefetched weights give way, else an error names the op."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fake_cuda import fake_gpus  # noqa: E402

from placewright.errors import ExecutionError  # noqa: E402
from placewright.runtime.eager_fallback import (  # noqa: E402
    EagerPlacement,
    memory_caps,
)

X = torch.ones(100)


def test_a_function_that_needs_more_than_the_limit_is_named():
    with (
        fake_gpus(counts_host=True),
        memory_caps({0: 1000}),
        EagerPlacement({}, {}, {0: 1000}),
        pytest.raises(ExecutionError, match=r"function 'repeat' .* needs 4,000 bytes or more"),
    ):
        X.repeat(10)


def test_memory_that_a_function_frees_can_be_used_again():
    with fake_gpus(counts_host=True), memory_caps({0: 1000}), EagerPlacement({}, {}, {0: 1000}):
        for _ in range(10):
            y = X * 2
            y = y + 1
    assert torch.equal(y, torch.full((100,), 3.0))


def test_prefetched_weights_are_dropped_before_a_function_fails():
    with (
        fake_gpus(counts_host=True),
        memory_caps({0: 1000}),
        EagerPlacement({}, {}, {0: 1000}) as mode,
    ):
        mode.prefetches[0] = X + 1, None  # 400 bytes
        y = X.repeat(2)  # 800 bytes
        assert not mode.prefetches
    assert torch.equal(y, torch.ones(200))


def test_without_limits_the_error_is_the_one_of_pytorch():
    with (
        fake_gpus(counts_host=True),
        memory_caps({0: 1000}),
        EagerPlacement({}, {}),
        pytest.raises(torch.OutOfMemoryError),
    ):
        X.repeat(10)
