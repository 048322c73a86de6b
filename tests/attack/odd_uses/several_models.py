"""Odd uses of several models: nested, sharing weights, many of one class, many shapes."""

from __future__ import annotations

import torch
from attack.odd_uses.harness import odd_use, rows, seed_all
from attack.odd_uses.networks import Attention, Branches, Recurrent, mlp, plain, words
from torch import nn


def other(build=plain, seed=5):
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    made = build()
    torch.set_rng_state(state)
    return made


@odd_use(plain)
def two_placed_models_in_a_row(model, runs):
    second = runs.place_too(other(Branches))
    made = []
    for seed in range(3):
        y = second(model(rows(seed)))["made"]
        y.sum().backward()
        made.append(y)
    return made, second.left.weight.grad


@odd_use(plain)
def placed_model_inside_another_model(model):
    outer = nn.Sequential(nn.Linear(8, 8), model, nn.Dropout(0.5), nn.Linear(8, 2))
    made = []
    for turn in range(4):
        outer.train(turn % 2 == 0)
        y = outer(rows(turn))
        made.append(y)
    outer.train()(rows()).sum().backward()
    return made, list(outer.state_dict()), outer[0].weight.grad


@odd_use(plain)
def placed_model_inside_a_placed_model(model, runs):
    outer = runs.place_too(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    outer.append(model)
    made = []
    for seed in range(3):
        y = outer(rows(seed))
        y.sum().backward()
        made.append(y)
    with torch.no_grad():
        outer.eval()
        made += [outer(rows()), outer(rows()), model(rows())]
    return made


@odd_use(plain)
def submodule_is_placed_by_itself(model, runs):
    inner = runs.place_too(other(lambda: nn.Sequential(nn.Linear(16, 8))), rows(width=16))
    model[2] = inner
    made = []
    for seed in range(3):
        y = model(rows(seed))
        y.sum().backward()
        made.append(y)
    return made, inner[0].weight.grad


@odd_use(plain)
def placed_models_share_a_weight(model, runs):
    second = other(plain)
    second[0].weight = model[0].weight
    second = runs.place_too(second)
    optimizer = torch.optim.SGD([*model.parameters(), *second.parameters()], lr=0.1)
    made = []
    for seed in range(3):
        optimizer.zero_grad()
        loss = model(rows(seed)).square().mean() + second(rows(seed)).square().mean()
        loss.backward()
        optimizer.step()
        made.append(loss)
    model.eval(), second.eval()
    with torch.no_grad():
        made += [model(rows()), second(rows()), model(rows()), second(rows())]
    return made, second[0].weight is model[0].weight


@odd_use(plain)
def placed_models_share_a_module(model, runs):
    second = other(plain)
    second[2] = model[2]
    second = runs.place_too(second)
    model.eval(), second.eval()
    made = []
    with torch.no_grad():
        for _ in range(2):
            made += [model(rows()), second(rows())]
            model[2].weight.mul_(2)
    return made


@odd_use(plain)
def distillation(model, runs):
    """A frozen placed teacher and a placed student."""
    teacher = runs.place_too(other(plain)).eval().requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    made = []
    for seed in range(4):
        with torch.no_grad():
            target = teacher(rows(seed))
        loss = (model(rows(seed)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss)
    return made


@odd_use(mlp)
def generator_and_discriminator(model, runs):
    judge = runs.place_too(
        other(lambda: nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 1))), rows(width=4)
    )
    first = torch.optim.Adam(model.parameters(), lr=0.01)
    second = torch.optim.Adam(judge.parameters(), lr=0.01)
    made = []
    for seed in range(3):
        fake = model(rows(seed))
        second.zero_grad()
        loss = judge(fake.detach()).mean() - judge(rows(seed + 9, width=4)).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        judge.requires_grad_(False)
        judge(fake).mean().neg().backward()
        judge.requires_grad_(True)
        first.step()
        made.append(loss)
    return made, dict(judge.state_dict())


@odd_use(plain, slow=True)
def many_models_of_one_class(model, runs):
    """More than PyTorch compiles for one piece of code."""
    models = [model]
    for seed in range(12):
        seed_all(seed)
        models.append(runs.place_too(plain()))
    made = []
    for each in models:
        each.eval()
        with torch.no_grad():
            made += [each(rows()), each(rows())]
        each.train()
        y = each(rows())
        y.sum().backward()
        made += [y, each[0].weight.grad]
    return made


class Widths(nn.Module):
    """One class, many widths."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


@odd_use(Widths, slow=True)
def many_widths_of_one_class(model, runs):
    made = []
    for width in range(2, 16):
        torch.manual_seed(width)
        each = runs.place_too(Widths(width))
        y = each(rows())
        y.sum().backward()
        with torch.no_grad():
            made += [y, each.first.weight.grad, each(rows(1, 3))]
    return made, model(rows())


@odd_use(plain)
def many_batch_sizes(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows(count=count)) for count in range(1, 15) for _ in range(2)]
    model.train()
    for count in range(1, 12):
        y = model(rows(count=count))
        y.sum().backward()
        made.append(y)
    return made


@odd_use(Attention)
def many_lengths(model):
    model.eval()
    with torch.no_grad():
        made = [model(words(count, 1 + count % 3, length=count)) for count in range(1, 15)]
        made += [model(words(count, length=count)) for count in (3, 7, 3, 7)]
    model.train()
    for length in (1, 5, 9, 2):
        y = model(words(length=length))
        y.sum().backward()
        made.append(y)
    return made


@odd_use(plain)
def many_ranks(model):
    x = rows(count=24)
    shapes = ((24, 8), (4, 6, 8), (2, 3, 4, 8), (8,), (1, 1, 24, 8), (2, 2, 2, 3, 8))
    model.eval()
    with torch.no_grad():
        return [model(x[0] if s == (8,) else x.view(s)) for s in shapes for _ in range(2)]


@odd_use(Recurrent)
def many_lengths_of_a_recurrent_network(model):
    made, state = [], None
    for length in (6, 1, 1, 1, 3, 9, 1):
        y, state = model(words(length, length=length), state)
        state = tuple(each.detach() for each in state)
        made += [y, *state]
    return made


class Gru(nn.Module):
    example = staticmethod(lambda: (torch.randn(3, 4, 8),))

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, 2, dropout=0.5, bidirectional=True)
        self.cell = nn.LSTMCell(16, 8)

    def forward(self, x):
        if isinstance(x, torch.Tensor):
            y, state = self.gru(x)
        else:
            packed, state = self.gru(x)
            y, _ = nn.utils.rnn.pad_packed_sequence(packed)
        carry = None
        for step in y:
            carry = self.cell(step, carry)
        return y, state, carry[0]


@odd_use(Gru)
def recurrent_layers_and_packed_sequences(model):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 3, 8, generator=generator)
    made = []
    for lengths in ([5, 3, 1], [4, 4, 2]):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths))
        y = model(packed)
        y[2].sum().backward()
        made.append(y)
    model.eval()
    with torch.no_grad():
        made += [model(x), model(x), model(x[:2])]
    return made


@odd_use(mlp)
def models_are_dropped_and_made_again(model, runs):
    made = []
    for seed in range(4):
        torch.manual_seed(seed)
        each = runs.place_too(Branches())
        with torch.no_grad():
            made += [each(rows()), each.eval()(rows())]
        del each
    return made, model.eval()(rows())
