"""Odd forwards: they train, keep graphs, go round autograd, leave parts unused."""

from __future__ import annotations

import gc
import weakref

import torch
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import images, plain
from torch import nn
from torch.nn import functional


class StepsItself(nn.Module):
    """Trains itself in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        with torch.enable_grad():
            loss = self.inner(x).square().mean()
            loss.backward()
        with torch.no_grad():
            for weight in self.parameters():
                weight -= 0.1 * weight.grad
                weight.grad = None
        return loss.detach()


@odd_use(StepsItself)
def forward_trains_the_model(model):
    made = [model(rows(seed)) for seed in range(3)]
    with torch.no_grad():
        return made, model(rows())


class KeepsGraph(nn.Module):
    """Keeps a hidden state with its gradients from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.h = nn.GRUCell(8, 8), None

    def forward(self, x):
        self.h = self.cell(x, self.h)
        return self.h


# Gradients of a weight are summed call by call, not op by op.
@odd_use(KeepsGraph, tolerance=1e-6)
def hidden_state_keeps_its_gradients(model):
    outputs = [model(rows(seed)) for seed in range(3)]
    sum(each.square().sum() for each in outputs).backward()
    model.h = model.h.detach()
    model(rows()).sum().backward()
    return outputs, model.h


class TouchesData(nn.Module):
    """Goes round autograd and changes flags inside forward.

    PyTorch's export ends the interpreter for it, so its plan is made by names.
    """

    is_exportable = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        self.inner.bias.data.add_(1)
        x.data.mul_(2)
        y = self.inner(x)
        z = y.detach().clone().requires_grad_()
        return y, z, z.requires_grad


@odd_use(TouchesData, isolated=True)
def forward_goes_round_autograd(model):
    made = []
    for seed in range(3):
        x = rows(seed)
        y, *others = model(x)
        y.sum().backward()
        made += [y, others, x]
    with torch.no_grad():
        return made, model(rows(count=2))


class TakesOwnBuffer(nn.Module):
    """Changes a buffer of which a view may be its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("store", torch.ones(6, 8))

    def forward(self, x):
        self.store.add_(1)
        return self.inner(x) + self.store[:1]


@odd_use(TakesOwnBuffer)
def argument_is_a_view_of_a_buffer(model):
    with torch.no_grad():
        made = [model(rows()), model(model.store[:4]), model(model.store[2:]), model(model.store)]
    return made, model.store


@odd_use(plain)
def placed_model_is_freed(model, runs):
    other = runs.place_too(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    with torch.no_grad():
        made = [other(rows()), other(rows())]
    other(rows()).sum().backward()
    found = weakref.ref(other)
    del other
    gc.collect()
    return made, found() is None


@odd_use(plain)
def profiler(model):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.profiler.record_function("forward"):
            y = model(rows())
        y.sum().backward()
    names = {event.key for event in profile.key_averages()}
    return y, "forward" in names


@odd_use(plain)
def strides_of_gradients(model):
    model[0].weight.data = rows(1, 8, 16).t()
    model[2].weight.data = torch.empty_strided((8, 16), (1, 8)).copy_(rows(2, 8, 16))
    for seed in range(2):
        model(rows(seed)).square().sum().backward()
    return [weight.grad.stride() for weight in model.parameters()]


@odd_use(plain)
def backward_under_other_modes(model):
    made = []
    for turn in range(3):
        loss = model(rows(turn)).square().sum()
        if turn == 0:
            with torch.no_grad():
                loss.backward()
        else:  # under autocast a compiled backward pass is more precise
            model.eval()
            loss.backward()
        made.append(loss)
    return made


@odd_use(plain)
def matmul_precision_changes(model):
    before = torch.get_float32_matmul_precision()
    made = [model(rows()), model(rows())]
    torch.set_float32_matmul_precision("medium")
    try:
        made.append(model(rows()))
    finally:
        torch.set_float32_matmul_precision(before)
    return made


class UnusedParts(nn.Module):
    """Parts that no output needs, or one only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, both=True):
        return (self.first(x), self.second(x)) if both else (self.first(x), None)


@odd_use(UnusedParts)
def gradients_of_unused_parts_are_none(model):
    made = []
    for turn in range(4):
        model.zero_grad()
        y, z = model(rows(turn), turn != 2)
        (z if turn == 1 else y).sum().backward()
        made.append([weight.grad is None for weight in model.parameters()])
    return made


class Resizes(nn.Module):
    """Resizes images in many ways; AOTAutograd has other implementations of all of them."""

    example = staticmethod(images)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x):
        y = self.first(x)
        made = [functional.interpolate(y, size=(9, 7), mode=mode) for mode in MODES]
        y = y.float()
        made += [functional.interpolate(y, (9, 7), mode=mode, antialias=True) for mode in SMOOTH]
        y = self.last(sum(made).transpose(2, 3))
        return y, functional.interpolate(y.flatten(2), scale_factor=1.7, mode="linear")


MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
SMOOTH = ("bilinear", "bicubic")


@odd_use(Resizes, gpu=False)  # kernels of GPUs round bfloat16 at other places
def images_are_resized(model):
    made = []
    for size in (8, 8, 11):
        x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(size))
        with torch.no_grad():
            made += model(x)
        for dtype in (None, torch.bfloat16):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
                outputs = model(x)
            sum(output.float().square().sum() for output in outputs).backward()
            made += outputs
    return made


class MarginLosses(nn.Module):
    """Losses that AOTAutograd has other implementations of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x):
        y, classes = self.layer(x), torch.arange(4)
        several = torch.tensor([[0, 2, -1, 1, 1]] * 4)
        return functional.multi_margin_loss(y, classes) + functional.multilabel_margin_loss(
            y, several
        )


@odd_use(MarginLosses)
def losses_of_margins(model):
    made = []
    for seed in range(3):
        loss = model(rows(seed))
        loss.backward()
        made.append(loss)
    return made


class LastRows(nn.Module):
    """A product of rows that are not adjacent, as a decoder's logits of the last token are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 32), nn.Linear(32, 64, bias=False)

    def forward(self, x):
        last = self.inner(x.expand(3, 4, 8) * torch.arange(1.0, 4.0)[:, None, None])[:, -2:]
        return self.head(last), last @ self.head.weight.T


@odd_use(LastRows)
def products_of_rows_that_are_not_adjacent(model):
    made = []
    for frozen in (False, True, False):  # PyTorch sums in another order where a weight is frozen
        model.head.weight.requires_grad_(not frozen)
        with torch.no_grad():
            made.append(model(rows()))
        with torch.inference_mode():
            made.append([value.clone() for value in model(rows())])
        made.append(model(rows()))
    return made
