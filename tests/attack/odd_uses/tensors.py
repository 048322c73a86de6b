"""Odd tensors as arguments: strides, sizes, layouts, complex, shared memory."""

from __future__ import annotations

import torch
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
    return made, y


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


@odd_use(plain, isolated=True)
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


class Doubled(torch.Tensor):
    """A subclass with functions of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made * 2 if getattr(func, "__name__", "") == "add" else made


class Parameter(nn.Parameter):
    """A parameter with a name."""


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x):
        return self.outer(torch.add(self.inner(x), self.shift))


@odd_use(Shifted)
def a_buffer_becomes_a_tensor_subclass(model):
    made = []
    for kind in (torch.Tensor, Sub, Doubled, torch.Tensor):
        model.shift = torch.arange(8.0).as_subclass(kind)
        for turn in range(2):
            with torch.no_grad():
                y = model(rows(turn))
            made += [type(y).__name__, y.as_subclass(torch.Tensor).clone()]
        y = model(rows())
        y.as_subclass(torch.Tensor).sum().backward()
    model.shift = torch.ones(8)
    return made


@odd_use(Shifted)
def a_weight_becomes_a_subclass_of_parameters(model):
    made = []
    for kind in (nn.Parameter, Parameter):
        model.inner.weight = kind(model.inner.weight.detach() * 2)
        with torch.no_grad():
            made.append(model(rows()))
        model(rows(1)).sum().backward()
    return made, type(model.inner.weight).__name__


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
