"""Eager calls under a cap of memory: prefetched weights give way, else an error names the op."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

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


class Watched(torch.autograd.Function):
    """Doubles its argument; notes the caps in its backward pass, which may fail."""

    @staticmethod
    def forward(ctx, x, cuda, seen, fails):
        ctx.cuda, ctx.seen, ctx.fails = cuda, seen, fails
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.append(list(ctx.cuda.caps))
        if ctx.fails:
            raise ValueError("the backward pass fails")
        return gradient * 2, None, None, None


@pytest.mark.parametrize("fails", [False, True])
def test_a_backward_pass_is_under_the_caps_of_its_call(fails):
    seen = []
    with fake_gpus() as cuda:
        weight = torch.ones(3, requires_grad=True)
        mode = EagerPlacement({}, {}, {0: 1000})
        with mode:
            y = Watched.apply(weight + 1, cuda, seen, fails).sum()
        for turn in range(2):
            with pytest.raises(ValueError) if fails else contextlib.nullcontext():
                y.backward(retain_graph=True)
            assert seen == [[1000]] * (turn + 1)
            assert cuda.caps == []


def test_backward_passes_of_two_threads_end_their_own_caps():
    with fake_gpus() as cuda, EagerPlacement({}, {}, {0: 1000}):
        losses = [(torch.ones(3, requires_grad=True) * 2).sum() for _ in range(8)]
    with fake_gpus() as cuda, ThreadPoolExecutor(4) as pool:
        list(pool.map(torch.Tensor.backward, losses))
        assert cuda.caps == []


def test_without_limits_a_backward_pass_has_no_cap():
    with fake_gpus() as cuda:
        seen = []
        with EagerPlacement({}, {}):
            y = Watched.apply(torch.ones(3, requires_grad=True) + 1, cuda, seen, False).sum()
        y.backward()
        assert seen == [[]]
