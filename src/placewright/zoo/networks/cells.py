"""Cells of searched architectures (NASNet, AmoebaNet), built from their genotypes.

A cell reads the outputs of the two cells before it: state 0 of the last, state 1 of the one before.
Each step adds a state: the sum of two operations, each on an earlier state. Some states are
concatenated to the output. A reduction cell halves the grid: operations on states 0 and 1 have a
stride of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.zoo.networks.layers import Convolution

Operation = Callable[[int, int, int], nn.Module]
"""Builds a module from input channels, output channels and stride."""


@dataclass(frozen=True)
class CellGenotype:
    """Steps of two operations and the states they read, and the states to concatenate."""

    steps: tuple[tuple[tuple[str, int], tuple[str, int]], ...]
    concat_states: tuple[int, ...]


@dataclass(frozen=True)
class CellArchitecture:
    """The genotypes of normal and reduction cells, their operations, and two special cases.

    Args:
        raw_first_state: Whether state 1 of the first cell is the input with all its channels.
        reuses_older: Whether state 1 of the cell after a reduction is state 1 of the reduction,
            not its state 0.
    """

    normal: CellGenotype
    reduction: CellGenotype
    operations: Mapping[str, Operation]
    raw_first_state: bool = False
    reuses_older: bool = False


class NASCells(nn.ModuleList):
    """Two reduction cells, then three groups of normal cells with a reduction cell between groups.

    Args:
        inputs: Channels of the input.
        first: Channels of a state in the first two cells.
        channels: Channels of a state in the first group; each further group doubles them.
        count: Normal cells per group.
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
    """A cell with the same number of channels in each state.

    Args:
        last: Channels of the last cell's output.
        before: Channels of the output of the cell before that.
        wider: Whether that output has a grid twice as large.
        stride: 2 in a reduction cell.
        raw: Whether state 1 is used unchanged.
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
    """Halves the grid: 1 x 1 convolutions of the even and of the odd pixels, concatenated."""

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
    """The state unchanged, or at half the size."""
    return nn.Identity() if stride == 1 else FactorizedReduction(inputs, channels)


def mean_3(inputs: int, channels: int, stride: int) -> nn.Module:
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


def maximum_3(inputs: int, channels: int, stride: int) -> nn.Module:
    return nn.MaxPool2d(3, stride, padding=1)


def maximum_2(inputs: int, channels: int, stride: int) -> nn.Module:
    return nn.MaxPool2d(2, stride, ceil_mode=True)
