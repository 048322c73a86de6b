"""Odd uses of state: buffers and attributes that forward or the user changes."""

from __future__ import annotations

import functools

import torch
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import plain
from torch import nn


class Averages(nn.Module):
    """Assigns a new tensor to a buffer and to a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("ema", torch.zeros(8))
        self.h, self.count, self.log = None, 0, []

    def forward(self, x):
        y = self.inner(x)
        self.ema = self.ema * 0.5 + y.detach().mean(0)
        self.h = y.detach() if self.h is None else self.h + y.detach()
        self.count += 1
        self.log.append(self.count)
        return y + self.ema


@odd_use(Averages)
def forward_assigns_buffers_and_attributes(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows(seed)) for seed in range(4)]
    return made, model.ema, model.h, model.count, model.log


@odd_use(Averages)
def forward_assigns_while_training(model):
    made = []
    for seed in range(3):
        y = model(rows(seed))
        y.sum().backward()
        made.append(y)
    return made, model.ema, model.h, model.count, model.log


@odd_use(Averages)
def state_is_reset_between_calls(model):
    made = []
    with torch.no_grad():
        for turn in range(6):
            if turn % 2:
                model.h, model.ema = None, torch.ones(8)
            made.append(model(rows(turn)))
    return made, model.h


class Counts(nn.Module):
    """Changes buffers in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", torch.zeros(4, 8), persistent=False)
        self.scale = 1.0

    def forward(self, x):
        y = self.inner(x) * self.scale + self.last
        self.calls += 1
        self.last.copy_(y.detach())
        return y, self.calls.clone()


@odd_use(Counts)
def forward_changes_buffers_in_place(model):
    model.eval()
    buffer = model.last
    with torch.no_grad():
        made = [model(rows(seed)) for seed in range(4)]
    return made, model.last, model.last is buffer, buffer


@odd_use(Counts)
def buffers_are_replaced_between_calls(model):
    model.eval()
    made = []
    with torch.no_grad():
        for turn in range(5):
            made.append(model(rows(turn)))
            if turn == 1:
                model.last = torch.ones(4, 8)
            if turn == 2:
                model.calls = torch.tensor(100)
            if turn == 3:
                model.last.zero_()
    return made, model.last


@odd_use(Counts)
def plain_attribute_changes(model):
    model.eval()
    made = []
    with torch.no_grad():
        for scale in (1.0, 1.0, 2.0, 2.0, 0.0, -1):
            model.scale = scale
            made.append(model(rows()))
    return made


@odd_use(Counts)
def returned_buffer_is_the_buffer(model):
    class Both(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            self.inner(x)
            return self.inner.calls

    outer = Both(model)
    first, second = outer(rows()), outer(rows())
    return first is model.calls, first is second, first


class ReturnsState(nn.Module):
    """Returns a weight and a buffer as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, x):
        return self.inner(x), self.inner.weight, self.table, self.table[2:4]


@odd_use(ReturnsState)
def output_is_a_weight_or_a_buffer(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()) for _ in range(3)]
        same = [each[1] is model.inner.weight for each in made]
        same += [each[2] is model.table for each in made]
        made[-1][2].add_(1)
        made[-1][3].add_(10)
        made[-1][1].mul_(2)
        after = model(rows())
    return made, same, after, model.table


class Attributes(nn.Module):
    """Reads plain attributes of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.options = {"scale": 1.0, "names": ["a"]}
        self.offset = torch.zeros(8)
        self.function = torch.relu

    def forward(self, x):
        y = self.inner(x) * self.options["scale"] + self.offset
        return self.function(y) * len(self.options["names"])


@odd_use(Attributes)
def attributes_of_all_kinds_change(model):
    model.eval()
    made = []
    with torch.no_grad():
        made += [model(rows()), model(rows())]
        model.options["scale"] = 3.0
        made.append(model(rows()))
        model.options["names"].append("b")
        made.append(model(rows()))
        model.offset = torch.ones(8)
        made.append(model(rows()))
        model.offset.add_(1)
        made.append(model(rows()))
        model.function = torch.tanh
        made.append(model(rows()))
        model.inner.extra = 1
        made.append(model(rows()))
    return made


SCALE = 1.0
TABLE = torch.zeros(8)


class ReadsGlobals(nn.Module):
    """Reads variables of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x) * SCALE + TABLE


@odd_use(ReadsGlobals)
def global_variables_change(model):
    global SCALE, TABLE
    SCALE, TABLE = 1.0, torch.zeros(8)
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        SCALE = 2.0
        made.append(model(rows()))
        TABLE += 1
        made.append(model(rows()))
        TABLE = torch.full((8,), 5.0)
        made.append(model(rows()))
    return made


class WritesGlobals(nn.Module):
    """Counts its calls in a class attribute."""

    total = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        WritesGlobals.total += 1
        return self.inner(x) * WritesGlobals.total


@odd_use(WritesGlobals)
def class_attribute_is_counted_up(model):
    WritesGlobals.total = 0
    with torch.no_grad():
        return [model(rows()) for _ in range(4)], WritesGlobals.total


class Memoizes(nn.Module):
    """Caches a table by the length of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.tables = nn.Linear(8, 8), {}

    @staticmethod
    @functools.lru_cache
    def offset(count):
        return torch.full((count, 1), float(count))

    def forward(self, x):
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.arange(len(x), dtype=x.dtype)[:, None]
        return self.inner(x) + self.tables[len(x)] + self.offset(len(x))


@odd_use(Memoizes, warns="UserWarning")  # of TorchDynamo, about lru_cache
def tables_are_memoized_by_shape(model):
    with torch.no_grad():
        made = [model(rows(count=count)) for count in (4, 2, 4, 4, 3, 2, 2)]
    return made, model.tables


@odd_use(Memoizes, warns="UserWarning")  # of TorchDynamo, about lru_cache
def memoized_table_is_changed(model):
    Memoizes.offset.cache_clear()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        model.tables[4] += 1
        made.append(model(rows()))
        model.tables.clear()
        made.append(model(rows()))
    return made


@odd_use(plain)
def submodule_is_called_directly(model):
    model.eval()
    made = []
    with torch.no_grad():
        for seed in range(3):
            made += [model(rows(seed)), model[0](rows(seed)), model[:2](rows(seed))]
    y = model[2](torch.tanh(model[0](rows())))
    y.sum().backward()
    return made, y


@odd_use(plain)
def forward_is_called_directly(model):
    seen = []
    model.register_forward_hook(lambda *_: seen.append("hook"))
    made = [model.forward(rows()), model(rows()), type(model).forward(model, rows())]
    made[0].sum().backward()
    return made, seen


@odd_use(plain)
def forward_of_a_submodule_is_replaced(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        model[1].forward = lambda x: x * 2
        made += [model(rows()), model(rows())]
        del model[1].forward
        return [*made, model(rows())]


class Repeats(nn.Module):
    """Calls one submodule several times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.times = 2

    def forward(self, x):
        for _ in range(self.times):
            x = torch.tanh(self.norm(self.inner(x)))
        return x


@odd_use(Repeats)
def submodule_is_repeated(model):
    made = []
    for times in (2, 3, 1, 2):
        model.times = times
        y = model(rows())
        y.sum().backward()
        made.append(y)
    return made
