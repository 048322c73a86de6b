"""The networks that random sequences of actions are done to, with their batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from attack.odd_uses.caches import Decoder
from attack.odd_uses.gradients import Checkpoints
from attack.odd_uses.harness import rows
from attack.odd_uses.networks import (
    Attention,
    Branches,
    Recurrent,
    TiedWords,
    conv,
    mlp,
    plain,
    words,
)
from attack.odd_uses.state import Averages
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Subject:
    """A network and its batches, by a seed and a size."""

    build: Callable[[], nn.Module]
    batch: Callable[[int, int], torch.Tensor]


class Experts(nn.Module):
    """Each row goes to two of four experts, by value."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        made = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            row, place = torch.where(chosen == index)
            if len(row):
                made = made.index_add(0, row, expert(x[row]) * weights[row, place, None])
        return made


class Residual(nn.Module):
    """Blocks of a norm, a dropout and two layers; one block is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(8, 16) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(16, 8) for _ in range(2))
        self.drop, self.scale = nn.Dropout(0.2), nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        for index in (0, 1, 0):
            y = self.ups[index](self.norms[index](x))
            x = x + self.drop(self.downs[index](nn.functional.gelu(y)))
        return x * self.scale + self.shift, {"mean": x.mean(0)}


class RunningMax(nn.Module):
    """Writes a buffer in place and counts in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("most", torch.zeros(8))
        self.calls = 0

    def forward(self, x):
        y = torch.tanh(self.first(x))
        if len(y):
            self.most.copy_(torch.maximum(self.most, y.detach().amax(0)))
        self.calls += 1
        return self.last(y - self.most), self.calls


def _rows(seed: int, count: int) -> torch.Tensor:
    return rows(seed, count)


def _words(seed: int, count: int) -> torch.Tensor:
    return words(seed, count, length=1 + (seed + count) % 7)


def _images(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


SUBJECTS = {
    "plain": Subject(plain, _rows),
    "mlp": Subject(mlp, _rows),
    "branches": Subject(Branches, _rows),
    "residual": Subject(Residual, _rows),
    "experts": Subject(Experts, _rows),
    "running max": Subject(RunningMax, _rows),
    "averages": Subject(Averages, _rows),
    "checkpoints": Subject(Checkpoints, _rows),
    "conv": Subject(conv, _images),
    "tied": Subject(TiedWords, _words),
    "recurrent": Subject(Recurrent, _words),
    "attention": Subject(Attention, _words),
    "decoder": Subject(Decoder, _words),
}
