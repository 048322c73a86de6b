"""Odd uses of parts: replaced, appended, removed, wrapped."""

from __future__ import annotations

import torch
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import plain
from attack.odd_uses.weights import three
from torch import nn


@odd_use(plain)
def submodule_is_replaced(model):
    def change():
        model[1] = nn.Sigmoid()
        model[2] = nn.Linear(16, 8)

    return three(model, change)


@odd_use(plain)
def submodule_becomes_an_identity(model):
    def change():
        model[4] = nn.Identity()

    return three(model, change)


@odd_use(plain)
def layer_is_appended(model):
    return three(model, lambda: model.append(nn.Linear(8, 3)))


@odd_use(plain)
def layer_is_inserted_and_removed(model):
    made = three(model, lambda: model.insert(1, nn.Linear(16, 16)))
    del model[1]
    return made, model(rows())


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.scales = nn.ParameterList(torch.ones(1) for _ in range(3))

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales, strict=False):
            x = torch.tanh(layer(x) * scale)
        return x


@odd_use(Layers)
def module_list_changes(model):
    made = three(model, lambda: model.layers.pop(1))
    model.layers.append(nn.Linear(8, 8))
    model.scales.append(nn.Parameter(torch.full((1,), 2.0)))
    made.append(model(rows()))
    model.layers[0], model.layers[1] = model.layers[1], model.layers[0]
    return made, model(rows())


@odd_use(plain)
def adapter_is_wrapped_around_a_layer(model):
    """A low-rank adapter in place of a layer, as adapters are injected."""

    class Adapter(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 2, bias=False)
            self.up = nn.Linear(2, base.out_features, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    def change():
        torch.manual_seed(5)
        model[2] = Adapter(model[2])

    return three(model, change)
