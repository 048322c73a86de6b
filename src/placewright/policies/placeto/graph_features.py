"""What Placeto observes: attributes of groups, their neighbours, ancestors and descendants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.policies import grouping as op_groups
from placewright.scheduling.reachability import ancestors
from placewright.transforms import Grouping, topological_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem


EDGES = ("all", "scheduled", "forward")
"""Which tensors make a group another's predecessor: see `PlacetoConfig.edges`."""


@dataclass(frozen=True, eq=False)
class PlacetoObservation:
    """The network's inputs for a problem.

    Args:
        grouping: Numbered in the order in which groups are visited.
        attributes: Groups × 2: time and bytes, each as a share of the largest.
        predecessors, successors: Groups × groups: weights of its sources, and of its readers; 1
            each, or with means 1 in all.
        relations: 3 × groups × groups: weights of a group's ancestors, descendants and the rest.
        first_device: The device of the initial placement `first`.
    """

    problem: Problem
    grouping: Grouping
    legal: torch.Tensor  # groups × devices
    attributes: torch.Tensor
    predecessors: torch.Tensor
    successors: torch.Tensor
    relations: torch.Tensor
    first_device: int

    @classmethod
    def of(
        cls,
        problem: Problem,
        rule: str,
        max_groups: int,
        torch_device: torch.device,
        edges: str = "all",
        means: bool = False,
    ) -> PlacetoObservation:
        a = problem.arrays
        grouping = op_groups.group_ops(problem, rule, max_groups)
        source, target = op_groups.group_edges(problem, grouping)
        if edges != "all":
            grouping, source, target = _number_by_flow(problem, grouping, edges == "forward")
        groups = len(grouping)
        seconds = np.where(a.scheduled, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
        work = np.bincount(grouping.group, weights=seconds, minlength=groups)
        size = op_groups.output_bytes(problem, grouping)
        attributes = np.stack(
            [work / max(work.max(), 1e-30), size / max(size.max(), 1e-30)], axis=1
        )
        adjacency = np.zeros((groups, groups), dtype=np.float32)
        adjacency[target, source] = 1.0
        is_ancestor = ancestors(groups, source, target)
        is_descendant = is_ancestor.T & ~is_ancestor
        unrelated = ~(is_ancestor | is_descendant | np.eye(groups, dtype=bool))
        is_host = a.is_host if not a.is_host.all() else ~a.is_host

        def tensor(values: NDArray[Any]) -> torch.Tensor:
            return torch.as_tensor(values.astype(np.float32), device=torch_device)

        def weights(is_member: NDArray[Any]) -> torch.Tensor:
            count = is_member.sum(axis=-1, keepdims=True)
            return tensor(is_member / np.maximum(count, 1) if means else is_member)

        return cls(
            problem,
            grouping,
            torch.as_tensor(op_groups.legal_devices(problem, grouping), device=torch_device),
            tensor(attributes),
            weights(adjacency),
            weights(adjacency.T.copy()),
            weights(np.stack([is_ancestor, is_descendant, unrelated])),
            int((~is_host).argmax()),
        )

    def group_starts(self, seconds: NDArray[np.float64]) -> NDArray[np.float32]:
        """Groups × plans, 0 to 1: when each group starts, from start times of plans × ops."""
        order, first_op = self._ops_by_group
        earliest = np.minimum.reduceat(seconds[:, order], first_op, axis=1)
        scale = np.maximum(earliest.max(axis=1, keepdims=True), 1e-30)
        return np.ascontiguousarray((earliest / scale).T, dtype=np.float32)

    @cached_property
    def _ops_by_group(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Scheduled ops, or all ops of a group that has none, group by group."""
        scheduled, group = self.problem.arrays.scheduled, self.grouping.group
        has_scheduled = np.zeros(len(self.grouping), dtype=bool)
        has_scheduled[group[scheduled]] = True
        ops = np.flatnonzero(scheduled | ~has_scheduled[group])
        order = ops[np.argsort(group[ops], kind="stable")]
        first_op = np.unique(group[order], return_index=True)[1]
        return order.astype(np.int64), first_op.astype(np.int64)


def _number_by_flow(
    problem: Problem, grouping: Grouping, forward_only: bool
) -> tuple[Grouping, NDArray[np.int64], NDArray[np.int64]]:
    """The groups in topological order of their scheduled ops, and the edges between them.

    Groups that lie on a cycle keep the order of their first ops.
    """
    a, group = problem.arrays, grouping.group.astype(np.int64)
    included = a.scheduled
    if forward_only:
        included = included & np.array([op.phase == "forward" for op in problem.graph.ops])
    producer = a.producer[a.inputs]
    between = included[producer] & included[a.reader] & (group[producer] != group[a.reader])
    pairs = np.unique(np.stack([group[producer], group[a.reader]])[:, between], axis=1)
    position = topological_positions(len(grouping), zip(*pairs.tolist(), strict=True))
    if position is None:
        return grouping, pairs[0], pairs[1]
    numbered = Grouping(grouping.name, position[group].astype(np.int32))
    return numbered, position[pairs[0]], position[pairs[1]]


@dataclass(frozen=True, eq=False)
class ObservationBatch:
    """Several problems in one batch: as in `PlacetoObservation`, padded to the most groups.

    A padding group has no neighbours and no relations, so it changes nothing.
    """

    groups: int
    legal: torch.Tensor
    attributes: torch.Tensor
    adjacency: tuple[torch.Tensor, torch.Tensor]
    has_neighbours: tuple[torch.Tensor, torch.Tensor]  # 1 for groups that have such a neighbour
    relations: torch.Tensor

    @classmethod
    def of(cls, observations: Sequence[PlacetoObservation]) -> ObservationBatch:
        max_groups = max(len(item.grouping) for item in observations)

        def stack_padded(tensors: Sequence[torch.Tensor], square: bool = False) -> torch.Tensor:
            if len(tensors) == 1:
                return tensors[0][None]
            missing = [max_groups - item.shape[-2] for item in tensors]
            pad = torch.nn.functional.pad
            paddings = [(0, item if square else 0, 0, item) for item in missing]
            return torch.stack(
                [pad(tensor, padding) for tensor, padding in zip(tensors, paddings, strict=True)]
            )

        adjacency = (
            stack_padded([item.predecessors for item in observations], True),
            stack_padded([item.successors for item in observations], True),
        )
        has_predecessors, has_successors = (
            (item.sum(dim=2) > 0).float()[:, :, None, None] for item in adjacency
        )
        return cls(
            max_groups,
            stack_padded([item.legal for item in observations]),
            stack_padded([item.attributes for item in observations]),
            adjacency,
            (has_predecessors, has_successors),
            stack_padded([item.relations for item in observations], True),
        )
