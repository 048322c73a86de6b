"""Odd uses of hooks: forward, backward, global, on tensors and on weights."""

from __future__ import annotations

import torch
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import Branches, mlp, plain
from torch import nn
from torch.nn.modules import module as modules


@odd_use(plain)
def features_are_read_by_a_forward_hook(model):
    model.eval()
    seen = []
    model[1].register_forward_hook(lambda _m, _args, y: seen.append(y.detach().clone()))
    with torch.no_grad():
        made = [model(rows(seed)) for seed in range(4)]
    return made, seen, [type(each).__name__ for each in seen]


@odd_use(plain)
def hook_is_added_after_calls(model):
    model.eval()
    seen = []
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        model[2].register_forward_hook(lambda _m, args, y: seen.append((args[0].sum(), y.sum())))
        made += [model(rows(seed)) for seed in range(3)]
    return made, seen


@odd_use(plain)
def hook_is_replaced(model):
    model.eval()
    with torch.no_grad():
        handle = model[1].register_forward_hook(lambda _m, _args, y: y * 0)
        made = [model(rows()), model(rows())]
        handle.remove()
        model[1].register_forward_hook(lambda _m, _args, y: y * 0 + 7)
        made += [model(rows()), model(rows())]
    return made


@odd_use(plain)
def hook_is_removed(model):
    model.eval()
    with torch.no_grad():
        handle = model[1].register_forward_hook(lambda _m, _args, y: y + 1)
        made = [model(rows()), model(rows())]
        handle.remove()
        return [*made, model(rows()), model(rows())]


@odd_use(plain)
def hook_changes_what_it_does(model):
    model.eval()
    scale = [1.0]
    model[1].register_forward_hook(lambda _m, _args, y: y * scale[0])
    made = []
    with torch.no_grad():
        for value in (1.0, 2.0, 2.0, -0.5):
            scale[0] = value
            made.append(model(rows()))
    return made


@odd_use(plain)
def pre_hook_changes_the_input(model):
    model.eval()
    made = [model(rows()), model(rows())]
    model[2].register_forward_pre_hook(lambda _m, args: (args[0] * 3,))
    return made, model(rows()), model(rows(1))


@odd_use(Branches)
def hooks_on_the_model_itself(model):
    model.eval()
    seen = []
    model.register_forward_pre_hook(
        lambda _m, args: (seen.append(args[0].sum()), (args[0] + 1,))[1]
    )
    model.register_forward_hook(lambda _m, _args, y: {**y, "extra": y["sum"] * 2})
    return [model(rows(seed)) for seed in range(3)], seen


@odd_use(plain)
def hook_with_keyword_arguments(model):
    seen = []

    def hook(_module, args, kwargs, output):
        seen.append((len(args), sorted(kwargs), output.shape))

    model[0].register_forward_hook(hook, with_kwargs=True)
    model.register_forward_hook(hook, with_kwargs=True)
    model(rows())
    model(input=rows())
    return seen


@odd_use(plain)
def hook_that_is_always_called(model):
    seen = []
    model.register_forward_hook(lambda *_: seen.append("called"), always_call=True)
    model(rows())
    try:
        model(rows(width=3))
    except RuntimeError:
        seen.append("raised")
    return seen, model(rows())


@odd_use(plain)
def global_forward_hook(model):
    model.eval()
    seen = []
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        handle = modules.register_module_forward_hook(
            lambda module, _args, _y: seen.append(type(module).__name__)
        )
        try:
            made += [model(rows()), model(rows())]
        finally:
            handle.remove()
    return made, seen, model(rows())


@odd_use(plain)
def global_forward_hook_changes_outputs(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        handle = modules.register_module_forward_hook(
            lambda module, _args, y: y * 2 if isinstance(module, nn.Tanh) else None
        )
        try:
            made += [model(rows()), model(rows())]
        finally:
            handle.remove()
    return made, model(rows())


@odd_use(plain)
def global_pre_hook(model):
    seen = []
    handle = modules.register_module_forward_pre_hook(
        lambda module, args: seen.append((type(module).__name__, args[0].shape))
    )
    try:
        model(rows())
        model(rows(count=3))
    finally:
        handle.remove()
    return seen


@odd_use(plain)
def global_backward_hook(model):
    model(rows()).sum().backward()
    seen = []
    handle = modules.register_module_full_backward_hook(
        lambda module, _inputs, outputs: seen.append((type(module).__name__, outputs[0].sum()))
    )
    try:
        model(rows()).sum().backward()
    finally:
        handle.remove()
    return seen


@odd_use(plain)
def full_backward_hooks(model):
    seen = []
    for index in (0, 2):
        model[index].register_full_backward_hook(
            lambda module, inputs, outputs: seen.append(
                (module.in_features, *(g for g in (*inputs, *outputs) if g is not None))
            )
        )
    for seed in range(2):
        model(rows(seed).requires_grad_()).sum().backward()
    return seen


@odd_use(plain)
def full_backward_hook_changes_gradients(model):
    model(rows()).sum().backward()
    model[2].register_full_backward_hook(lambda _m, inputs, _outputs: (inputs[0] * 0.5,))
    model[4].register_full_backward_pre_hook(lambda _m, outputs: (outputs[0] * 2,))
    model(rows()).sum().backward()


@odd_use(plain)
def tensor_hook_on_a_weight(model):
    seen = []
    model[0].weight.register_hook(lambda gradient: seen.append(gradient.sum()) or gradient * 0)
    for seed in range(2):
        model(rows(seed)).sum().backward()
    return seen


@odd_use(plain)
def tensor_hook_on_a_weight_after_calls(model):
    model(rows()).sum().backward()
    model.zero_grad()
    handle = model[2].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    model(rows()).sum().backward()
    first = model[2].weight.grad.clone()
    handle.remove()
    model(rows()).sum().backward()
    return first


@odd_use(plain)
def hook_after_the_gradient_is_accumulated(model):
    seen = []
    for name, weight in model.named_parameters():
        weight.register_post_accumulate_grad_hook(
            lambda each, name=name: seen.append((name, each.grad.sum()))
        )
    model(rows()).sum().backward()
    model(rows(1)).sum().backward()
    return sorted(seen, key=lambda item: item[0])


@odd_use(plain)
def optimizer_in_the_backward_pass(model):
    """Each weight is updated as soon as its gradient is there, which frees it."""

    def update(weight):
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)
    made = []
    for seed in range(3):
        loss = model(rows(seed)).square().mean()
        loss.backward()
        made.append(loss)
    return made


@odd_use(plain)
def tensor_hook_on_the_output(model):
    seen = []
    y = model(rows())
    y.register_hook(lambda gradient: seen.append(gradient.clone()))
    y.retain_grad()
    y.square().sum().backward()
    return seen, y.grad


@odd_use(plain)
def tensor_hook_on_the_input(model):
    seen = []
    x = rows().requires_grad_()
    x.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    model(x).sum().backward()
    return seen, x.grad


@odd_use(plain)
def node_hook_of_the_grad_accumulator(model):
    seen = []
    weight = model[0].weight
    accumulator = weight.view_as(weight).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: seen.append("accumulated"))
    for seed in range(2):
        model(rows(seed)).sum().backward()
    return seen


class HooksInside(nn.Module):
    """Registers a hook on a tensor inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.seen = []

    def forward(self, x):
        y = self.first(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: self.seen.append(gradient.detach().clone()))
        return self.last(torch.tanh(y))


@odd_use(HooksInside)
def tensor_hook_is_registered_in_forward(model):
    for seed in range(3):
        model(rows(seed)).sum().backward()
    with torch.no_grad():
        model(rows())
    return model.seen


class RetainsInside(nn.Module):
    """Stores an activation that retains its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        self.activation = self.first(x)
        self.activation.retain_grad()
        return self.last(torch.relu(self.activation))


@odd_use(RetainsInside)
def stored_activation_retains_its_gradient(model):
    """Grad-CAM."""
    made = []
    for seed in range(3):
        model(rows(seed))[:, 0].sum().backward()
        made.append((model.activation, model.activation.grad))
    return made


@odd_use(mlp)
def hook_on_a_dropout_sees_its_mask(model):
    seen = []
    model[2].register_forward_hook(lambda _m, _args, y: seen.append((y == 0).sum().item()))
    for seed in range(3):
        model(rows(seed))
    return seen


@odd_use(plain)
def saved_tensor_hooks(model):
    packed = []

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = model(rows())
    y.sum().backward()
    return bool(packed)


@odd_use(plain)
def saved_tensors_on_the_host(model):
    with torch.autograd.graph.save_on_cpu():
        y = model(rows())
    y.sum().backward()
    return y


@odd_use(plain)
def state_dict_hooks(model):
    calls = []
    model.register_state_dict_post_hook(lambda _m, state, *_: state.update(extra=torch.ones(1)))
    model.register_load_state_dict_pre_hook(lambda _m, state, *_: state.pop("extra", None))
    model.register_load_state_dict_post_hook(lambda *_: calls.append("loaded"))
    model(rows())
    state = {name: value + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return calls, model(rows()), list(state)
