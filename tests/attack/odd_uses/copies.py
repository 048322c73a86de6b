"""Odd uses that copy, save or remove a placed model."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import mlp, plain
from torch import nn

REFUSAL = "cannot be copied"


@odd_use(mlp)
def state_dict_is_saved_and_loaded(model):
    model(rows())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    model(rows(1))
    file.seek(0)
    state = torch.load(file)
    model.load_state_dict(state)
    return model.eval()(rows()), state


@odd_use(plain)
def state_dict_aliases_the_weights(model):
    model.eval()
    with torch.no_grad():
        model(rows())
        state = model.state_dict()
        state["0.weight"].zero_()
        state["2.bias"] += 1
        made = model(rows())
    keep = model.state_dict(keep_vars=True)
    return made, keep["0.weight"] is model[0].weight, list(state), type(state).__name__


@odd_use(plain)
def state_dict_with_a_prefix(model):
    outer = nn.ModuleDict({"body": model, "head": nn.Linear(8, 2)})
    return list(outer.state_dict()), outer["head"](outer["body"](rows()))


@odd_use(mlp, refusal=REFUSAL)
def deep_copy(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        other = copy.deepcopy(model)
        other[0].weight.mul_(2)
        return made, other(rows()), model(rows())


@odd_use(plain, refusal=REFUSAL)
def deep_copy_trains_alone(model):
    other = copy.deepcopy(model)
    other(rows()).sum().backward()
    return [weight.grad for weight in model.parameters()], other[0].weight.grad


@odd_use(plain, refusal=REFUSAL)
def shallow_copy(model):
    other = copy.copy(model)
    with torch.no_grad():
        return model(rows()), other(rows()), other[0] is model[0]


@odd_use(plain, refusal=REFUSAL)
def pickled(model):
    model(rows())
    other = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        return other(rows()), model(rows())


@odd_use(plain, refusal=REFUSAL)
def whole_model_is_saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.no_grad():
        return torch.load(file, weights_only=False)(rows()), model(rows())


@odd_use(mlp)
def removed_and_used_on(model, runs):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
    same = runs.remove() is model
    made.append(model(rows()))
    y = model.train()(rows())
    y.sum().backward()
    other = copy.deepcopy(model)
    extra = set(vars(model)) - {"_compiled_call_impl"} - set(vars(mlp()))
    return made, same, y, other(rows()), sorted(extra), pickle.loads(pickle.dumps(model))(rows())


@odd_use(mlp)
def removed_and_hooks_remain(model, runs):
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append("hook"))
    model(rows())
    runs.remove()
    model(rows())
    counts = [len(module._forward_hooks) for module in model.modules()]
    return seen, counts, len(model._load_state_dict_post_hooks)


@odd_use(mlp)
def removed_and_placed_again(model, runs):
    model.eval()
    with torch.no_grad():
        made = [model(rows())]
        runs.remove()
        model[0].weight.mul_(2)
        model = runs.place_too(model)
        made += [model(rows()), model(rows())]
    return made


@odd_use(plain)
def recaptured_between_calls(model, runs):
    made = []
    for seed in range(4):
        with torch.no_grad():
            made.append(model(rows(seed)))
        runs.recapture()
        y = model(rows(seed))
        runs.recapture()
        y.sum().backward()
    return made


@odd_use(plain, refusal="already", must_refuse=True)
def placed_twice(model, runs):
    return runs.place_too(model)(rows())


@odd_use(plain)
def class_of_the_model_is_swapped(model):
    model.eval()

    class Doubled(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    with torch.no_grad():
        made = [model(rows()), model(rows())]
        model.__class__ = Doubled
        made += [model(rows()), model(rows())]
        model.__class__ = nn.Sequential
        return [*made, model(rows())]


@odd_use(plain)
def forward_of_the_class_is_patched(model):
    class Patched(nn.Module):
        def forward(self, x):
            return torch.tanh(x)

    model[1] = Patched()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        Patched.forward = lambda self, x: x * 3
        return made, model(rows()), model(rows())


# PyTorch's function modes, which place eager calls on GPUs, apply such a function twice.
@odd_use(plain, workers_only=True)
def functional_is_patched(model):
    model.eval()
    before = nn.functional.relu
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        nn.functional.relu = lambda x, inplace=False: before(x) + 1
        try:
            made += [model(rows()), model(rows())]
        finally:
            nn.functional.relu = before
        return [*made, model(rows())]
