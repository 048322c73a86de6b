"""Actions of a random sequence: each does one thing to a model and returns what it shows.

An action draws its parameters from a generator that is equal for both copies of the model, so both
do the same as long as they look the same.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from attack.odd_uses.comparison import attempt
from torch import nn
from torch.func import functional_call
from torch.nn.modules import module as modules
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
    (gradient,) = torch.autograd.grad(loss_of(session.model(x)), x, create_graph=True)
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


# -- hooks ---------------------------------------------------------------------------------------


def _scaled(output, factor):
    return output * factor if isinstance(output, torch.Tensor) else output


@action(2)
def add_a_hook_that_looks(session, rng):
    def hook(_module, _args, output):
        if isinstance(output, torch.Tensor):
            session.seen.append((tuple(output.shape), output.detach().double().sum()))

    session.handles.append(session.module(rng).register_forward_hook(hook))


@action(2)
def add_a_hook_that_scales(session, rng):
    factor = rng.choice((0.5, 2.0))
    hook = lambda _module, _args, output: _scaled(output, factor)  # noqa: E731
    session.handles.append(session.module(rng).register_forward_hook(hook))


@action(1)
def add_a_pre_hook(session, rng):
    shift = rng.choice((0.5, -1.0))

    def hook(_module, args):
        first, *others = args
        floats = isinstance(first, torch.Tensor) and first.is_floating_point()
        return (first + shift, *others) if floats else None

    session.handles.append(session.module(rng).register_forward_pre_hook(hook))


@action(1)
def add_a_backward_hook(session, rng):
    linears = [m for m in session.model.modules() if type(m) is nn.Linear]
    hook = lambda *_: session.seen.append("backward")  # noqa: E731
    session.handles.append(rng.choice(linears).register_full_backward_hook(hook))


@action(2)
def add_a_tensor_hook(session, rng):
    module, name = session.weight(rng)
    weight, factor = getattr(module, name), rng.choice((0.0, 3.0))
    if weight.requires_grad:
        session.handles.append(weight.register_hook(lambda gradient: gradient * factor))


@action(3)
def remove_a_hook(session, rng):
    if session.handles:
        session.handles.pop(rng.randrange(len(session.handles))).remove()


@action(2)
def replace_a_hook(session, rng):
    remove_a_hook(session, rng)
    add_a_hook_that_scales(session, rng)


@action(1)
def call_under_a_global_hook(session, rng):
    x, seen = session.batch(rng), []
    handle = modules.register_module_forward_hook(
        lambda module, _args, _output: seen.append(type(module).__name__)
    )
    try:
        with torch.no_grad():
            return session.model(x), seen
    finally:
        handle.remove()


# -- weights and states --------------------------------------------------------------------------


@action(2)
def change_a_weight_in_place(session, rng):
    module, name = session.weight(rng)
    with torch.no_grad():
        getattr(module, name).mul_(rng.choice((0.5, 1.5)))


@action(2)
def swap_the_data_of_a_weight(session, rng):
    module, name = session.weight(rng)
    weight = getattr(module, name)
    weight.data = weight.data.flip(0) * 0.9


@action(1)
def swap_the_strides_of_a_weight(session, rng):
    module, name = session.weight(rng)
    weight = getattr(module, name)
    if weight.dim() == 2:
        square = weight.shape[0] == weight.shape[1]
        weight.data = weight.data.t() if square else weight.data.t().contiguous().t()


@action(2)
def replace_a_weight(session, rng):
    module, name = session.weight(rng)
    weight = getattr(module, name)
    setattr(module, name, nn.Parameter(weight.detach() * 0.8, weight.requires_grad))


@action(1)
def tie_two_weights(session, rng):
    module, name = session.weight(rng)
    shape = getattr(module, name).shape
    others = [
        (m, n)
        for m in session.model.modules()
        for n, w in m._parameters.items()
        if w is not None and w.shape == shape
    ]
    other, other_name = rng.choice(others)
    setattr(other, other_name, getattr(module, name))


@action(2)
def save_or_load_weights(session, rng):
    assign = rng.random() < 0.5
    if session.saved is None:
        session.saved = copy.deepcopy(dict(session.model.state_dict()))
        return None
    saved = {name: value.clone() for name, value in session.saved.items()}
    return attempt(lambda: list(session.model.load_state_dict(saved, assign=assign)))


@action(2)
def replace_a_buffer(session, rng):
    found = [
        (m, n) for m in session.model.modules() for n, b in m._buffers.items() if b is not None
    ]
    if found:
        module, name = rng.choice(found)
        value = getattr(module, name)
        setattr(module, name, value + 1)


@action(1)
def change_a_buffer_in_place(session, rng):
    buffers = [b for b in session.model.buffers() if b.is_floating_point()]
    if buffers:
        rng.choice(buffers).add_(0.25)


@action(2)
def cast(session, rng):
    session.optimizer = None
    session.model.to(rng.choice((torch.float64, torch.float32, torch.float32, torch.bfloat16)))


@action(1)
def replace_a_submodule(session, rng):
    found = [
        (parent, name, child)
        for parent in session.model.modules()
        for name, child in parent._modules.items()
        if child is not None and not list(child.children())
    ]
    parent, name, child = rng.choice(found)
    other = copy.deepcopy(child)
    for weight in other.parameters():
        weight.data.mul_(0.7)
    setattr(parent, name, other)


@action(1)
def replace_an_activation(session, rng):
    kinds = (nn.ReLU, nn.Tanh, nn.Sigmoid)
    found = [
        (parent, name)
        for parent in session.model.modules()
        for name, child in parent._modules.items()
        if isinstance(child, kinds)
    ]
    if found:
        parent, name = rng.choice(found)
        setattr(parent, name, rng.choice(kinds)())


@action(1)
def patch_the_forward_of_a_submodule(session, rng):
    module = rng.choice([m for m in session.model.modules() if type(m) is nn.Linear])
    if "forward" in vars(module):
        del module.forward
    else:
        module.forward = lambda x: nn.functional.linear(x, module.weight * 2, module.bias)


# -- outputs -------------------------------------------------------------------------------------


@action(1)
def change_a_kept_output(session, rng):
    if session.outputs:
        for leaf in pytree.tree_leaves(session.outputs[-1]):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                leaf.detach().zero_()


@action(1)
def call_a_submodule(session, rng):
    linears = [m for m in session.model.modules() if type(m) is nn.Linear]
    module = rng.choice(linears)
    x = torch.ones(2, module.in_features, dtype=module.weight.dtype)
    return module(x)
