"""Odd uses of modes: training and eval of parts, gradients, inference, autocast, defaults."""

from __future__ import annotations

import torch
from attack.odd_uses.comparison import attempt, flags
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import Attention, conv, images, mlp, plain, words
from torch import nn


@odd_use(mlp)
def dropout_trains_in_an_eval_model(model):
    model.eval()
    model[2].train()
    with torch.no_grad():
        return [model(rows()) for _ in range(4)]


@odd_use(mlp)
def batch_norm_trains_in_an_eval_model(model):
    model.eval()
    first = model(rows()), model(rows())
    model[3].train()
    return first, [model(rows(seed)) for seed in range(4)]


@odd_use(mlp)
def batch_norm_is_frozen_in_a_training_model(model):
    model.train()
    model[3].eval()
    made = [model(rows(seed)) for seed in range(3)]
    sum(each.sum() for each in made).backward()
    return made


@odd_use(mlp)
def modes_alternate(model):
    made = []
    for turn in range(6):
        model.train(turn % 2 == 0)
        made.append(model(rows(turn)))
    return made


@odd_use(mlp)
def training_attribute_is_set_by_hand(model):
    model.eval()
    made = [model(rows()), model(rows())]
    model[2].training = True
    made.append(model(rows()))
    for module in model.modules():
        module.training = True
    return made, model(rows())


@odd_use(mlp)
def training_mode_without_gradients(model):
    with torch.no_grad():
        return [model(rows(seed)) for seed in range(4)]


@odd_use(plain)
def eval_outputs_carry_gradients(model):
    model.eval()
    made = []
    for _ in range(3):
        y = model(rows())
        made.append(flags(y))
        attempt(y.sum().backward)
    return made


@odd_use(plain)
def no_grad_and_grad_alternate(model):
    model.eval()
    made = []
    for turn in range(6):
        with torch.set_grad_enabled(turn % 2 == 1):
            y = model(rows(turn))
            made += [y, y.requires_grad]
    return made


@odd_use(plain)
def grad_is_enabled_inside_no_grad(model):
    with torch.no_grad():
        model(rows())
        with torch.enable_grad():
            y = model(rows())
            y.sum().backward()
        z = model(rows())
    return y, y.requires_grad, z.requires_grad


@odd_use(plain)
def inference_mode(model):
    model.eval()
    made = []
    for turn in range(4):
        with torch.inference_mode(turn % 2 == 0):
            y = model(rows(turn))
            made += [y.clone(), y.is_inference()]
    return made


@odd_use(plain)
def inference_tensor_is_an_argument_outside(model):
    with torch.inference_mode():
        x = rows() + 1
    with torch.no_grad():
        made = [model(x), model(x), model(rows())]
    return made, attempt(lambda: model(x).sum().backward())


@odd_use(plain)
def output_of_inference_mode_cannot_be_saved(model):
    with torch.inference_mode():
        y = model(rows())
    return attempt(lambda: (y * torch.ones(1, requires_grad=True)).sum().backward())


@odd_use(mlp)
def autocast_on_and_off(model):
    model.eval()
    made = []
    for turn in range(6):
        with torch.autocast("cpu", torch.bfloat16, enabled=turn % 3 != 0), torch.no_grad():
            made.append(model(rows(turn)))
    return made


@odd_use(plain)
def autocast_with_gradients(model):
    made = []
    for turn in range(4):
        with torch.autocast("cpu", torch.bfloat16, enabled=turn % 2 == 0):
            y = model(rows(turn))
        y.float().sum().backward()
        made += [y, y.dtype]
    return made


@odd_use(plain)
def autocast_dtype_changes(model):
    with torch.no_grad():
        made = [model(rows())]
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            with torch.autocast("cpu", dtype):
                made.append(model(rows()))
    return made


class CastsInside(nn.Module):
    """A part of it turns autocast off."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.first(x)
        with torch.autocast("cpu", enabled=False):
            y = self.last(y.float())
        with torch.no_grad():
            count = (y > 0).sum()
        return y, count, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()


@odd_use(CastsInside)
def autocast_is_turned_off_in_forward(model):
    made = [model(rows())]
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            made.append(model(rows()))
    made[-1][0].sum().backward()
    return made


class TurnsGradOff(nn.Module):
    """Leaves gradients off for the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, on):
        y = self.inner(x)
        torch.set_grad_enabled(on)
        return y


@odd_use(TurnsGradOff, example=lambda: (rows(), True))
def forward_changes_the_grad_mode_of_its_caller(model):
    made = []
    for on in (True, False, False, True):
        y = model(rows(), on)
        made += [y.requires_grad, torch.is_grad_enabled()]
        torch.set_grad_enabled(True)
    return made


class ReadsModes(nn.Module):
    """Its branches read the modes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        if torch.is_grad_enabled():
            x = x * 2
        if torch.is_inference_mode_enabled():
            x = x * 3
        if torch.is_autocast_enabled("cpu"):
            x = x * 5
        return self.inner(x) if self.training else self.other(x)


@odd_use(ReadsModes)
def branches_read_the_modes(model):
    made = []
    for training in (False, True, False):
        model.train(training)
        made.append(model(rows()))
        with torch.no_grad():
            made.append(model(rows()))
        with torch.inference_mode():
            made.append(model(rows()).clone())
        with torch.autocast("cpu", torch.bfloat16):
            made.append(model(rows()))
    return made


class MakesTensors(nn.Module):
    """Makes tensors of the default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x).double() + torch.ones(8) / 3, torch.zeros(2)


@odd_use(MakesTensors)
def default_dtype_changes(model):
    model.eval()
    made = [model(rows()), model(rows())]
    torch.set_default_dtype(torch.float64)
    made.append(model(rows()))
    torch.set_default_dtype(torch.bfloat16)
    made.append(model(rows()))
    return made


@odd_use(MakesTensors, gpu=False)
def default_device_is_set(model):
    made = [model(rows())]
    with torch.device("cpu"):
        made.append(model(rows()))
    torch.set_default_device("cpu")
    return made, model(rows())


@odd_use(MakesTensors, gpu=False)
def default_device_is_meta(model):
    model.eval()
    with torch.no_grad():
        x = rows()
        made = [model(x), model(x)]
        with torch.device("meta"):
            made.append(attempt(lambda: model(x)[1].device.type))
    return made, model(x)


@odd_use(conv, example=images)
def deterministic_algorithms(model):
    x = images()[0]
    made = [model(x)]
    torch.use_deterministic_algorithms(True)
    y = model(x)
    y.sum().backward()
    return made, y


@odd_use(Attention)
def attention_kernels_are_restricted(model):
    model.eval()
    made = [model(words()), model(words())]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        made.append(model(words()))
    return made


@odd_use(plain)
def anomaly_mode(model):
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        y = model(rows())
        y.sum().backward()
    return y


@odd_use(mlp)
def train_and_eval_return_the_model(model):
    same = model.train() is model, model.eval() is model, model.requires_grad_(False) is model
    return same, model(rows()), model(rows())
