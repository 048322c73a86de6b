"""Odd uses of dtypes, casts and moves."""

from __future__ import annotations

import torch
from attack.odd_uses.comparison import attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import TiedWords, conv, images, mlp, plain, words
from torch import nn


@odd_use(mlp)
def model_is_cast_to_double_and_back(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        model.double()
        made += [model(rows().double()), model(rows().double())]
        model.float()
        return [*made, model(rows())]


@odd_use(plain)
def model_is_cast_to_bfloat16(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows())]
        model.to(torch.bfloat16)
        made += [model(rows().bfloat16()), model(rows().bfloat16())]
    y = model.train()(rows().bfloat16())
    y.sum().backward()
    return made, y


@odd_use(plain)
def model_is_cast_to_half(model):
    model.half()
    y = model(rows().half())
    y.sum().backward()
    return y, attempt(model, rows())


@odd_use(plain)
def one_layer_is_cast(model):
    class Casts(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner.double()

        def forward(self, x):
            return self.inner(x.double()).float()

    with torch.no_grad():
        made = [model(rows()), model(rows())]
        model[2] = Casts(model[2])
        return [*made, model(rows()), model(rows())]


@odd_use(conv, example=images)
def channels_last(model):
    x = images()[0]
    made = [model(x), model(x)]
    model.to(memory_format=torch.channels_last)
    y = model(x.to(memory_format=torch.channels_last))
    y.sum().backward()
    return made, y, model[0].weight.stride()


@odd_use(conv, example=images)
def strides_of_outputs(model):
    del model[4:]
    x = images()[0]
    made = [model(x) for _ in range(3)]
    made += [model(x.to(memory_format=torch.channels_last)) for _ in range(3)]
    return made, [each.stride() for each in made]


@odd_use(plain)
def to_the_same_device(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows())]
        model.to("cpu")
        made.append(model(rows()))
        model.cpu()
        return [*made, model(rows())]


@odd_use(plain, gpu=False)
def move_to_meta_and_back(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        state = {name: value.clone() for name, value in model.state_dict().items()}
        model.to("meta")
        made.append(attempt(lambda: model(rows().to("meta")).shape))
        model.to_empty(device="cpu")
        model.load_state_dict(state)
        return [*made, model(rows())]


@odd_use(plain)
def integers_and_booleans_are_arguments(model):
    return [attempt(model, x) for x in (rows().long(), rows() > 0, rows().int(), rows())]


@odd_use(TiedWords)
def index_dtype_changes(model):
    with torch.no_grad():
        return [model(words().to(dtype)) for dtype in (torch.int64, torch.int32, torch.int64)]


@odd_use(TiedWords, gpu=False)  # it ends a GPU's context, with PyTorch alone, too
def index_is_out_of_range(model):
    made = [model(words()), attempt(model, words() + 50), attempt(model, words() - 50)]
    y = model(words())
    y.sum().backward()
    return made, y


@odd_use(plain)
def type_promotion(model):
    class Adds(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, y):
            return self.inner(x) + y

    adds = Adds(model)
    others = (1, 1.5, torch.tensor(2), torch.tensor(2.0, dtype=torch.float64), rows().double(), 1j)
    with torch.no_grad():
        return [adds(rows(), other) for other in others]


@odd_use(plain)
def type_method(model):
    model.type(torch.float64)
    y = model(rows().double())
    y.sum().backward()
    return y, next(model.parameters()).dtype


@odd_use(plain, refusal="cannot swap the weights")
def weights_are_swapped_when_cast(model):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with torch.no_grad():
            made = [model(rows())]
            model.double()
            made.append(model(rows().double()))
            model.float()
            return [*made, model(rows())]
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
