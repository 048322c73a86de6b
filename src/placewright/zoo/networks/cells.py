"""Cells of searched architectures (NASNet, AmoebaNet), built from their genotypes.

A cell reads what the two cells before it made: state 0 is the last one, state 1 the one before.
Each step adds a state: the sum of two operations, each on an earlier state. Some states are joined
into the output. A reduction cell halves the grid: operations on states 0 and 1 have a stride of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.zoo.networks.layers import Convolution

Operation = Callable[[int, int, int], nn.Module]
"""Channels that come in, channels that go out and stride in, a module out."""


@dataclass(frozen=True)
class CellGenotype:
    """Steps, each of two operations and the states they read, and the states that are joined."""

    steps: tuple[tuple[tuple[str, int], tuple[str, int]], ...]
    concat_states: tuple[int, ...]


@dataclass(frozen=True)
class CellArchitecture:
    """The drawings of normal and reduction cells, the operations they name, and two quirks.

    Args:
        raw_first_state: Whether the first cell takes as state 1 what comes in as it is, with all its channels.
        reuses_older: Whether the cell after a group's reduction reads, as the one before, not what the
            reduction read as the last one, but what it read as the one before.
    """

    normal: CellGenotype
    reduction: CellGenotype
    operations: Mapping[str, Operation]
    raw_first_state: bool = False
    reuses_older: bool = False


class NASCells(nn.ModuleList):
    """Two reduction cells, then three groups of normal cells; a reduction cell parts two groups.

    Args:
        inputs: Channels of what comes in.
        first: Channels of a state in the first two cells.
        channels: Of a state in the first group; the next have twice as many, and so on.
        count: Normal cells in a group.
    """

    def __init__(
        self,
        architecture: CellArchitecture,
        inputs: int,
        first_channels: tuple[int, int],
        channels: int,
        count: int,
    ) -> None:
        super().__init__()
        rows = [(architecture.reduction, width, False) for width in first_channels]
        for group in range(3):
            rows += [(architecture.reduction, channels << group, architecture.reuses_older)] * (
                group > 0
            )
            rows += [(architecture.normal, channels << group, False)] * count
        self.reuses_older = [reuses_older for _, _, reuses_older in rows]
        last = before = inputs
        older_is_wider = False
        for genotype, width, reuses_older in rows:
            stride = 2 if genotype is architecture.reduction else 1
            raw = architecture.raw_first_state and not len(self)
            cell = NASCell(
                genotype, architecture.operations, width, last, before, older_is_wider, stride, raw
            )
            self.append(cell)
            last, before, older_is_wider = (
                cell.out_channels,
                before if reuses_older else last,
                stride == 2,
            )
        self.out_channels = last

    def forward(self, x: Tensor) -> Tensor:
        last = before = x
        for cell, reuses_older in zip(self, self.reuses_older, strict=True):
            last, before = cell(last, before), before if reuses_older else last
        return last


class NASCell(nn.Module):
    """A cell with so many channels in each state.

    Args:
        last: Channels of the last cell's output.
        before: Channels of the output of the one before.
        wider: Whether the latter has a grid twice as large.
        stride: 2 in a reduction cell.
        raw: Whether state 1 is left as it comes.
    """

    def __init__(
        self,
        genotype: CellGenotype,
        operations: Mapping[str, Operation],
        channels: int,
        last: int,
        before: int,
        older_is_wider: bool,
        stride: int,
        raw: bool,
    ) -> None:
        super().__init__()
        self.genotype = genotype
        self.out_channels = len(genotype.concat_states) * channels
        self.last = Convolution(last, channels, 1, relu="before")
        self.before: nn.Module = nn.Identity()
        if older_is_wider:
            self.before = FactorizedReduction(before, channels)
        elif before != channels and not raw:
            self.before = Convolution(before, channels, 1, relu="before")
        self.operations = nn.ModuleList(
            operations[name](
                before if raw and state == 1 else channels, channels, stride if state < 2 else 1
            )
            for step in genotype.steps
            for name, state in step
        )

    def forward(self, last: Tensor, before: Tensor) -> Tensor:
        states = [self.last(last), self.before(before)]
        operations = iter(self.operations)
        for (_, left), (_, right) in self.genotype.steps:
            states.append(next(operations)(states[left]) + next(operations)(states[right]))
        return torch.cat([states[state] for state in self.genotype.concat_states], 1)


class FactorizedReduction(nn.Module):
    """A grid of half the size, of every second pixel and of those between, each by a 1 x 1."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(channels, out // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(channels, out - out // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        shifted = F.pad(x, (-1, 1, -1, 1))
        return self.norm(torch.cat((self.even(x), self.odd(shifted)), 1))


def identity(inputs: int, channels: int, stride: int) -> nn.Module:
    """The state as it is, or of half the size."""
    return nn.Identity() if stride == 1 else FactorizedReduction(inputs, channels)


def mean_3(inputs: int, channels: int, stride: int) -> nn.Module:
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


def maximum_3(inputs: int, channels: int, stride: int) -> nn.Module:
    return nn.MaxPool2d(3, stride, padding=1)


def maximum_2(inputs: int, channels: int, stride: int) -> nn.Module:
    return nn.MaxPool2d(2, stride, ceil_mode=True)
