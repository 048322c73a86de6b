"""Odd tensors as arguments: strides, sizes, layouts, complex, shared memory; and odd outputs."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple

import torch
from attack.odd_uses.comparison import attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import plain
from torch import nn

square = lambda seed=0: rows(seed, 8, 8)  # noqa: E731


class Two(nn.Module):
    """Adds a function of each of two tensors."""

    @staticmethod
    def example():
        return square(), square(1)

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, y):
        return self.left(x) + 2 * self.right(y)


@odd_use(Two)
def same_tensor_twice(model):
    model.eval()
    x, y = square(), square(1)
    with torch.no_grad():
        pairs = ((x, x), (x, x), (x, y), (y, x), (x, y), (y, y), (x, x.t()), (x.t(), x.t()))
        return [model(*pair) for pair in pairs]


@odd_use(Two)
def same_tensor_twice_first(model):
    model.eval()
    x = square()
    with torch.no_grad():
        return [model(*pair) for pair in ((x, x), (x, x.t()), (x, x.flip(0)), (x, x.clone()))]


@odd_use(Two)
def views_of_one_tensor(model):
    model.eval()
    base = rows(3, 24, 16)
    with torch.no_grad():
        pairs = [(base[a : a + 8, :8], base[b : b + 8, 8:]) for a, b in ((0, 0), (0, 8), (4, 6))]
        pairs += [(base[0:8, :8], base[4:12, :8]), (base[::3, ::2], base[1::3, 1::2])]
        return [model(*pair) for pair in pairs]


class ReadsStrides(nn.Module):
    """Its branches read strides."""

    example = staticmethod(lambda: (square(),))

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        if not x.is_contiguous():
            y = y + 10
        return y * x.stride(0) + x.storage_offset()


@odd_use(ReadsStrides)
def branches_read_strides(model):
    model.eval()
    x, wide = square(), rows(1, 9, 16)
    with torch.no_grad():
        inputs = (x, x, x.t(), wide[1:, 8:], wide[:8, :8], x, x.expand(8, 8), x[:1].expand(8, 8))
        return [model(each) for each in inputs]


@odd_use(plain)
def strided_inputs(model):
    model.eval()
    x = rows(0, 8, 16)
    inputs = (
        x[:, ::2],
        x[::2, 8:],
        x.t()[:8].t(),
        x[:1, :8].expand(5, 8),
        x[0, :8],
        x.flip(0)[:, :8],
    )
    with torch.no_grad():
        made = [model(each) for each in inputs for _ in range(2)]
    model.train()(inputs[0]).sum().backward()
    return made, [each.stride() for each in made]


@odd_use(plain)
def sizes_of_zero_and_one(model):
    made = []
    for count in (4, 0, 1, 0, 2, 1):
        y = model(rows(count=count))
        y.sum().backward()
        made.append(y)
    return made


class Reduces(nn.Module):
    """Takes a scalar, and returns scalars and numbers."""

    @staticmethod
    def example():
        return rows(), torch.tensor(2.0)

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, scale):
        y = self.inner(x) * scale
        return y.sum(), y.shape[0], y.mean().item(), float(scale), y.dim(), tuple(y.shape)


@odd_use(Reduces)
def tensors_without_dimensions_and_plain_numbers(model):
    with torch.no_grad():
        return [model(rows(seed), torch.tensor(seed + 0.5)) for seed in range(4)]


@odd_use(plain)
def input_requires_a_gradient(model):
    made = []
    for turn in range(4):
        model.train(turn != 1)
        x = rows(turn).requires_grad_(turn < 3)
        y = model(x)
        y.square().sum().backward()
        made += [y, x.grad]
    return made


@odd_use(plain)
def non_leaf_input(model):
    base = rows().requires_grad_()
    y = model(torch.sin(base) * 2)
    y.sum().backward()
    return y, base.grad


@odd_use(plain)
def input_is_a_parameter_of_another_model(model):
    other = nn.Embedding(4, 8)
    y = model(other.weight)
    y.square().sum().backward()
    return y, other.weight.grad, type(y).__name__


@odd_use(plain)
def input_is_a_weight_of_the_model(model):
    model.eval()
    with torch.no_grad():
        made = [model(model[4].weight) for _ in range(3)]
    y = model(model[4].weight)
    y.sum().backward()
    return made, y


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


@odd_use(InPlace)
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


class Complex(nn.Module):
    example = staticmethod(lambda: (torch.complex(rows(), rows(1)),))

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.complex(rows(2, 8), rows(3, 8)))

    def forward(self, x):
        y = x @ self.weight
        return y, y.conj(), y.real, torch.fft.fft(y).abs()


@odd_use(Complex)
def complex_numbers_and_conjugates(model):
    model.eval()
    x = Complex.example()[0]
    with torch.no_grad():
        made = [model(each) for each in (x, x, x.conj(), x.conj(), x, x.conj().conj(), -x.conj())]
    y = model.train()(x)
    y[2].sum().backward()
    return made, [[each.is_conj() for each in one] for one in made], y


@odd_use(Complex)
def negative_bit(model):
    x = Complex.example()[0]
    with torch.no_grad():
        return [model(torch.complex(x.imag, x.conj().imag)), model(torch._neg_view(x)), model(x)]


class Takes(nn.Module):
    """Multiplies by its weight from the right, whatever the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows(9, 8))

    def forward(self, x):
        return torch.sparse.mm(x, self.weight) if x.is_sparse else x @ self.weight


@odd_use(Takes)
def sparse_inputs(model):
    model.eval()
    x = torch.relu(rows())
    with torch.no_grad():
        made = [model(x), model(x.to_sparse()), model(x.to_sparse()), model(x)]
    model.train()(x.to_sparse()).sum().backward()
    return made


@odd_use(Takes)
def compressed_sparse_inputs(model):
    x = torch.relu(rows())
    with torch.no_grad():
        return [model(x), model(x.to_sparse_csr()), model(x.to_sparse_csr())]


@odd_use(plain)
def nested_inputs(model):
    parts = [rows(0, 3), rows(1, 5)]
    with torch.no_grad():
        strided = torch.nested.nested_tensor(parts)
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        made = [model(rows()), list(model(strided).unbind()), list(model(jagged).unbind())]
    return made, list(model(strided).unbind()), model(rows())


@odd_use(plain)
def nan_and_infinity(model):
    x = rows()
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = float("nan"), float("inf"), -float("inf"), -0.0
    y = model(x)
    y.sum().backward()
    return y, model(x)


class Sub(torch.Tensor):
    """A subclass with a name."""


@odd_use(plain)
def tensor_subclass_argument(model):
    with torch.no_grad():
        made = [model(rows()), model(rows().as_subclass(Sub)), model(rows().as_subclass(Sub))]
    return [type(each).__name__ for each in made], [each.as_subclass(torch.Tensor) for each in made]


@odd_use(plain)
def tensors_of_numpy(model):
    array = rows().numpy()
    x = torch.from_numpy(array)
    with torch.no_grad():
        made = [model(x), model(x)]
        array[:] = 1
        y = model(x)
    y.numpy()[0] = 5
    return made, y, model(torch.as_tensor(array[::-1].copy()))


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
