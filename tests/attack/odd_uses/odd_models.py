"""Odd models: how they name, make, share and compute their weights and parts."""

from __future__ import annotations

import functools
import inspect

import torch
from attack.odd_uses.comparison import attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import conv, images, one_text, plain, words
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval


def used(model, *batches):
    """Calls without and with gradients."""
    made = []
    for x in batches or (rows(), rows(), rows(1), rows(2, 3)):
        with torch.no_grad():
            made.append(model(x))
    for x in (batches or (rows(), rows(1)))[:2]:
        y = model(x)
        y = y[0] if isinstance(y, tuple) else y
        y.sum().backward()
        made.append(y)
    return made


class OddParameters(nn.Module):
    """Parameters without dimensions, elements, order or gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 8))
        self.strided = nn.Parameter(rows(1, 8).t())
        self.expanded = nn.Parameter(torch.ones(1, 8).expand(8, 8), requires_grad=False)
        self.whole = nn.Parameter(torch.arange(8), requires_grad=False)
        self.register_parameter("missing", None)
        self.register_buffer("nothing", None)
        self.register_buffer("mask", torch.tensor([True, False] * 4))

    def forward(self, x):
        y = self.inner(x) * self.scalar @ self.strided + self.expanded[0] + self.whole
        return torch.cat((y, self.empty)) * self.mask


@odd_use(OddParameters)
def odd_parameters(model):
    return used(model), model.strided.grad.stride(), model.expanded.stride()


class SharesParts(nn.Module):
    """One weight, buffer and module under several names; a buffer that is a view of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again, self.last = self.first, nn.Linear(8, 8)
        self.last.bias = self.first.bias
        self.register_buffer("view", self.last.weight.data[0])
        self.register_buffer("other", self.view)
        self.parts = [self.last.weight]

    def forward(self, x):
        y = self.again(torch.tanh(self.first(x))) + self.view
        return self.last(y) + functional.linear(x, self.parts[0]) + self.other


@odd_use(SharesParts, gpu=False)  # a view of a weight stays behind, as `model.to("cuda")` has it
def parts_are_shared(model):
    made = used(model)
    with torch.no_grad():
        model.last.weight.mul_(2)
        made += [model(rows()), model.view, model.parts[0] is model.last.weight]
        model.view.zero_()
        made.append(model(rows()))
    return made


class Hypernetwork(nn.Module):
    """Computes the weights of a layer in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.make = nn.Parameter(rows(1, 1, 4)), nn.Linear(4, 64)

    @property
    def weight(self):
        return self.make(self.code).view(8, 8)

    def forward(self, x):
        return functional.linear(x, self.weight)


@odd_use(Hypernetwork)
def weights_are_computed(model):
    return used(model)


class Dispatches(nn.Module):
    """Chooses a part by a name."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(8, 8) for name in "abc"})
        self.default = "a"

    def forward(self, x, name=None):
        return self.parts[name or self.default](x)


@odd_use(Dispatches)
def part_is_chosen_by_a_name(model):
    with torch.no_grad():
        made = [model(rows(), name) for name in ("a", "b", "a", "c", None, "b")]
        model.default = "c"
        made.append(model(rows()))
    model(rows(), "b").sum().backward()
    return made, attempt(model, rows(), "d"), [w.grad is None for w in model.parameters()]


class OurNames(nn.Module):
    """Arguments with names that a wrapper might use itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, args=None, kwargs=None, model=None, plan=None, forward=None, fn=None):
        y = self.inner(x)
        for at, each in enumerate((args, kwargs, model, plan, forward, fn)):
            y = y if each is None else y + each * (at + 1)
        return y


@odd_use(OurNames)
def arguments_with_our_names(model):
    names = ("args", "kwargs", "model", "plan", "forward", "fn")
    with torch.no_grad():
        made = [model(rows(), **{name: rows(2)}) for name in names]
        return made, model(rows(), fn=1.0, args=2.0), str(inspect.signature(model.forward))


class NamedPlaced(nn.Module):
    """Has a part with the name of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.placed, self.executor = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.executor(self.placed(x))


@odd_use(NamedPlaced, refusal="has an attribute 'placed' of its own", must_refuse=True)
def part_has_the_name_of_ours(model):
    return used(model)


class OwnCall(nn.Module):
    """Overrides what calls it and how attributes are read."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(8, 8), 0

    def __call__(self, x, scale=1.0):
        self.calls += 1
        return super().__call__(x) * scale

    def __getattr__(self, name):
        return 3.0 if name == "magic" else super().__getattr__(name)

    def forward(self, x):
        return self.inner(x) * self.magic


@odd_use(OwnCall)
def own_call_and_attributes(model):
    made = used(model)
    return made, model(rows(), scale=2.0), model.calls, attempt(lambda: model.nothing)


@odd_use(plain)
def scripted_part(model):
    made = [model(rows())]
    model[1] = torch.jit.script(nn.Tanh())
    return made, used(model)


@odd_use(plain)
def forward_is_replaced_after_the_plan(model):
    made = [model(rows()), model(rows())]
    before = model.forward
    model.forward = lambda x: before(x) * 2
    made += used(model)
    model.forward = before
    return made, model(rows())


@odd_use(plain)
def attributes_are_set_and_deleted(model):
    made = [model(rows())]
    model.note, model.table = "text", torch.ones(3)
    model.extra = nn.Linear(2, 2)
    del model.extra
    del model.note
    return made, hasattr(model, "note"), model.table, attempt(model, rows())


@odd_use(plain)
def partial_and_bound_calls(model):
    calls = functools.partial(model), model.__call__, model.forward, lambda x: model(input=x)
    with torch.no_grad():
        return [call(rows(seed)) for seed, call in enumerate(calls * 2)]


@odd_use(conv, example=images)
def batch_norm_is_folded_into_a_convolution(model):
    model.eval()
    x = images()[0]
    with torch.no_grad():
        made = [model(x), model(x)]
        model[0] = fuse_conv_bn_eval(model[0], model[1])
        model[1] = nn.Identity()
        return [*made, model(x), model(x)]


class Library(nn.Module):
    """Uses ops that a library defines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = doubled(self.first(x))
        opaque_add(y, 1.0)
        return self.last(y)


@torch.library.custom_op("odd_uses::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


doubled.register_autograd(lambda ctx, gradient: gradient * 2)


@torch.library.custom_op("odd_uses::opaque_add", mutates_args=("x",))
def opaque_add(x: torch.Tensor, value: float) -> None:
    x.detach().add_(value)


@odd_use(Library)
def ops_of_a_library(model):
    with torch.no_grad():
        return [model(rows(seed)) for seed in range(4)]


class Encoder(nn.Module):
    """PyTorch's own encoder, which has a fast path in eval mode."""

    example = staticmethod(one_text)

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.words, self.layers = nn.Embedding(11, 8), nn.TransformerEncoder(layer, 2)

    def forward(self, x, mask=None):
        return self.layers(self.words(x), src_key_padding_mask=mask)


@odd_use(Encoder, tolerance=1e-6)
def fast_path_of_an_encoder(model):
    made = []
    mask = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    for training in (False, True, False):
        model.train(training)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):  # padding has no meaning, and its rows no value
                made += [model(words()), model(words(), mask)[~mask]]
    model.train()(words()).sum().backward()
    return made
