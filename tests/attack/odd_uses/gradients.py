"""Odd uses of autograd: other ways to differentiate, graphs kept, checkpoints, own functions."""

from __future__ import annotations

import gc
import weakref

import torch
from attack.odd_uses.comparison import attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import Branches, Recurrent, mlp, plain, words
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


@odd_use(plain)
def gradients_accumulate(model):
    for seed in range(5):
        (model(rows(seed, 1 + seed % 3)).square().mean() / 5).backward()


@odd_use(plain)
def autograd_grad(model):
    x = rows().requires_grad_()
    y = model(x).square().sum()
    made = torch.autograd.grad(y, [x, *model.parameters()])
    return made, [weight.grad is None for weight in model.parameters()]


@odd_use(plain)
def autograd_grad_of_some(model):
    y = model(rows()).square().sum()
    return torch.autograd.grad(y, [model[2].weight]), attempt(y.backward)


@odd_use(plain)
def unused_inputs(model):
    x, other = rows().requires_grad_(), rows(1).requires_grad_()
    y = model(x).sum()
    return torch.autograd.grad(y, [x, other], allow_unused=True)


@odd_use(plain, refusal="double backward")
def double_backward(model):
    """A gradient penalty."""
    x = rows().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    penalty = (gradient.norm(dim=1) - 1).square().mean()
    penalty.backward()
    return penalty, gradient, x.grad


@odd_use(plain)
def double_backward_in_an_eager_scope(model, runs):
    x = rows().requires_grad_()
    with runs.eager():
        y = model(x).square().sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    first.square().sum().backward()
    return first, x.grad, model(rows())


@odd_use(plain, refusal="double backward")
def hessian_vector_product(model):
    weights = list(model.parameters())
    loss = model(rows()).square().mean()
    first = torch.autograd.grad(loss, weights, create_graph=True)
    vector = [torch.ones_like(weight) for weight in weights]
    product = sum((g * v).sum() for g, v in zip(first, vector, strict=True))
    return torch.autograd.grad(product, weights, allow_unused=True)


@odd_use(plain)
def retain_graph(model):
    y = model(rows()).square().sum()
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    return attempt(y.backward)


@odd_use(plain)
def backward_twice_fails(model):
    y = model(rows()).sum()
    y.backward()
    return attempt(y.backward), attempt(lambda: model(rows()).sum().backward())


@odd_use(plain)
def backward_of_two_calls_in_reverse(model):
    first, second = model(rows()), model(rows(1))
    second.square().sum().backward()
    first.square().sum().backward()
    return first, second


@odd_use(plain)
def backward_of_the_sum_of_calls(model):
    """A triplet loss."""
    a, b, c = model(rows()), model(rows(1)), model(rows(2, 3))
    loss = nn.functional.triplet_margin_loss(a[:3], b[:3], c)
    loss.backward()
    return loss


@odd_use(plain)
def weights_change_before_backward(model):
    y = model(rows()).square().sum()
    with torch.no_grad():
        model[4].weight.mul_(2)
    made = attempt(y.backward)
    return made, attempt(lambda: model(rows()).sum().backward())


@odd_use(plain)
def input_changes_before_backward(model):
    x = rows()
    y = model(x).square().sum()
    x.zero_()
    made = attempt(y.backward)
    model.zero_grad()  # of layers whose backward came before the failure
    return made


@odd_use(plain, refusal="has other data than in the forward pass")
def data_is_swapped_before_backward(model):
    y = model(rows()).square().sum()
    model[4].weight.data = model[4].weight.data * 2
    y.backward()


@odd_use(Branches)
def backward_of_one_output_only(model):
    made = model(rows())
    made["sum"].backward()
    first = model.join.weight.grad is None
    model(rows())["made"].sum().backward()
    return first


@odd_use(plain)
def backward_with_a_vector(model):
    y = model(rows())
    y.backward(torch.ones_like(y) * 3, inputs=[model[0].weight, model[2].bias])
    made = torch.autograd.grad(model(rows()), model[0].weight, rows(3))
    return made, torch.autograd.backward([model(rows()), model(rows(1))], [rows(4), rows(5)])


@odd_use(plain, refusal="double backward")
def jacobian_and_hessian(model):
    x = rows(count=2)
    jacobian = torch.autograd.functional.jacobian(model, x)
    hessian = torch.autograd.functional.hessian(lambda v: model(v).square().sum(), x)
    return jacobian, hessian


@odd_use(plain)
def batched_vectors(model):
    x = rows(count=2).requires_grad_()
    y = model(x)
    return torch.autograd.grad(y, x, torch.eye(16).view(16, 2, 8), is_grads_batched=True)


@odd_use(plain, tolerance=1e-9, refusal="double backward")
def gradcheck(model):
    model.double()
    x = rows(count=2).double().requires_grad_()
    return torch.autograd.gradcheck(model, (x,)), torch.autograd.gradgradcheck(model, (x,))


@odd_use(mlp)
def checkpoint_around_the_model(model):
    made = []
    for reentrant in (False, True):
        x = rows().requires_grad_()
        y = checkpoint(model, x, use_reentrant=reentrant)
        y.sum().backward()
        made += [y, x.grad]
    return made


class Checkpoints(nn.Module):
    """Recomputes its layers, dropout included, in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())
        self.last = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x):
        y = checkpoint(self.first, x, use_reentrant=False)
        return checkpoint_sequential(self.last, 2, y, use_reentrant=False)


@odd_use(Checkpoints)
def checkpoints_inside(model):
    made = []
    for seed in range(3):
        y = model(rows(seed))
        y.square().sum().backward()
        made.append(y)
    return made


@odd_use(Checkpoints)
def a_dropout_inside_a_checkpoint_changes(model):
    made = []
    for count, probability in enumerate((0.5, 0.9, 0.1, 1.0, 0.0), 2):
        model.first[1].p = probability
        x = rows(count=count).requires_grad_()
        y = model(x)
        made += [y, *torch.autograd.grad(y.square().sum(), (x, model.first[0].weight))]
    return made


class OddCheckpoint(nn.Module):
    """One checkpoint, with options of the test."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.first, self.options = nn.Linear(8, 8), options
        self.last = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh())

    def forward(self, x):
        return checkpoint(self.last, self.first(x), **self.options)


@odd_use(lambda: OddCheckpoint(use_reentrant=False, preserve_rng_state=False))
def a_checkpoint_that_draws_other_numbers(model):
    model(rows()).square().sum().backward()
    return model(rows(1))


@odd_use(lambda: OddCheckpoint(use_reentrant=True))
def a_reentrant_checkpoint(model):
    model(rows()).square().sum().backward()
    return model(rows(1))


@odd_use(lambda: OddCheckpoint(use_reentrant=True))
def a_reentrant_checkpoint_of_what_needs_no_gradient(model):
    model.first.requires_grad_(False)
    y = model(rows())
    return y, y.requires_grad


class ClosedOver(nn.Module):
    """A reentrant checkpoint whose function reads a value that is no argument of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.first(x)
        inner = checkpoint(lambda z: torch.tanh(self.last(z) + y), x, use_reentrant=True)
        return inner + self.last(x)


@odd_use(ClosedOver)
def a_value_that_a_reentrant_checkpoint_closes_over(model):
    model(rows()).square().sum().backward()
    return model(rows(1))


@odd_use(lambda: OddCheckpoint(use_reentrant=False))
def a_dropout_of_probability_one_inside_a_checkpoint(model):
    model.last[1].p = 1.0
    model(rows()).square().sum().backward()
    return model(rows(1))


@odd_use(lambda: OddCheckpoint(use_reentrant=False))
def a_dropout_inside_a_checkpoint_rounds_as_pytorch_does(model):
    made = []
    for probability in (0.05, 0.1, 0.15, 0.35, 0.7, 0.9):
        model.last[1].p = probability
        y = model(rows(count=16))
        y.square().sum().backward()
        made.append(y)
    return made


class Scaled(torch.autograd.Function):
    """Multiplies the gradient by minus two."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return -2 * gradient + 0 * x


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(Scaled.apply(self.first(x)))


@odd_use(OwnFunction)
def own_autograd_function(model):
    x = rows().requires_grad_()
    for seed in range(3):
        model(x * (seed + 1)).square().sum().backward()
    with torch.no_grad():
        return model(rows()), x.grad


class Detaches(nn.Module):
    """Stops some gradients and computes others itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            target = self.last(x)
        y = self.first(x)
        y = y + (y.round() - y).detach()
        with torch.enable_grad():
            probe = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.last(probe).square().sum(), probe)
        return (y - target).square().mean(), gradient


@odd_use(Detaches)
def gradients_inside_forward(model):
    made = []
    for seed in range(3):
        loss, gradient = model(rows(seed))
        loss.backward()
        made += [loss, gradient, gradient.requires_grad]
    with torch.no_grad():
        made += model(rows())
    return made


class SteppedInside(nn.Module):
    """Updates its own weights in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        with torch.no_grad():
            self.inner.weight.mul_(0.9).add_(0.1 * x.mean())
        return y


@odd_use(SteppedInside)
def forward_changes_its_weights(model):
    with torch.no_grad():
        made = [model(rows(seed)) for seed in range(4)]
    return made, model.inner.weight._version > 0


@odd_use(Recurrent)
def truncated_backpropagation_through_time(model):
    state, made = None, []
    for seed in range(4):
        y, state = model(words(seed), state)
        loss = y.square().mean()
        loss.backward()
        state = tuple(each.detach() for each in state)
        made += [loss, *state]
    return made


@odd_use(Recurrent)
def backpropagation_through_calls(model):
    state, total = None, 0
    for seed in range(3):
        y, state = model(words(seed, length=3 + seed), state)
        total = total + y.square().mean()
    total.backward()
    return total


@odd_use(plain)
def graph_is_freed(model):
    x = rows().requires_grad_()
    y = model(x)
    found = weakref.ref(x)
    del x, y
    gc.collect()
    return found() is None


@odd_use(plain)
def outputs_are_freed(model):
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            y = model(rows())
    found = weakref.ref(y)
    del y
    gc.collect()
    return found() is None


@odd_use(plain)
def grad_fn_is_not_a_secret(model):
    y = model(rows())
    return y.requires_grad, y.is_leaf, attempt(lambda: y.requires_grad_(False)), y.detach()


@odd_use(plain)
def adversarial_examples(model):
    """Gradients of the input alone, in eval mode, with frozen weights."""
    model.eval().requires_grad_(False)
    x = rows()
    for _ in range(4):
        x = x.detach().requires_grad_()
        model(x).square().sum().backward()
        x = x + 0.1 * x.grad.sign()
    return x


@odd_use(mlp)
def eval_in_the_middle_of_a_training_step(model):
    loss = model(rows()).square().mean()
    model.eval()
    with torch.no_grad():
        made = [model(rows(1)), model(rows(2))]
    model.train()
    loss.backward()
    return loss, made
