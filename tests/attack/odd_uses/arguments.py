"""Odd uses of arguments: kinds, orders, values, objects that forward changes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types

import numpy as np
import torch
from attack.odd_uses.comparison import attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import Recurrent, plain, words
from torch import nn


class Cached(nn.Module):
    """Stores its result in what it is passed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, cache=None):
        y = self.inner(x)
        if isinstance(cache, dict):
            y = y + cache.get("h", 0)
            cache["h"] = y
        elif isinstance(cache, list):
            cache.append(y)
            y = sum(cache)
        elif cache is not None:
            cache.h = y = y + cache.h
        return y


@odd_use(Cached)
def dictionary_argument_is_changed(model):
    model.eval()
    cache = {}
    with torch.no_grad():
        return [model(rows(seed), cache) for seed in range(4)], cache


@odd_use(Cached)
def list_argument_is_appended_to(model):
    model.eval()
    cache = []
    with torch.no_grad():
        return [model(rows(seed), cache=cache) for seed in range(4)], cache


@odd_use(Cached)
def object_argument_is_changed(model):
    cache = types.SimpleNamespace(h=torch.zeros(4, 8))
    with torch.no_grad():
        return [model(rows(seed), cache) for seed in range(4)], cache.h


@odd_use(Cached)
def fresh_caches_alternate(model):
    caches = [{}, {}, []]
    with torch.no_grad():
        made = [model(rows(turn), caches[turn % 3]) for turn in range(9)]
    return made, caches


class Keywords(nn.Module):
    """Takes any keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, **others):
        y = self.inner(x)
        return torch.cat([y, *others.values()], -1), list(others)


@odd_use(Keywords, example=lambda: (rows(),))
def keywords_come_in_two_orders(model):
    model.eval()
    a, b = rows(1), rows(2)
    with torch.no_grad():
        return [model(rows(), **each) for each in ({"b": b, "a": a}, {"a": a, "b": b}) * 2]


@odd_use(Keywords, example=lambda: (rows(),))
def keywords_come_and_go(model):
    with torch.no_grad():
        made = [model(rows()), model(rows(), a=rows(1)), model(rows(), b=rows(1))]
        return made, model(x=rows(), a=rows(2)), model(a=rows(2), x=rows())


class Positions(nn.Module):
    """Takes any number of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, *tensors):
        return sum(self.inner(x) * (at + 1) for at, x in enumerate(tensors)), len(tensors)


@odd_use(Positions)
def number_of_arguments_changes(model):
    with torch.no_grad():
        return [model(*(rows(seed) for seed in range(count))) for count in (1, 2, 3, 2, 1, 1)]


class Remembers(nn.Module):
    """Has a default argument that lives on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, sums=[]):  # noqa: B006 - that is the odd use
        sums.append(float(x.sum()))
        return self.inner(x) * len(sums)


@odd_use(Remembers)
def default_argument_is_changed(model):
    start = len(Remembers.forward.__defaults__[0])
    del Remembers.forward.__defaults__[0][:start]
    with torch.no_grad():
        return [model(rows(seed)) for seed in range(3)], list(Remembers.forward.__defaults__[0])


class Scales(nn.Module):
    """Its result depends on a plain value."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    @staticmethod
    def example():
        return rows(), 1

    def forward(self, x, value, flag=False):
        y = self.inner(x)
        if isinstance(value, str):
            return y * len(value), value.upper()
        if isinstance(value, frozenset | set):
            return y * sum(value), sorted(value)
        if isinstance(value, enum.Enum):
            return y * value.value, value
        if value is None:
            return -y, None
        return (y / value if flag else y * value), value


@odd_use(Scales)
def integer_changes_in_each_call(model):
    model.eval()
    with torch.no_grad():
        return [model(rows(), value) for value in (*range(-2, 12), 2**40, True, False)]


@odd_use(Scales)
def float_changes_in_each_call(model):
    with torch.no_grad():
        return [
            model(rows(), value)
            for value in (0.5, 1.5, 1, 1.0, float("inf"), float("nan"), float("nan"), 1e-320, 0.1)
        ]


@odd_use(Scales)
def zero_and_minus_zero(model):
    model.eval()
    with torch.no_grad():
        return [model(rows(), value, True)[0] for value in (0.0, 0.0, -0.0, -0.0, 0.0)]


@odd_use(Scales)
def one_and_true_are_told_apart(model):
    with torch.no_grad():
        return [model(rows(), value) for value in (1, 1, True, True, 1.0, 1.0, 1, np.float32(1))]


class Colour(enum.Enum):
    RED = 2
    BLUE = 3


@odd_use(Scales)
def strings_sets_enums_and_none(model):
    values = ("ab", "abc", {1, 2}, {1, 2}, frozenset({4}), Colour.RED, Colour.BLUE, None, "ab")
    with torch.no_grad():
        return [model(rows(), value) for value in values]


@odd_use(Scales)
def numpy_arguments(model):
    with torch.no_grad():
        return [model(rows(), value)[0] for value in (np.float64(2), np.int64(3), np.float32(0.1))]


@odd_use(Scales)
def tensor_takes_the_place_of_a_number(model):
    with torch.no_grad():
        values = (2, torch.tensor(2.0), torch.tensor(3.0), 2, torch.tensor([2.0]), torch.tensor(4))
        return [model(rows(), value) for value in values]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor | None = None
    scale: float = 1.0


Pair = collections.namedtuple("Pair", "x y")


class Structured(nn.Module):
    """Takes a nest of containers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, batch):
        if isinstance(batch, torch.Tensor):
            return self.inner(batch)
        if isinstance(batch, Batch):
            y = self.inner(batch.x) * batch.scale
            return Batch(y if batch.mask is None else y * batch.mask, batch.mask, batch.scale + 1)
        if isinstance(batch, Pair):
            return Pair(self.inner(batch.x), batch.y)
        if isinstance(batch, dict):
            return type(batch)((key, self.forward(value)) for key, value in batch.items())
        return type(batch)(self.forward(value) for value in batch)


@odd_use(Structured)
def dataclass_argument(model):
    with torch.no_grad():
        batches = (
            Batch(rows()),
            Batch(rows(1)),
            Batch(rows(), rows(2) > 0),
            Batch(rows(), None, 3.0),
        )
        return [model(batch) for batch in batches]


@odd_use(Structured)
def namedtuple_argument(model):
    with torch.no_grad():
        return [model(Pair(rows(seed), "y")) for seed in range(3)]


@odd_use(Structured)
def dictionary_subclasses(model):
    ordered = collections.OrderedDict([("b", rows(1)), ("a", rows(2))])
    swapped = collections.OrderedDict([("a", rows(1)), ("b", rows(2))])
    with torch.no_grad():
        made = [model(each) for each in (ordered, dict(ordered), swapped, dict(swapped), ordered)]
    return made, model([rows(), (rows(1), {"c": rows(2)})])


@odd_use(Structured)
def structure_changes_with_equal_leaves(model):
    a, b = rows(1), rows(2)
    with torch.no_grad():
        return [
            model(each) for each in ([a, b], (a, b), [a, [b]], {"a": a, "b": b}, {"b": a, "a": b})
        ]


@odd_use(Structured)
def empty_containers(model):
    with torch.no_grad():
        return [model(each) for each in ([], (), {}, [[]], [rows()], [])]


class Iterates(nn.Module):
    """Takes an iterator, which it uses up."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, batches):
        if isinstance(batches, torch.Tensor):
            return self.inner(batches)
        return [self.inner(x) for x in batches]


@odd_use(Iterates)
def generator_argument(model):
    made = []
    with torch.no_grad():
        for count in (1, 3, 2):
            batches = (rows(seed) for seed in range(count))
            made += [model(batches), list(batches)]
    return made


class Calls(nn.Module):
    """Takes a function."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, function=torch.tanh):
        return function(self.inner(x))


@odd_use(Calls)
def function_argument_changes(model):
    scale = [2.0]
    with torch.no_grad():
        functions = (
            torch.relu,
            torch.tanh,
            lambda y: y * scale[0],
            lambda y: y - scale[0],
            nn.ELU(),
        )
        made = [model(rows(), function) for function in functions]
        scale[0] = 5.0
        return made, model(rows(), functions[2]), model(rows(), functions[2])


class Casts(nn.Module):
    """Takes a dtype and a device."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, dtype=torch.float32, device="cpu"):
        return self.inner(x).to(dtype) + torch.ones(8, dtype=dtype, device=device)


@odd_use(Casts)
def dtype_and_device_arguments(model):
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float64)
    with torch.no_grad():
        made = [model(rows(), dtype) for dtype in dtypes]
        return made, model(rows(), device=torch.device("cpu"))


@odd_use(plain)
def call_without_a_batch(model):
    with torch.no_grad():
        return [model(rows()), model(rows()[0]), model(rows()[None]), model(rows()[0])]


@odd_use(plain)
def wrong_arguments_raise_as_before(model):
    made = [
        attempt(model),
        attempt(model, rows(), rows()),
        attempt(model, y=rows()),
        attempt(model, None),
        attempt(model, "text"),
        attempt(model, rows(width=5)),
        attempt(model, rows().long()),
        attempt(model, rows().double()),
    ]
    return made, model(rows())


@odd_use(Recurrent)
def state_argument_is_optional(model):
    with torch.no_grad():
        y, state = model(words())
        z, state = model(words(1), state)
        w, none = model(words(2))
        v, state = model(words(3), state=state)
    return y, z, w, v, none, state


class Keys(nn.Module):
    """Looks tensors up by keys that are not text."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, table=None):
        y = self.inner(x)
        return y if table is None else {key: y * value for key, value in table.items()}


@odd_use(Keys)
def dictionary_with_odd_keys(model):
    table = {1: rows(1), (2, "b"): rows(2), None: rows(3), 1.5: 2, True + 1: 3}
    with torch.no_grad():
        return model(rows(), table), model(rows(), dict(reversed(table.items()))), model(rows())
