"""Small networks that the odd uses share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def plain() -> nn.Module:
    """No random numbers and no states."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8))


def mlp() -> nn.Module:
    """A dropout and a batch norm."""
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 4)
    )


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def images() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)),)


def words(seed: int = 0, count: int = 2, length: int = 6, vocabulary: int = 11) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (count, length), generator=generator)


def one_text() -> tuple[torch.Tensor, ...]:
    return (words(),)


class TiedWords(nn.Module):
    """The embedding is the weight of the head."""

    example = staticmethod(one_text)

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(torch.tanh(self.inner(self.words(x))))


class Recurrent(nn.Module):
    """An LSTM that takes and returns its states."""

    example = staticmethod(one_text)

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(11, 8), nn.LSTM(8, 8, 2, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, x, state=None):
        y, state = self.lstm(self.words(x), state)
        return self.head(y), state


class Attention(nn.Module):
    """A decoder layer with a mask."""

    example = staticmethod(one_text)

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.norm, self.join = nn.LayerNorm(8), nn.Linear(8, 24)
        self.out, self.head = nn.Linear(8, 8), nn.Linear(8, 11)
        self.dropout = dropout

    def forward(self, x):
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        q, k, v = self.join(self.norm(h)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (q, k, v))
        drop = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        return self.head(h + self.out(y.transpose(1, 2).flatten(-2)))


class Branches(nn.Module):
    """Two branches from one input; a dictionary of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.join = nn.Linear(16, 8)

    def forward(self, x):
        both = torch.cat([torch.relu(self.left(x)), torch.tanh(self.right(x))], -1)
        return {"made": self.join(both), "sum": both.sum()}


class Loss(nn.Module):
    """A loss of a batch and its targets, with a batch norm and a dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(dropout), nn.Linear(16, 8)

    @staticmethod
    def example():
        generator = torch.Generator().manual_seed(2)
        return tuple(torch.randn(2, 4, 8, generator=generator))

    def forward(self, x, target):
        return (self.last(self.drop(torch.relu(self.norm(self.first(x))))) - target).square().mean()
