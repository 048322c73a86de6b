"""Odd outputs: inputs and views returned, changed in place, fed back, of all kinds."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple

import torch
from attack.odd_uses.comparison import attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import plain
from torch import nn


class InPlace(nn.Module):
    """Changes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, out=None):
        y = self.inner(x)
        x.add_(1)
        x[0] = 0
        if out is not None:
            out.copy_(y)
            return out
        return y


@odd_use(InPlace)
def input_is_changed_in_place(model):
    model.eval()
    x, view = rows(), rows(1, 8)
    with torch.no_grad():
        made = [model(x) for _ in range(3)]
        made += [model(view[2:6]), model(view[::2])]
        return made, x, view, x._version > 0


@odd_use(InPlace)
def output_buffer_is_an_argument(model):
    x, out = rows(), torch.zeros(4, 8)
    with torch.no_grad():
        same = [model(x, out) is out for _ in range(3)]
        made = model(x, out=rows(2, 8)[2:6])
    return same, out, made, x


# On a GPU autograd saves a copy of the input, which is not changed: its gradients are right.
@odd_use(InPlace, gpu=False)
def input_is_changed_with_gradients(model):
    x = rows().requires_grad_() * 1
    made = attempt(lambda: model(x).sum().backward())
    y = model(rows())
    return made, attempt(lambda: y.sum().backward())


@odd_use(InPlace)
def aliased_inputs_are_changed(model):
    x = rows(count=8)
    with torch.no_grad():
        made = [model(x[:4], x[4:]), model(x[:4], x[2:6]), model(x[:4], x[:4])]
    return made, x


class Aliases(nn.Module):
    """Returns its input and views of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        return x, x[0], x.t(), y, y.view(-1), y, y.detach()


@odd_use(Aliases)
def outputs_alias_inputs_and_each_other(model):
    model.eval()
    found = []
    with torch.no_grad():
        for seed in range(3):
            x = rows(seed)
            made = model(x)
            found.append([made[0] is x, made[3] is made[5]])
            made[0].add_(1)
            made[1].mul_(2)
            made[2].sub_(3)
            made[3].add_(5)
            found.append((x, *made))
    return found


@odd_use(Aliases)
def views_of_outputs_with_gradients(model):
    x = rows().requires_grad_()
    made = model(x)
    (made[0].sum() + made[4].square().sum() + made[2][0].sum()).backward()
    return made[0] is x, x.grad, [each.requires_grad for each in made]


@odd_use(plain)
def outputs_are_changed_by_the_caller(model):
    model.eval()
    made = []
    with torch.no_grad():
        for seed in range(4):
            y = model(rows(seed))
            made.append(y.clone())
            y.zero_()
        return made, model(rows())


@odd_use(plain)
def outputs_stay_when_more_calls_follow(model):
    model.eval()
    with torch.no_grad():
        return [model(rows(seed)) for seed in range(20)]


@odd_use(plain)
def output_is_fed_back(model):
    model.eval()
    made, x = [], rows()
    with torch.no_grad():
        for _ in range(6):
            x = model(x)
            made.append(x)
    return made


@odd_use(plain)
def output_is_fed_back_with_gradients(model):
    x = rows().requires_grad_()
    y = x
    for _ in range(4):
        y = model(y)
    y.square().sum().backward()
    return y, x.grad


Out = namedtuple("Out", "y extra")


@dataclasses.dataclass
class Output:
    y: torch.Tensor
    loss: torch.Tensor | None = None
    names: tuple[str, ...] = ("a",)


class ModelOutput(OrderedDict):
    """Reads entries as attributes, as outputs of transformers do."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Returns(nn.Module):
    """Returns what it is told to."""

    @staticmethod
    def example():
        return rows(), "tensor"

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, kind):
        y = self.inner(x)
        match kind:
            case "namedtuple":
                return Out(y, {"n": 1})
            case "dataclass":
                return Output(y, y.sum())
            case "model output":
                return ModelOutput(logits=y, hidden=(y * 2, None))
            case "none":
                return None
            case "empty":
                return ()
            case "list":
                return [y, [y.sum(), None, "text", 3, 2.5, True]]
            case "dict":
                return {"b": y, "a": y + 1, 3: [y]}
            case "generator":
                return (y * at for at in range(3))
            case "set":
                return {1, 2}
            case "size":
                return y.size(), y.dtype, y.device.type
            case "torch output":
                return torch.topk(y, 2)
        return y


@odd_use(Returns)
def outputs_of_all_kinds(model):
    kinds = ("namedtuple", "dataclass", "model output", "none", "empty", "list", "dict", "set")
    with torch.no_grad():
        made = [model(rows(), kind) for kind in kinds for _ in range(2)]
        made += [model(rows(), "size"), tuple(model(rows(), "torch output"))]
        return made, list(model(rows(), "generator")), model(rows(), "model output").logits


@odd_use(Returns)
def outputs_of_all_kinds_with_gradients(model):
    made = []
    for kind in ("namedtuple", "dataclass", "model output"):
        y = model(rows(), kind)
        first = y.logits if kind == "model output" else y.y
        first.sum().backward()
        made.append(first)
    return made, type(model(rows(), "torch output")).__name__
