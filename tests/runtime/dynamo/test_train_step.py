"""Training steps are one program where they can be, else a loop with the same optimizer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from models import nn, place, torch, twin

from placewright.errors import ConfigError, ExecutionError, GraphError
from placewright.runtime.program.optimizer_step import OptimizerRule

ADAM = OptimizerRule("adam", 0.01)
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


class Reference:
    """A copy of a model that PyTorch trains."""

    def __init__(self, model) -> None:
        self.model = twin(model)
        self.adam = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self, x):
        self.adam.zero_grad()
        loss = self.model(x).sum()
        loss.backward()
        self.adam.step()
        return loss.detach()

    def check(self, model):
        for mine, theirs in zip(model.parameters(), self.model.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)


def test_hooks_on_gradients_run_and_the_optimizers_states_are_shared():
    """The program, then the loop, then the program again: one Adam goes on."""
    model = small()
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    for hooked in (False, False, True, True, False):
        handles = [
            each[0].weight.register_hook(lambda gradient: gradient * 2)
            for each in (model, reference.model)
            if hooked
        ]
        assert torch.allclose(model.placed.train_step(X), reference.step(X), atol=1e-5)
        for handle in handles:
            handle.remove()
        reference.check(model)
    assert model.placed.eager_calls == {
        "a training step: weight '0.weight' has a hook on its gradient": 2
    }
    assert len(model.placed.train._backend.graphs) == 1


def test_steps_follow_another_plan_and_the_optimizer_goes_on():
    model = small()
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    placed = model.placed
    for _ in range(2):
        assert torch.allclose(placed.train_step(X), reference.step(X), atol=1e-5)
    other = replace(placed.plan, placement=1 - placed.plan.placement)
    placed.use_plan(other)
    for _ in range(2):
        assert torch.allclose(placed.train_step(X), reference.step(X), atol=1e-5)
    reference.check(model)
    (graph,) = placed.train._backend.graphs
    weight = graph.plan.ops.index("0.weight")
    assert graph.plan.placement[weight] == other.placement[other.ops.index("0.weight")]


def test_a_layer_that_no_plan_places_is_trained_too():
    model, layer = small(), nn.Linear(2, 2)
    reference = Reference(nn.Sequential(*model, layer))
    place(model, X, training=True, rule=ADAM).append(layer)
    for _ in range(2):
        assert torch.allclose(model.placed.train_step(X), reference.step(X), atol=1e-5)
        reference.check(model)
    (reason,) = model.placed.eager_calls
    assert "the plan does not place weight '3.weight'" in reason
    with pytest.raises(ExecutionError, match=r"does not place weight '3\.weight'"):
        model.placed.train_micro_batches([(X,), (X,)])


def test_hooks_of_the_model_itself_run():
    model = small()
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    for each in (model, reference.model):
        each.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        each.register_forward_hook(lambda module, args, output: output * 2)
    for _ in range(2):
        assert torch.allclose(model.placed.train_step(X), reference.step(X), atol=1e-5)
        reference.check(model)
    with pytest.raises(ExecutionError, match="the model itself has hooks"):
        model.placed.train_micro_batches([(X,), (X,)])


def test_steps_and_pipelines_follow_a_forward_that_is_replaced(monkeypatch):
    class Scaled(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    model = Scaled(*small())
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    for factor in (2, 3):
        if factor == 3:
            monkeypatch.setattr(
                Scaled, "forward", lambda self, x: 3 * nn.Sequential.forward(self, x)
            )
        assert torch.allclose(model.placed.train_step(X), reference.step(X), atol=1e-5)
        reference.check(model)
        with torch.no_grad():
            (made,) = model.placed.pipeline([(X,)])
            assert torch.allclose(made, reference.model(X), atol=1e-5)


def test_a_hook_after_a_gradient_is_accumulated_runs_too():
    model, shapes = place(small(), X, training=True, rule=ADAM), []
    model[2].weight.register_post_accumulate_grad_hook(
        lambda weight: shapes.append(weight.grad.shape)
    )
    model.placed.train_step(X)
    assert shapes == [(2, 4)]
    assert all(weight.grad is None for weight in model.parameters())


def test_gradients_of_the_callers_own_stay_whatever_runs():
    model = place(small(), X, training=True, rule=ADAM)
    model[0].weight.grad = torch.ones(4, 4)
    model.placed.train_step(X)
    handle = model[2].weight.register_hook(lambda gradient: gradient)
    model.placed.train_step(X)
    handle.remove()
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4))
    assert model[2].weight.grad is None


def test_weights_are_frozen_and_unfrozen():
    model = small()
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    for is_trained in (True, False, False, True):
        for each in (model, reference.model):
            each[0].requires_grad_(is_trained)
        before = model[0].weight.detach().clone()
        model.placed.train_step(X)
        reference.step(X)
        reference.check(model)
        assert torch.equal(before, model[0].weight) != is_trained
    for weight in model.parameters():
        weight.requires_grad_(False)
    with pytest.raises(GraphError, match="no backward ops"):
        model.placed.train_step(X)


def test_modules_have_their_own_modes():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    for is_training in (True, False, True):
        for each in (model, reference.model):
            each[1].train(is_training)
        mean = model[1].running_mean.clone()
        model.placed.train_step(X)
        reference.step(X)
        reference.check(model)
        assert torch.equal(mean, model[1].running_mean) != is_training
        assert torch.allclose(model[1].running_mean, reference.model[1].running_mean, atol=1e-6)
        assert model[1].num_batches_tracked == reference.model[1].num_batches_tracked


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of TorchDynamo after a graph break
def test_a_step_that_breaks_runs_as_a_loop():
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.breaks = nn.Linear(4, 4), False

        def forward(self, x):
            x = self.layer(x)
            if self.breaks:
                torch._dynamo.graph_break()
            return torch.tanh(x)

    model = Breaks()
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    model.breaks = True
    for count in (6, 6, 3):
        model.placed.train_step(X[:count])
        reference.step(X[:count])
        reference.check(model)
    steps = [name for name in model.placed.eager_calls if name.startswith("a training step")]
    assert sum(model.placed.eager_calls[name] for name in steps) == 3


@pytest.mark.parametrize(
    ("switch", "reason"),
    [
        (
            lambda: torch.compiler.set_stance("force_eager"),
            "the stance of torch.compile is 'force_eager'",
        ),
        (
            lambda: torch.compiler.set_stance("eager_on_recompile"),
            "the stance of torch.compile is 'eager_on_recompile'",
        ),
        (
            lambda: torch.compiler.set_stance(force_backend="eager"),
            "torch.compile is set to another backend",
        ),
        (lambda: torch._dynamo.config.patch(disable=True), "torch.compile is disabled"),
    ],
    ids=["force_eager", "eager_on_recompile", "force_backend", "disabled"],
)
def test_a_step_trains_where_torch_compile_is_switched_off(switch, reason):
    """PyTorch would run the forward pass alone, and no weight would change."""
    model = small()
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    for _ in range(2):
        assert torch.allclose(model.placed.train_step(X), reference.step(X), atol=1e-5)
        with switch():
            assert torch.allclose(model.placed.train_step(X), reference.step(X), atol=1e-5)
            assert torch.allclose(model(X), reference.model(X), atol=1e-5)
        reference.check(model)
    assert model.placed.eager_calls == {f"a training step: {reason}": 2, reason: 4}


def test_a_step_whose_frame_is_skipped_trains(monkeypatch):
    """TorchDynamo may skip a frame for reasons of its own."""
    model = small()
    reference = Reference(model)
    place(model, X, training=True, rule=ADAM)
    monkeypatch.setattr(
        model.placed.calls,
        "run_compiled",
        lambda compiled, args, kwargs: model.placed.calls.forward(*args).sum(),
    )
    assert torch.allclose(model.placed.train_step(X), reference.step(X), atol=1e-5)
    reference.check(model)
    assert model.placed.eager_calls["a training step: TorchDynamo skips it"] == 1


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ConfigError, match="optimizer 'adm' is unknown"):
        place(small(), X, training=True, rule="adm").placed.train_step(X)
