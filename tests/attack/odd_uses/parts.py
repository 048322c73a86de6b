"""Odd uses of calls that are several graphs: what runs between them happens once."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random

import numpy as np
import torch
from attack.odd_uses.harness import odd_use, rows
from torch import nn


def alternating_modes(count: int = 4):
    """Calls with and without gradients."""
    for turn in range(count):
        with torch.no_grad() if turn % 2 else contextlib.nullcontext():
            yield turn


class CountsFirst(nn.Module):
    """Counts, breaks the graph, and then reads a table that TorchDynamo cannot guard."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.numbers = nn.Linear(8, 8), itertools.count(1)
        self.table, self.log = np.arange(8, dtype=np.float32), []

    def forward(self, x):
        number = next(self.numbers)
        self.log.append(number)
        smallest = heapq.heappop([1.0, number])
        y = self.layer(x) * number + smallest
        return y + torch.from_numpy(self.table) * float(self.table.sum())


@odd_use(CountsFirst, warns="UserWarning")
def a_part_after_a_break_fails_to_compile(model):
    made = []
    for turn in alternating_modes():
        made.append(model(rows(turn)))
        model.table += 1
    return made, model.log


class ChangesAfterABreak(nn.Module):
    """Counts, breaks the graph, draws, and then changes an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x, y):
        self.calls += 1
        heapq.heappop([1.0, self.calls])
        x.add_(1)
        return self.layer(y * self.calls) + random.random()


@odd_use(ChangesAfterABreak, example=lambda: (rows(), rows(1)), warns="UserWarning")
def memory_is_shared_after_a_break(model):
    made = []
    for turn in alternating_modes():
        base = rows(turn, 6)
        made.append(model(base[:4].clone(), base[2:]))
        made.append(model(base[:4], base[2:]))
        made.append(model(base, base))
        made.append(base)
    return made, model.calls
