"""What Placeto sees: a problem in, its groups' attributes and who is before and after them out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.policies import grouping as made
from placewright.scheduling.reachability import ancestors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.transforms import Grouping


@dataclass(frozen=True, eq=False)
class Seen:
    """A problem as the network sees it.

    Args:
        plain: Groups × 2: time and bytes, each as a share of the largest.
        down, up: Groups × groups: 1 for what a group reads from, and for what reads from it.
        around: 3 × groups × groups: a group's ancestors, descendants and the rest.
        first: The device on which everything starts.
    """

    problem: Problem
    grouping: Grouping
    legal: torch.Tensor  # groups × devices
    plain: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor
    around: torch.Tensor
    first: int

    @classmethod
    def of(cls, problem: Problem, rule: str, most: int, where: torch.device) -> Seen:
        a = problem.arrays
        grouping = made.grouped(problem, rule, most)
        groups = len(grouping)
        seconds = np.where(a.turn, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
        work = np.bincount(grouping.group, weights=seconds, minlength=groups)
        source, target = made.edges(problem, grouping)
        size = made.sent_bytes(problem, grouping)
        plain = np.stack([work / max(work.max(), 1e-30), size / max(size.max(), 1e-30)], axis=1)
        near = np.zeros((groups, groups), dtype=np.float32)
        near[target, source] = 1.0
        before = ancestors(groups, source, target)
        after = before.T & ~before
        rest = ~(before | after | np.eye(groups, dtype=bool))
        host = a.host if not a.host.all() else ~a.host

        def tensor(values: NDArray[Any]) -> torch.Tensor:
            return torch.as_tensor(values.astype(np.float32), device=where)

        return cls(
            problem,
            grouping,
            torch.as_tensor(made.legal_devices(problem, grouping), device=where),
            tensor(plain),
            tensor(near),
            tensor(near.T.copy()),
            tensor(np.stack([before, after, rest])),
            int((~host).argmax()),
        )

    def starts(self, seconds: NDArray[np.float64]) -> NDArray[np.float32]:
        """Groups × plans, 0 to 1: when each group starts, from when ops do (plans × ops)."""
        order, first = self._by_group
        least = np.minimum.reduceat(seconds[:, order], first, axis=1)
        scale = np.maximum(least.max(axis=1, keepdims=True), 1e-30)
        return np.ascontiguousarray((least / scale).T, dtype=np.float32)

    @cached_property
    def _by_group(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ops that take a turn, or all of a group of which none does, group by group."""
        turn, group = self.problem.arrays.turn, self.grouping.group
        some = np.zeros(len(self.grouping), dtype=bool)
        some[group[turn]] = True
        ops = np.flatnonzero(turn | ~some[group])
        order = ops[np.argsort(group[ops], kind="stable")]
        first = np.unique(group[order], return_index=True)[1]
        return order.astype(np.int64), first.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Side:
    """Several problems side by side: as in `Seen` behind the problem's number, padded to the most.

    A group that is there to fill up has no neighbours and is around nobody, so nobody hears of it.
    """

    groups: int
    legal: torch.Tensor
    plain: torch.Tensor
    near: tuple[torch.Tensor, torch.Tensor]
    some: tuple[torch.Tensor, torch.Tensor]  # 1 for groups that have such a neighbour
    around: torch.Tensor

    @classmethod
    def of(cls, seens: Sequence[Seen]) -> Side:
        most = max(len(each.grouping) for each in seens)

        def put(tensors: Sequence[torch.Tensor], square: bool = False) -> torch.Tensor:
            if len(tensors) == 1:
                return tensors[0][None]
            pads = [most - each.shape[-2] for each in tensors]
            pad = torch.nn.functional.pad
            ways = [(0, each if square else 0, 0, each) for each in pads]
            return torch.stack([pad(one, way) for one, way in zip(tensors, ways, strict=True)])

        near = put([each.down for each in seens], True), put([each.up for each in seens], True)
        down, up = ((each.sum(dim=2) > 0).float()[:, :, None, None] for each in near)
        return cls(
            most,
            put([each.legal for each in seens]),
            put([each.plain for each in seens]),
            near,
            (down, up),
            put([each.around for each in seens], True),
        )
