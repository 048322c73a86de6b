"""Odd uses of weights: swapped, replaced, tied, parametrized, frozen, loaded, cast."""

from __future__ import annotations

import copy

import torch
from attack.odd_uses.comparison import attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import Branches, TiedWords, mlp, plain, words
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune


def three(model, change):
    """Two calls, the change, two calls; then a backward pass."""
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
    change()
    with torch.no_grad():
        made += [model(rows()), model(rows(1))]
    y = model.train()(rows())
    y.sum().backward()
    return [*made, y]


@odd_use(plain)
def data_of_a_weight_is_swapped(model):
    def change():
        model[0].weight.data = rows(5, 16)

    return three(model, change)


@odd_use(plain)
def data_of_a_weight_is_transposed(model):
    def change():
        model[4].weight.data = model[4].weight.data.t()

    return three(model, change), model[4].weight.stride()


@odd_use(plain)
def data_of_a_weight_is_changed_in_place(model):
    def change():
        model[0].weight.data.mul_(2)
        with torch.no_grad():
            model[2].bias.fill_(3)
            model[4].weight[0] = 0

    return three(model, change)


@odd_use(plain)
def weight_is_a_new_parameter(model):
    def change():
        model[0].weight = nn.Parameter(rows(5, 16))

    return three(model, change), model[0].weight.grad


@odd_use(plain)
def weight_is_replaced_in_each_call(model):
    made = []
    for seed in range(5):
        model[0].weight = nn.Parameter(rows(seed, 16))
        y = model(rows())
        y.sum().backward()
        made += [y, model[0].weight.grad]
    return made


@odd_use(plain)
def data_is_swapped_back_and_forth(model):
    """Averaged weights for evaluation."""
    own = [weight.data for weight in model.parameters()]
    average = [weight.data * 0.5 for weight in model.parameters()]
    made = []
    for turn in range(4):
        for weight, data in zip(model.parameters(), (own, average)[turn % 2], strict=True):
            weight.data = data
        with torch.no_grad():
            made.append(model(rows()))
        loss = model(rows()).square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
    return made, own, average


@odd_use(plain)
def shape_of_a_weight_changes(model):
    def change():
        model[0].weight = nn.Parameter(rows(5, 12))
        model[0].bias = nn.Parameter(torch.zeros(12))
        model[2].weight.data = rows(6, 8, 12)

    return three(model, change)


@odd_use(plain)
def bias_is_removed(model):
    def change():
        model[0].bias = None

    return three(model, change)


@odd_use(plain)
def load_state_dict_copies(model):
    other = plain()
    return three(model, lambda: model.load_state_dict(other.state_dict()))


@odd_use(plain)
def load_state_dict_assigns(model):
    other = plain()
    made = three(model, lambda: model.load_state_dict(other.state_dict(), assign=True))
    return made, [a.grad is None for a in model.parameters()]


@odd_use(plain)
def load_state_dict_of_a_part(model):
    def change():
        return model.load_state_dict({"0.weight": rows(3, 16), "x": rows()}, strict=False)

    return three(model, change), attempt(model.load_state_dict, {"0.weight": rows(3, 16)})


@odd_use(plain)
def load_state_dict_of_a_submodule(model):
    other = nn.Linear(8, 16)
    return three(model, lambda: model[0].load_state_dict(other.state_dict()))


@odd_use(plain)
def vector_to_parameters(model):
    def change():
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector * 0.5, model.parameters())

    return three(model, change)


@odd_use(plain)
def weights_are_made_views_of_one_tensor(model):
    """A flat buffer of all weights, as optimizers with sharding make."""
    weights = list(model.parameters())
    flat = torch.cat([weight.data.flatten() for weight in weights])

    def change():
        start = 0
        for weight in weights:
            weight.data = flat[start : start + weight.numel()].view_as(weight)
            start += weight.numel()

    made = three(model, change)
    flat.mul_(2)
    with torch.no_grad():
        return made, model(rows())


@odd_use(plain)
def reset_parameters(model):
    def change():
        torch.manual_seed(3)
        model.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)

    return three(model, change)


@odd_use(plain)
def init_in_place(model):
    def change():
        torch.manual_seed(3)
        nn.init.kaiming_normal_(model[0].weight)
        nn.init.zeros_(model[2].weight)

    return three(model, change)


@odd_use(plain)
def weight_norm(model):
    return three(model, lambda: parametrizations.weight_norm(model[0]))


@odd_use(plain)
def spectral_norm_in_training(model):
    model.train()
    made = [model(rows())]
    parametrizations.spectral_norm(model[2])
    for seed in range(3):
        y = model(rows(seed))
        y.sum().backward()
        made.append(y)
    return made


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@odd_use(plain)
def parametrization_comes_and_goes(model):
    made = three(
        model, lambda: parametrize.register_parametrization(model[4], "weight", Symmetric())
    )
    with parametrize.cached():
        made += [model(rows()), model(rows())]
    parametrize.remove_parametrizations(model[4], "weight")
    return made, model(rows())


@odd_use(plain)
def pruning(model):
    made = three(model, lambda: prune.l1_unstructured(model[0], "weight", amount=0.5))
    prune.remove(model[0], "weight")
    return made, model(rows())


@odd_use(TiedWords)
def tied_weights(model):
    made = []
    for seed in range(3):
        y = model(words(seed))
        y.square().mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
        made.append(y)
    return made, model.head.weight is model.words.weight, len(list(model.parameters()))


@odd_use(TiedWords)
def tied_weights_are_untied(model):
    model.eval()
    with torch.no_grad():
        made = [model(words()), model(words())]
        model.head.weight = nn.Parameter(model.head.weight.detach().clone() * 2)
        made += [model(words()), model(words())]
        model.head.weight = model.words.weight
        made += [model(words()), model(words())]
    return made


@odd_use(Branches)
def weights_are_tied_later(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
    model.right.weight = model.left.weight
    y = model.train()(rows())
    y["made"].sum().backward()
    return made, y, model.left.weight.grad


@odd_use(plain)
def weights_share_memory_without_being_one(model):
    def change():
        model[4].weight.data = model[2].weight.data[:, :8]

    made = three(model, change)
    with torch.no_grad():
        model[2].weight.zero_()
        return made, model(rows())


@odd_use(plain)
def weights_are_frozen_and_unfrozen(model):
    made = []
    for frozen in (False, True, False, True):
        model[0].requires_grad_(not frozen)
        model.zero_grad()
        y = model(rows())
        y.sum().backward()
        made += [y, [weight.grad is None for weight in model.parameters()]]
    return made


@odd_use(mlp)
def whole_model_is_frozen(model):
    model.train().requires_grad_(False)
    made = [model(rows(seed)) for seed in range(3)]
    x = rows().requires_grad_()
    model(x).sum().backward()
    return made, [each.requires_grad for each in made], x.grad


class LateBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        return y + self.offset if hasattr(self, "offset") else y


@odd_use(LateBuffer)
def buffer_is_registered_later(model):
    made = three(model, lambda: model.register_buffer("offset", torch.ones(8)))
    del model.offset
    made.append(model(rows()))
    model.register_parameter("offset", nn.Parameter(torch.full((8,), 3.0)))
    y = model(rows())
    y.sum().backward()
    return made, y


@odd_use(mlp)
def batch_norm_statistics_are_reset(model):
    model.train()
    model(rows())
    model[3].reset_running_stats()
    model(rows(1))
    model[3].momentum = None
    made = [model(rows(seed)) for seed in range(3)]
    model[3].momentum = 0.5
    made.append(model(rows(4)))
    model[3].track_running_stats = False
    return made, model(rows(5)), model.eval()(rows(6))


@odd_use(plain)
def gradient_is_assigned_by_hand(model):
    gradient = torch.ones(16, 8)
    model[0].weight.grad = gradient
    model(rows()).sum().backward()
    same = model[0].weight.grad is gradient
    model.zero_grad(set_to_none=False)
    model(rows()).sum().backward()
    return same, gradient


@odd_use(plain)
def names_and_identities_of_parameters(model):
    before = dict(model.named_parameters())
    model(rows()).sum().backward()
    with torch.no_grad():
        model(rows())
    after = dict(model.named_parameters())
    versions = [weight._version for weight in model.parameters()]
    return list(after), [before[name] is after[name] for name in before], versions


@odd_use(plain)
def parameters_are_ordinary(model):
    model(rows())
    weight = model[0].weight
    return (
        type(weight).__name__,
        isinstance(weight, nn.Parameter),
        weight.is_leaf,
        weight.stride(),
        weight.device.type,
        weight.is_contiguous(),
        weight.storage_offset(),
        weight.untyped_storage().nbytes(),
        weight.numpy(force=True),
        repr(weight),
    )


@odd_use(plain)
def repr_of_the_model(model):
    model(rows())
    return (
        repr(model),
        [name for name, _ in model.named_modules()],
        type(model).__name__,
        next(iter(model.named_children()))[0],
        isinstance(model, nn.Sequential),
        len(model),
    )


@odd_use(plain)
def deep_copies_of_weights_are_restored(model):
    best = copy.deepcopy(model.state_dict())
    for seed in range(3):
        model(rows(seed)).sum().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
    made = [model(rows())]
    model.load_state_dict(best)
    return made, model(rows())
