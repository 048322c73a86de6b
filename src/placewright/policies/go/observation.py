"""What GO is told: a problem in, its units, what is known of each and how they hang together out.

A unit is an op with all that must be with it, such as its weights. Units stand in the order of the
graph, so they are in topological order of the ops that lead them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.policies.go.features import told_arrays
from placewright.policies.go.initial_plans import (
    alike,
    by_first_use,
    first_plans,
    ways,
)
from placewright.policies.go.levels import (
    PARTS,
    UNITS,
    by_modules,
    by_parts,
)
from placewright.transforms import Flow, nested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.arrays import Arrays
    from placewright.problem import Problem

_MANY = 0.7  # of the units: groups that are as many are no groups
_STRETCHES = 4


@dataclass(frozen=True, eq=False)
class Seen:
    """A problem as GO sees it.

    Args:
        unit: Ops: the unit of each.
        legal: Units × devices.
        seconds: Units × devices: all work of a unit there.
        starts: Plans × units: what a first pass may read, devices numbered by first use.
        classes: Devices that may change places.
        ways: Ops: the mean way to the end of the graph in seconds, and from its beginning.
    """

    problem: Problem
    unit: NDArray[np.int64]
    leader: NDArray[np.int64]
    legal: NDArray[np.bool_]
    starts: NDArray[np.int64]
    classes: list[list[int]]
    ways: tuple[NDArray[np.float64], NDArray[np.float64]]
    flow: Flow
    seconds: NDArray[np.float64]
    mean: float  # seconds of a mean unit on its fastest device: the unit of all times
    arrays: dict[str, NDArray[np.generic]]
    moments: dict[bytes, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """When units run under the plans that were asked about last."""
    _on: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    _grouped: dict[str, Grouped | None] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, most: int, starts: int = 1) -> Seen:
        """The problem's units; merged along heavy edges where there are more than `most`."""
        a = problem.arrays
        leader, unit = _units(problem, most)
        legal, classes, lengths = _legal(a, unit, leader), alike(a), ways(a)
        plans = first_plans(problem, lengths[0], starts)[:, leader]
        plans = np.where(legal[np.arange(len(leader)), plans], plans, legal.argmax(axis=1))
        named = np.stack([by_first_use(plan, classes, np.arange(len(leader))) for plan in plans])
        begin = named.astype(np.int64)
        return cls._of_units(problem, unit, leader, legal, begin, classes, lengths, Flow(a))

    @classmethod
    def _of_units(
        cls,
        problem: Problem,
        unit: NDArray[np.int64],
        leader: NDArray[np.int64],
        legal: NDArray[np.bool_],
        starts: NDArray[np.int64],
        classes: list[list[int]],
        lengths: tuple[NDArray[np.float64], NDArray[np.float64]],
        flow: Flow,
    ) -> Seen:
        """Units with what is reckoned from these; the last three are the same for all groups."""
        a = problem.arrays
        compute = np.where(a.turn[:, None], a.compute, 0.0)
        columns = [np.bincount(unit, column, len(leader)) for column in compute.T]
        seconds = np.stack(columns, axis=1).astype(float)
        mean = max(float(np.where(legal, seconds, np.inf).min(axis=1).mean()), 1e-30)
        arrays = told_arrays(problem, unit, leader, legal, seconds, lengths, mean)
        given = problem, unit, leader, legal, starts, classes, lengths, flow
        return cls(*given, seconds, mean, arrays)

    def __len__(self) -> int:
        return len(self.leader)

    @property
    def start(self) -> NDArray[np.int64]:
        """The first of them."""
        return self.starts[0]

    def grouped(self, level: str) -> Grouped | None:
        """Its units by modules or parts of them; None for units, or where it would say nothing."""
        if level not in self._grouped:
            group = self._groups(level)
            self._grouped[level] = None if group is None else self._of_groups(group)
        return self._grouped[level]

    def _groups(self, level: str) -> NDArray[np.int64] | None:
        if level == UNITS:
            return None
        group = self._modules
        if level == PARTS:
            group = by_parts(self.problem, self.leader, self.seconds.min(axis=1), group)
        return group if group.max() + 1 <= _MANY * len(self) else None

    @cached_property
    def _modules(self) -> NDArray[np.int64]:
        return by_modules(self.problem, self.leader, self.legal)

    def _of_groups(self, group: NDArray[np.int64]) -> Grouped:
        _, first, group = np.unique(group, return_index=True, return_inverse=True)
        rising = np.argsort(first)  # units stand in the order of their leaders, and so do groups
        group = np.argsort(rising)[group.reshape(-1)]
        head = first[rising]
        units = group[self.unit], self.leader[head], self.legal[head], self.starts[:, head]
        shared = self.classes, self.ways, self.flow
        return Grouped(Seen._of_units(self.problem, *units, *shared), group)

    def members(self, level: str) -> NDArray[np.int64]:
        """Units: the group of each, or itself."""
        grouped = self.grouped(level)
        return np.arange(len(self)) if grouped is None else grouped.group

    def rounded(self, group: NDArray[np.int64], plan: NDArray[np.integer]) -> NDArray[np.int64]:
        """Groups: where a plan of units has most of the work of each."""
        work = self.seconds.min(axis=1) + 1e-6 * self.mean
        table = np.zeros((int(group.max()) + 1, self.legal.shape[1]))
        np.add.at(table, (group, plan), work)
        return table.argmax(axis=1)

    @cached_property
    def stretches(self) -> list[NDArray[np.int64]]:
        """Units in stretches of neighbours that may share their luck: alone, by twos, by fours."""
        levels = [np.arange(len(self))]
        while levels[-1][-1] >= 2 * self.legal.shape[1] and len(levels) < _STRETCHES:
            levels.append(levels[-1] // 2)
        return levels

    def order(self, device: NDArray[np.integer]) -> NDArray[np.float64]:
        """Plans × ops: the longest way to the end first, over the devices and links of each plan.

        With the mean way instead, strong plans took 1.08 times as long as in their makers' own
        orders, and so 1.015 times (46 problems; NMT on 6 P100: 1.28 and 1.08).
        """
        return -self.flow.bottom_levels(device.astype(np.int32))

    def on(self, where: torch.device) -> dict[str, torch.Tensor]:
        """What it holds, as tensors on a device; made once."""
        key = str(where)
        if key not in self._on:
            made = {}
            for name, values in self.arrays.items():
                kind = torch.float32 if values.dtype.kind == "f" else None
                made[name] = torch.as_tensor(values, dtype=kind, device=where)
            units = len(self)
            index = torch.stack([made["target"], made["source"]])
            for name, weights in (("into", made["sent"]), ("near", made["mean"][None])):
                for at, weight in enumerate(weights):
                    made[f"{name}{at}"] = _sparse(index, weight, units)
                    made[f"{name}{at}t"] = _sparse(index.flip(0), weight, units)
            self._on[key] = made
        return self._on[key]

    def times(
        self, start: NDArray[np.float64], end: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Plans × ops as plans × units: the first start and the last end, in terms of a unit's.

        What takes no turn has no time of its own.
        """
        turn = self.problem.arrays.turn
        ops = np.flatnonzero(turn)
        order = ops[np.argsort(self.unit[ops], kind="stable")]
        units, first = np.unique(self.unit[order], return_index=True)
        found = np.zeros((2, len(start), len(self)), dtype=np.float32)
        if len(units):
            found[0][:, units] = np.minimum.reduceat(start[:, order], first, axis=1) / self.mean
            found[1][:, units] = np.maximum.reduceat(end[:, order], first, axis=1) / self.mean
        return found[0], found[1]

    def settle(self, device: NDArray[np.integer]) -> NDArray[np.int32]:
        """Plans × units as lawful plans × ops."""
        return self.problem.settle(device[..., self.unit])


@dataclass(frozen=True, eq=False)
class Grouped:
    """Units in groups that are decided on as one.

    Args:
        seen: The groups, as if each were a unit.
        group: Units: the group of each.
    """

    seen: Seen
    group: NDArray[np.int64]


def _units(problem: Problem, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The op that leads each unit, rising, and the unit of each op."""
    a = problem.arrays
    label = a.leader.astype(np.int64)
    if len(np.unique(label)) > most:
        levels = nested(problem)
        fitting = next((each for each in levels if len(each) <= most), levels[-1])
        first = np.full(len(fitting), a.ops)
        np.minimum.at(first, fitting.group, label)
        label = first[fitting.group]
    leader, unit = np.unique(label, return_inverse=True)
    return leader, unit.astype(np.int64)


def _legal(a: Arrays, unit: NDArray[np.int64], leader: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Units × devices: where at least one op of a unit may be; the problem settles the rest."""
    leads = np.flatnonzero(a.leader == np.arange(a.ops))
    legal = np.zeros((len(leader), a.devices), dtype=bool)
    np.logical_or.at(legal, unit[leads], a.allowed[leads])
    return legal


def _sparse(index: torch.Tensor, values: torch.Tensor, units: int) -> torch.Tensor:
    check: Any = torch.sparse.check_sparse_tensor_invariants
    with check(False):  # PyTorch warns where nobody says
        return torch.sparse_coo_tensor(index, values, (units, units)).coalesce()
