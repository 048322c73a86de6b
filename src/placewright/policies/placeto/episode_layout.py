"""Which vectors of Placeto's graph network change from one step of an episode to the next.

A step moves two groups on: the one before is visited, and the next one is current. After r rounds
of messages only vectors of groups at most r edges away differ from those of the step before, and
which they are depends on the graph alone. So a level (a round of messages in one direction) has a
row for each vector that a step changes, in the order of steps, and not one for each group and step.
Rows and the sums over them are worked out here, once for a problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.policies.placeto.graph_features import PlacetoObservation


@dataclass(frozen=True, eq=False)
class RowSums:
    """Weighted sums of rows: a sparse matrix of sums × rows that multiplies tensors of rows × ….

    Args:
        index, weight: The rows of each sum, sum after sum.
        offsets: Where each sum begins in them, and the end.
        rows: How many rows there are.
    """

    index: torch.Tensor
    weight: torch.Tensor
    offsets: torch.Tensor
    rows: int

    @classmethod
    def of(
        cls,
        sums: NDArray[np.int64],
        rows: NDArray[np.int64],
        weights: NDArray[np.float32],
        shape: tuple[int, int],
        device: torch.device,
    ) -> RowSums:
        """From its entries."""
        order = np.lexsort((rows, sums))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(sums, minlength=shape[0]))])
        arrays = (rows[order], weights[order].astype(np.float32), offsets)
        index, weight, begin = (torch.as_tensor(array, device=device) for array in arrays)
        return cls(index, weight, begin, shape[1])

    @classmethod
    def of_matrix(cls, matrix: NDArray[np.float32], device: torch.device) -> RowSums:
        """From all weights, most of them 0."""
        sums, rows = np.nonzero(matrix)
        return cls.of(sums, rows, matrix[sums, rows], matrix.shape, device)

    @cached_property
    def transposed(self) -> RowSums:
        """The matrix that gradients are multiplied with."""
        count = len(self.offsets) - 1
        sums = np.repeat(np.arange(count), np.diff(self.offsets.cpu().numpy()))
        index, weight = self.index.cpu().numpy(), self.weight.cpu().numpy()
        return RowSums.of(index, sums, weight, (self.rows, count), self.index.device)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Sums × … of rows × …"""
        summed: torch.Tensor = _SumRows.apply(values, self)  # type: ignore[no-untyped-call]
        return summed

    def multiply(self, values: torch.Tensor) -> torch.Tensor:
        """The same without a gradient."""
        flat = values.reshape(len(values), -1)
        summed = functional.embedding_bag(
            self.index,
            flat,
            self.offsets,
            mode="sum",
            per_sample_weights=self.weight,
            include_last_offset=True,
        )
        return summed.reshape(-1, *values.shape[1:])


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, sums: RowSums) -> torch.Tensor:
        ctx.sums = sums
        return sums.multiply(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.sums.transposed.multiply(gradient.contiguous()), None


@dataclass(frozen=True, eq=False)
class ChangedRows:
    """The vectors that steps change: a row for each, in the order of steps.

    Args:
        step, group: Rows: the step that changes it, and whose vector it is.
        latest: Steps × groups: the row that holds each group's vector at each step.
    """

    step: NDArray[np.int64]
    group: NDArray[np.int64]
    latest: NDArray[np.int64]

    @classmethod
    def of(cls, is_changed: NDArray[np.bool_]) -> ChangedRows:
        """From steps × groups: what each step changes; the first one all."""
        step, group = np.nonzero(is_changed)
        number = np.full(is_changed.shape, -1)
        number[step, group] = np.arange(len(step))
        return cls(step, group, np.maximum.accumulate(number, axis=0))

    def __len__(self) -> int:
        return len(self.step)

    def groups_by_step(self) -> list[NDArray[np.int64]]:
        """The groups whose vectors each step changes."""
        return np.split(self.group, np.searchsorted(self.step, np.arange(1, len(self.latest))))


@dataclass(frozen=True, eq=False)
class MessageLevel:
    """A round of messages in one direction.

    Args:
        own: Rows: the row of a group's own embedding.
        incoming: Sums of the messages of the level before.
        hears: Rows × 1 × 1: 1 for groups that have neighbours.
        by_step: For each step the groups that change, and their sums of all groups' messages.
    """

    own: torch.Tensor
    incoming: RowSums
    hears: torch.Tensor
    by_step: list[tuple[torch.Tensor, RowSums]]


@dataclass(frozen=True, eq=False)
class PoolLayout:
    """Which groups are pooled around the current one, by one relation to it.

    Args:
        rows: The pairs of vectors that any step pools.
        sums: Their sums, step by step.
        by_step: For each step the groups whose pairs change, as far as any step pools them, and the
            sum of all groups.
    """

    rows: torch.Tensor
    sums: RowSums
    by_step: list[tuple[torch.Tensor, RowSums]]


@dataclass(frozen=True, eq=False)
class EpisodeLayout:
    """The rows of all levels, for episodes that visit the groups of a problem in their order.

    Args:
        first: The vectors before any message.
        levels: For each direction its rounds.
        last: For each direction the row, after all rounds, of each pair of vectors.
        pairs: A group's vectors of all directions together.
        current: Steps: the pair of the current group.
        pools: For each relation; None where no group has it to any other.
        neighbours: For each direction 1 for groups that have such a neighbour: groups × 1 × 1.
    """

    first: ChangedRows
    levels: tuple[tuple[MessageLevel, ...], ...]
    last: tuple[torch.Tensor, ...]
    pairs: ChangedRows
    current: torch.Tensor
    pools: tuple[PoolLayout | None, ...]
    neighbours: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, observation: PlacetoObservation, rounds: int) -> EpisodeLayout:
        """That of a problem, with so many rounds of messages."""
        device, groups = observation.legal.device, len(observation.grouping)
        step, group = np.indices((groups, groups))
        moves_on = (group == step) | (group == step - 1) | (step == 0)
        first = ChangedRows.of(moves_on)
        adjacencies = (observation.predecessors, observation.successors) if rounds else ()
        is_changed, levels, ends, neighbours = moves_on, [], [], []
        for matrix in adjacencies:
            adjacency = matrix.cpu().numpy()
            direction, changed = _message_levels(adjacency, moves_on, first, rounds, device)
            levels.append(direction)
            ends.append(ChangedRows.of(changed))
            has_neighbours = torch.as_tensor(adjacency.any(axis=1), device=device)
            neighbours.append(has_neighbours.float()[:, None, None])
            is_changed = is_changed | changed
        pairs = ChangedRows.of(is_changed)
        last = tuple(
            torch.as_tensor(end.latest[pairs.step, pairs.group], device=device)
            for end in ends or [first]
        )
        relations = observation.relations.cpu().numpy()
        pools = tuple(_pool_layout(weights, pairs, device) for weights in relations)
        current = torch.as_tensor(np.diagonal(pairs.latest).copy(), device=device)
        return cls(first, tuple(levels), last, pairs, current, pools, tuple(neighbours))


def _message_levels(
    adjacency: NDArray[np.float32],
    moves_on: NDArray[np.bool_],
    first: ChangedRows,
    rounds: int,
    device: torch.device,
) -> tuple[tuple[MessageLevel, ...], NDArray[np.bool_]]:
    """The rounds in one direction, and steps × groups: what changes after the last one."""
    levels, before, is_changed = [], first, moves_on
    hears: NDArray[np.float32] = (adjacency != 0).any(axis=1).astype(np.float32)
    for _ in range(rounds):
        is_changed = moves_on | (is_changed.astype(np.float32) @ (adjacency.T != 0) > 0)
        rows = ChangedRows.of(is_changed)
        row, source = np.nonzero(adjacency[rows.group])
        incoming = RowSums.of(
            row,
            before.latest[rows.step[row], source],
            adjacency[rows.group[row], source],
            (len(rows), len(before)),
            device,
        )
        level = MessageLevel(
            torch.as_tensor(first.latest[rows.step, rows.group], device=device),
            incoming,
            torch.as_tensor(hears[rows.group], device=device)[:, None, None],
            [
                (
                    torch.as_tensor(groups, device=device),
                    RowSums.of_matrix(adjacency[groups], device),
                )
                for groups in rows.groups_by_step()
            ],
        )
        levels.append(level)
        before = rows
    return tuple(levels), is_changed


def _pool_layout(
    weights: NDArray[np.float32], pairs: ChangedRows, device: torch.device
) -> PoolLayout | None:
    """The sums of one relation, whose weights are current groups × groups."""
    step, group = np.nonzero(weights)
    if not len(step):
        return None
    pooled, position = np.unique(pairs.latest[step, group], return_inverse=True)
    sums = RowSums.of(step, position, weights[step, group], (len(weights), len(pooled)), device)
    bounds = np.searchsorted(pairs.step[pooled], np.arange(1, len(weights)))
    changed: Sequence[NDArray[np.int64]] = np.split(pairs.group[pooled], bounds)
    by_step = [
        (torch.as_tensor(groups, device=device), RowSums.of_matrix(weights[at : at + 1], device))
        for at, groups in enumerate(changed)
    ]
    return PoolLayout(torch.as_tensor(pooled, device=device), sums, by_step)
