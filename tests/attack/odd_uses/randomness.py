"""Odd uses of random numbers: generators, seeds, Python's and NumPy's, the clock."""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from attack.odd_uses.comparison import attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import Attention, mlp, plain, words
from torch import nn
from torch.nn import functional


@odd_use(mlp)
def dropout_draws_the_same(model):
    made = []
    for seed in range(4):
        torch.manual_seed(seed // 2)
        y = model(rows())
        y.sum().backward()
        made += [y, torch.rand(2)]
    return made


@odd_use(mlp)
def generator_state_after_a_call(model):
    made = []
    for training in (False, True, True, False):
        model.train(training)
        with torch.no_grad():
            model(rows())
        made.append(torch.get_rng_state())
    return made


@odd_use(mlp)
def random_numbers_are_forked(model):
    with torch.random.fork_rng():
        torch.manual_seed(7)
        first = model(rows())
    with torch.random.fork_rng():
        torch.manual_seed(7)
        second = model(rows())
    return first, second, model(rows())


@odd_use(plain, isolated=True)
def first_failed_call_leaves_the_generator(model):
    model.eval()
    with torch.no_grad():
        return attempt(model, rows(width=5)), torch.get_rng_state(), model(rows())


class Noise(nn.Module):
    """Draws from PyTorch's generator in several ways, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        y = y + torch.randn_like(y) + torch.rand(8) + torch.randint(5, (4, 1))
        y = functional.dropout(y, 0.3, training=True) * torch.bernoulli(torch.full_like(y, 0.5))
        return y[torch.randperm(len(y))], torch.multinomial(y.abs().softmax(-1), 2), y.normal_()


@odd_use(Noise)
def many_draws_in_one_call(model):
    model.eval()
    with torch.no_grad():
        return [model(rows(seed)) for seed in range(4)]


@odd_use(Noise)
def many_draws_with_gradients(model):
    made = []
    for seed in range(3):
        y, picked, _ = model(rows(seed))
        y.sum().backward()
        made += [y, picked]
    return made


class OwnGenerator(nn.Module):
    """Draws from a generator that it is passed, or its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x, generator=None):
        y = self.inner(x)
        return y + torch.rand(y.shape, generator=generator or self.generator)


@odd_use(OwnGenerator)
def generators_of_their_own(model):
    other = torch.Generator().manual_seed(5)
    with torch.no_grad():
        made = [model(rows()) for _ in range(3)] + [model(rows(), other) for _ in range(3)]
    return made, model.generator.get_state(), other.get_state()


class PythonRandom(nn.Module):
    """Draws from Python's and NumPy's generators: stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        used = []
        for index, layer in enumerate(self.layers):
            if random.random() < 0.5:
                used.append(index)
                x = torch.tanh(layer(x))
        return x * float(np.random.rand()) + random.choice([1, 2, 3]), used  # noqa: NPY002


@odd_use(PythonRandom)
def python_and_numpy_draw(model):
    model.eval()
    with torch.no_grad():
        return [model(rows()) for _ in range(8)]


@odd_use(PythonRandom, warns="UserWarning")  # TorchDynamo says once that it cannot trace them
def python_and_numpy_draw_with_gradients(model):
    made = []
    for seed in range(5):
        random.seed(seed)
        y, used = model(rows(seed))
        if used:
            y.sum().backward()
        made += [y, used, [weight.grad is None for weight in model.parameters()]]
    return made


class Clock(nn.Module):
    """Returns whether time has passed since the last call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 8), 0.0

    def forward(self, x):
        now = time.perf_counter()
        passed, self.last = now > self.last, now
        return self.inner(x) * (2 if passed else 1), passed


@odd_use(Clock)
def the_clock_is_read(model):
    times = []
    for _ in range(4):
        made = model(rows())
        times.append(model.last)
    return made, sorted(times) == times, len(set(times))


@odd_use(Attention)
def attention_with_dropout(model):
    model.dropout = 0.4
    made = [model(words(seed)) for seed in range(3)]
    made[0].sum().backward()
    model.dropout = 0.0
    return made, model(words())


@odd_use(plain)
def functional_dropout_outside(model):
    made = []
    for seed in range(3):
        y = model(functional.dropout(rows(seed), 0.5))
        functional.dropout(y, 0.5).sum().backward()
        made.append(y)
    return made


class RandomRelu(nn.Module):
    """Layers that draw by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.drop, self.alpha, self.rrelu = nn.Dropout1d(0.3), nn.AlphaDropout(0.3), nn.RReLU()

    def forward(self, x):
        y = self.alpha(self.rrelu(self.drop(self.first(x))))
        return functional.gumbel_softmax(self.last(y), hard=True)


@odd_use(RandomRelu)
def layers_that_draw(model):
    made = []
    for seed in range(4):
        model.train(seed != 2)
        with torch.set_grad_enabled(seed != 2):
            y = model(rows(seed))
        if y.requires_grad:
            (y * rows(9)).sum().backward()
        made.append(y)
    return made


class PythonGenerator(nn.Module):
    """Draws from a `random.Random` of its own, whose state TorchDynamo takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.numbers = nn.Linear(8, 8), random.Random(4)

    def forward(self, x):
        return self.layer(x) * self.numbers.random()


@odd_use(PythonGenerator)
def a_generator_of_python_of_its_own(model):
    made = [model(rows(seed)) for seed in range(3)]
    with torch.no_grad():
        made += [model(rows(seed)) for seed in range(3)]
    return made, model.numbers.random()


_numbers = random.Random(1)


class GlobalGenerator(nn.Module):
    """Draws from one of the program, and from one that it makes in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        _numbers.seed(1)

    def forward(self, x):
        return self.layer(x) * _numbers.randint(0, 9) + random.Random(4).random()


@odd_use(GlobalGenerator)
def a_generator_of_python_of_the_program(model):
    made = [model(rows(seed)) for seed in range(3)]
    with torch.no_grad():
        made += [model(rows(seed)) for seed in range(3)]
    return made


class LazyLast(nn.Module):
    """The last layer has its weights drawn in the first call."""

    is_exportable = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.LazyLinear(4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


@odd_use(LazyLast)
def weights_are_drawn_in_the_first_call(model):
    made = []
    for seed in range(3):
        y = model(rows(seed))
        y.sum().backward()
        made += [y, torch.rand(2)]
    return made


class UnreadDraws(nn.Module):
    """Draws in every layer whether it is skipped, and reads that in training alone."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            skipped = torch.rand([])
            if self.training and skipped < 0.3:
                continue
            x = x + torch.relu(layer(x))
        torch.empty(3).normal_()
        nn.functional.dropout(x, 0.5, training=True)
        return x + torch.rand(8)


def few_layers():
    return UnreadDraws(2)


def many_layers():
    return UnreadDraws(7)


def _draw_between(model):
    made = []
    for turn in range(4):
        with torch.no_grad():
            made += [model.eval()(rows(turn)), torch.rand(2)]
        made += [model(rows(turn)), torch.rand(2)]
        model.train(turn % 2 == 0)
        made += [model(rows(turn)), torch.rand(2)]
        made[-2].sum().backward()
    return made


@odd_use(few_layers)
def draws_that_nothing_reads(model):
    return _draw_between(model)


@odd_use(many_layers)
def draws_of_layers_that_nothing_reads(model):
    return _draw_between(model)
