"""What TorchDynamo's guards do not see makes a call run eagerly, and right."""

from __future__ import annotations

import contextlib
import threading

import pytest
from models import nn, place, torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from placewright.runtime.dynamo.call_checks import (
    full_guards,
    named_refusals,
    return_from_skipped_frames,
)
from placewright.runtime.dynamo.steps import CallNotServed
from placewright.runtime.program.optimizer_step import OptimizerRule

X = torch.tensor([[1.0, -2.0]])


class Scales(nn.Module):
    """Weights with the sign of an attribute times an argument, be it zero."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.weight = 0.0, nn.Parameter(torch.ones(2))

    def forward(self, x, factor=1.0):
        return torch.copysign(self.weight, x.abs() * self.factor * factor)


@pytest.mark.parametrize("inside", [False, True], ids=["own root", "root of PyTorch's"])
def test_the_sign_of_a_zero_attribute_counts(inside):
    scales = Scales().eval()
    model = place(nn.Sequential(scales) if inside else scales, X)
    with torch.no_grad():
        for factor in (0.0, -0.0, 0.0, -0.0, 2.0):
            scales.factor = factor
            assert torch.equal(model(X), model.placed.forward(X))
    assert list(model.placed.eager_calls) == [
        "a zero has another sign than in the call that was compiled"
    ]


@pytest.mark.parametrize("by_name", [False, True])
def test_the_sign_of_a_zero_argument_counts(by_name):
    model = Scales().eval()
    model.factor = 1.0
    place(model, X, 3.0)
    with torch.no_grad():
        for factor in (0.0, -0.0, -0.0, 0.0):
            right = model.placed.forward(X, factor)
            assert torch.equal(model(X, factor=factor) if by_name else model(X, factor), right)
    assert sum(model.placed.eager_calls.values()) == 2


def test_the_sign_of_a_zero_counts_in_a_training_step():
    model = Scales()
    place(model, X, training=True, rule=OptimizerRule("sgd", 0.0))
    losses = []
    for model.factor, factor in ((0.0, 1.0), (-0.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, -0.0)):
        losses.append(model.placed.train_step(X, factor).item())
    assert losses == [2, -2, 2, 2, -2]


def test_hooks_of_all_modules_run():
    model = place(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), X)
    names = []
    with torch.no_grad():
        expected = model(X)
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, output: names.append(type(module).__name__)
        )
        try:
            assert torch.equal(model(X), expected)
        finally:
            handle.remove()
        assert names == ["Linear", "ReLU", "Sequential"]
        model(X)
    assert model.placed.eager_calls == {"there are hooks of all modules": 1}


class CountsFunctions(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        CountsFunctions.count += 1
        return func(*args, **(kwargs or {}))


class CountsOps(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        CountsOps.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [CountsFunctions, CountsOps])
def test_modes_see_every_op_of_a_call(mode):
    model = place(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), X)
    with torch.no_grad():
        expected = model(X)
        mode.count = 0
        with mode():
            assert torch.equal(model(X), expected)
        assert mode.count >= 2
        assert torch.equal(model(X), expected)
    (reason,) = model.placed.eager_calls
    assert "mode is active" in reason
    assert model.placed.eager_calls[reason] == 1


def test_transforms_and_odd_tensors_run_eagerly():
    model = place(nn.Sequential(nn.Linear(2, 2)).eval(), X)
    with torch.no_grad():
        expected = model(X)
        assert torch.equal(torch.func.vmap(model)(X[None])[0], expected)
        with torch.autograd.forward_ad.dual_level():
            assert torch.equal(model(X), expected)
        model(X.as_subclass(type("Marked", (torch.Tensor,), {})))
    assert set(model.placed.eager_calls) == {
        "it is inside a transform of torch.func",
        "it is inside forward-mode differentiation",
        "an argument is of the tensor class 'Marked'",
    }


def test_guards_of_hooks_are_as_before_after_a_call():
    config = torch._dynamo.config
    previous = config.skip_nnmodule_hook_guards
    model = place(nn.Sequential(nn.Linear(2, 2)).eval(), X)
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        model(X)
        model(torch.ones(1, 3))  # fails
    assert config.skip_nnmodule_hook_guards == previous


def guard_settings():
    config = torch._dynamo.config
    return config.skip_nnmodule_hook_guards, config.recompile_limit


def test_guards_are_full_inside_a_call_of_any_thread_and_as_before_after_all():
    """Two calls that overlap: the first one ends while the second still compiles."""
    before, inside = guard_settings(), []
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def first():
        with full_guards(64):
            first_is_in.set()
            second_is_in.wait()
        first_is_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    first_is_in.wait()
    with full_guards(64):
        second_is_in.set()
        first_is_out.wait()
        inside.append(guard_settings())
    thread.join()
    assert [skips for skips, _ in inside] == [False]
    assert guard_settings() == before


def test_a_failed_assertion_of_the_models_own_is_raised_as_it_is():
    with pytest.raises(AssertionError, match="mine"), named_refusals():
        raise AssertionError("mine")


@pytest.mark.parametrize("kind", ["trace", "assertion"])
def test_a_call_that_pytorch_refuses_is_not_served(kind):
    if kind == "trace":
        error = RuntimeError(
            "Detected that you are using FX to symbolically trace a dynamo-optimized function."
        )
    else:
        error = AssertionError()
        error.real_stack = []
    words = r"PyTorch traces a model|cannot trace it"
    with pytest.raises(CallNotServed, match=words), named_refusals():
        raise error


def test_a_call_runs_eagerly_while_pytorch_traces(monkeypatch):
    model, x = place(nn.Linear(2, 2).eval(), X), X + 1
    monkeypatch.setattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", True)
    assert torch.equal(model(x), model.placed.forward(x))
    assert list(model.placed.eager_calls) == ["PyTorch traces a model at this moment"]


def test_calls_of_several_threads_leave_no_count_of_frames_behind():
    """The count is of all threads; as long as it goes on, nothing is compiled after a break."""

    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.last(x)

    one, other = return_from_skipped_frames(True), return_from_skipped_frames(True)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)  # the one that began first ends first
    other.__exit__(None, None, None)
    model = place(Breaks().eval(), torch.ones(2, 4))
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert len(model.placed.graphs) == 2
