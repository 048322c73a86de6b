"""Actions that change a model: hooks, weights, states, parts, outputs."""

from __future__ import annotations

import copy

import torch
from attack.odd_uses.actions import action
from attack.odd_uses.comparison import attempt
from torch import nn
from torch.nn.modules import module as modules
from torch.utils import _pytree as pytree

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
