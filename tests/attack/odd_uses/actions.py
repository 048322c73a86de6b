"""Actions of a random sequence: each does one thing to a model and returns what it shows.

An action draws its parameters from a generator that is equal for both copies of the model, so both
do the same as long as they look the same.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from attack.odd_uses.comparison import attempt
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from attack.odd_uses.subjects import Subject


@dataclass
class Session:
    """A model in use: its optimizer, hooks, what it returned, and what hooks have seen."""

    model: Any
    subject: Subject
    runs: Any
    optimizer: Any = None
    handles: list[Any] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    saved: dict[str, torch.Tensor] | None = None

    def batch(self, rng: random.Random, smallest: int = 1) -> torch.Tensor:
        """A batch in the dtype of the model."""
        x = self.subject.batch(rng.randrange(8), rng.choice((4, 4, 4, 2, 3, smallest, 6)))
        return self.cast(x)

    def cast(self, x: torch.Tensor) -> torch.Tensor:
        dtype = next(self.model.parameters()).dtype
        return x.to(dtype) if x.is_floating_point() else x

    def keep(self, output: Any) -> Any:
        """Keep an output: a later call must not change it."""
        self.outputs = [*self.outputs[-2:], output]
        return output

    def weight(self, rng: random.Random) -> tuple[nn.Module, str]:
        """A module and the name of one of its weights."""
        found = [
            (module, name)
            for module in self.model.modules()
            for name, weight in module._parameters.items()
            if weight is not None
        ]
        return rng.choice(found)

    def module(self, rng: random.Random) -> nn.Module:
        return rng.choice([m for m in self.model.modules() if m is not self.model])


ACTIONS: dict[str, Callable[[Session, random.Random], Any]] = {}
WEIGHTS: dict[str, int] = {}


def action(weight: int = 2) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        ACTIONS[function.__name__], WEIGHTS[function.__name__] = function, weight
        return function

    return register


def loss_of(output: Any) -> torch.Tensor:
    """A sum that every differentiable output takes part in."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    if not leaves and isinstance(output, dict):
        leaves = [leaf for leaf in output.values() if isinstance(leaf, torch.Tensor)]
    return sum(
        leaf.float().square().mean()
        for leaf in leaves
        if leaf.requires_grad and leaf.is_floating_point() and leaf.numel()
    )


# -- calls ---------------------------------------------------------------------------------------


@action(6)
def call(session, rng):
    return session.keep(session.model(session.batch(rng)))


@action(6)
def call_without_gradients(session, rng):
    with torch.no_grad():
        return session.keep(session.model(session.batch(rng)))


@action(4)
def call_twice_in_eval_mode(session, rng):
    modes = [module.training for module in session.model.modules()]
    session.model.eval()
    x = session.batch(rng)
    with torch.no_grad():
        made = [session.model(x), session.keep(session.model(x))]
    for module, mode in zip(session.model.modules(), modes, strict=True):
        module.training = mode
    return made


@action(2)
def call_in_inference_mode(session, rng):
    with torch.inference_mode():
        return attempt(session.model, session.batch(rng))


@action(2)
def call_under_autocast(session, rng):
    with torch.autocast("cpu", torch.bfloat16):
        made = session.model(session.batch(rng))
    loss = loss_of(made)
    if isinstance(loss, torch.Tensor) and rng.random() < 0.5:
        loss.backward()
    return made


@action(2)
def call_with_strides(session, rng):
    x = session.batch(rng)
    x = x.flip(0) if rng.random() < 0.3 else x.transpose(0, -1).contiguous().transpose(0, -1)
    return session.keep(session.model(x))


@action(1)
def call_that_fails(session, rng):
    x = session.batch(rng)
    return attempt(session.model, x[..., :5] if x.is_floating_point() else x + 500)


@action(1)
def call_in_a_thread(session, rng):
    x, made = session.batch(rng), []
    thread = threading.Thread(target=lambda: made.append(attempt(session.model, x)))
    thread.start()
    thread.join()
    return made


@action(1)
def call_with_other_weights(session, rng):
    with torch.no_grad():
        weights = {name: weight * 1.5 for name, weight in session.model.named_parameters()}
        return functional_call(session.model, weights, (session.batch(rng),), tie_weights=False)


@action(1)
def call_with_an_empty_batch(session, rng):
    x = session.batch(rng)[:0]
    return attempt(session.model, x)


@action(1)
def call_after_a_seed(session, rng):
    torch.manual_seed(rng.randrange(5))
    return session.model(session.batch(rng)), torch.rand(1)


@action(1)
def recapture(session, rng):
    session.runs.recapture()


# -- gradients -----------------------------------------------------------------------------------


@action(6)
def backward(session, rng):
    made = session.model(session.batch(rng, 2))
    loss = loss_of(made)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return made


@action(2)
def backward_of_the_input(session, rng):
    x = session.batch(rng, 2)
    if not x.is_floating_point():
        return None
    x.requires_grad_()
    loss = loss_of(session.model(x))
    return torch.autograd.grad(loss, x, allow_unused=True)


@action(1)
def gradient_penalty(session, rng):
    x = session.batch(rng, 2)
    if not x.is_floating_point():
        return None
    x.requires_grad_()
    with session.runs.eager():  # PyTorch's compiler refuses a backward pass of a backward pass
        loss = loss_of(session.model(x))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    if gradient.requires_grad:
        gradient.square().sum().backward()
    return gradient


@action(1)
def backward_late(session, rng):
    """Another call comes between a call and its backward pass."""
    made = session.model(session.batch(rng, 2))
    loss = loss_of(made)
    with torch.no_grad():
        other = session.model(session.batch(rng))
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return made, other


@action(2)
def zero_gradients(session, rng):
    session.model.zero_grad(set_to_none=rng.random() < 0.5)


@action(1)
def clip_gradients(session, rng):
    return nn.utils.clip_grad_norm_(session.model.parameters(), 0.1)


# -- optimizers ----------------------------------------------------------------------------------


@action(2)
def new_optimizer(session, rng):
    weights = list(session.model.parameters())
    session.optimizer = rng.choice(
        (
            lambda: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
            lambda: torch.optim.Adam(weights, lr=0.01),
            lambda: torch.optim.AdamW(weights, lr=0.01, foreach=True),
        )
    )()


@action(5)
def train(session, rng):
    if session.optimizer is None:
        new_optimizer(session, rng)
    losses = []
    for _ in range(rng.randrange(1, 4)):
        session.optimizer.zero_grad()
        loss = loss_of(session.model(session.batch(rng, 2)))
        if isinstance(loss, torch.Tensor):
            loss.backward()
            session.optimizer.step()
        losses.append(loss)
    return losses


# -- modes and flags -----------------------------------------------------------------------------


@action(3)
def switch_the_model(session, rng):
    session.model.train(not session.model.training)


@action(3)
def switch_a_submodule(session, rng):
    module = session.module(rng)
    module.train(not module.training)


@action(3)
def freeze_or_unfreeze_a_weight(session, rng):
    module, name = session.weight(rng)
    weight = getattr(module, name)
    weight.requires_grad_(not weight.requires_grad)


@action(1)
def freeze_or_unfreeze_a_submodule(session, rng):
    session.module(rng).requires_grad_(rng.random() < 0.5)


@action(1)
def change_a_setting(session, rng):
    value = rng.choice((0.1, 0.9))
    for module in session.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = value
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = value
        elif isinstance(module, nn.LayerNorm):
            module.eps = value / 10
