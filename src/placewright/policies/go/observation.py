"""What GO observes of a problem: its units, their features and groups, and initial plans.

A unit is an op with all that must be on its device, such as its weights. Units are in graph order,
so they are in topological order of their leaders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.policies.go.features import UnitFeatures, to_tensors, unit_features
from placewright.policies.go.initial_plans import (
    canonical_devices,
    equal_devices,
    heuristic_plans,
    path_lengths,
)
from placewright.policies.go.levels import (
    PARTS,
    UNITS,
    by_modules,
    by_parts,
)
from placewright.transforms import PathLengths, nested_groupings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays

_MAX_GROUP_SHARE = 0.7  # of the units: more groups than this are not worth a pass
_MAX_RUN_LEVELS = 4


@dataclass(frozen=True, eq=False)
class GoObservation:
    """What GO reads of a problem.

    Args:
        unit: Ops: the unit of each.
        legal: Units × devices.
        seconds: Units × devices: all work of a unit there.
        initial_plans: Plans × units, with devices numbered by first use.
        device_classes: Classes of devices that can be exchanged.
        path_lengths: Ops: seconds of the mean longest path to the end of the graph, and from its
            start.
    """

    problem: Problem
    unit: NDArray[np.int64]
    leader: NDArray[np.int64]
    legal: NDArray[np.bool_]
    initial_plans: NDArray[np.int64]
    device_classes: list[list[int]]
    path_lengths: tuple[NDArray[np.float64], NDArray[np.float64]]
    flow: PathLengths
    seconds: NDArray[np.float64]
    mean_seconds: float  # of a unit on its fastest device: the scale of all times
    features: UnitFeatures
    times_cache: dict[bytes, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Unit times under the last plans, by plan."""
    _tensors: dict[str, FeatureTensors] = field(default_factory=dict)
    _grouped_units: dict[str, GroupedUnits | None] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, max_units: int, plan_count: int = 1) -> GoObservation:
        """The problem's units; merged along heavy edges where there are more than `max_units`."""
        a = problem.arrays
        leader, unit = _unit_labels(problem, max_units)
        legal, device_classes, op_path_lengths = (
            _legal_devices(a, unit, leader),
            equal_devices(a),
            path_lengths(a),
        )
        plans = heuristic_plans(problem, op_path_lengths[0], plan_count)[:, leader]
        plans = np.where(legal[np.arange(len(leader)), plans], plans, legal.argmax(axis=1))
        canonical = np.stack(
            [canonical_devices(plan, device_classes, np.arange(len(leader))) for plan in plans]
        )
        initial = canonical.astype(np.int64)
        return cls._from_units(
            problem, unit, leader, legal, initial, device_classes, op_path_lengths, PathLengths(a)
        )

    @classmethod
    def _from_units(
        cls,
        problem: Problem,
        unit: NDArray[np.int64],
        leader: NDArray[np.int64],
        legal: NDArray[np.bool_],
        initial_plans: NDArray[np.int64],
        device_classes: list[list[int]],
        op_path_lengths: tuple[NDArray[np.float64], NDArray[np.float64]],
        flow: PathLengths,
    ) -> GoObservation:
        """The units with their features; the last three arguments are the same at all levels."""
        a = problem.arrays
        compute = np.where(a.scheduled[:, None], a.compute, 0.0)
        columns = [np.bincount(unit, column, len(leader)) for column in compute.T]
        seconds = np.stack(columns, axis=1).astype(float)
        mean_seconds = max(float(np.where(legal, seconds, np.inf).min(axis=1).mean()), 1e-30)
        features = unit_features(
            problem, unit, leader, legal, seconds, op_path_lengths, mean_seconds
        )
        fields = problem, unit, leader, legal, initial_plans, device_classes, op_path_lengths, flow
        return cls(*fields, seconds, mean_seconds, features)

    def __len__(self) -> int:
        return len(self.leader)

    @property
    def initial_plan(self) -> NDArray[np.int64]:
        """The best initial plan."""
        return self.initial_plans[0]

    def at_level(self, level: str) -> GroupedUnits | None:
        """Its units grouped by modules or parts; None for units, or where groups are too many."""
        if level not in self._grouped_units:
            group = self._group_labels(level)
            self._grouped_units[level] = None if group is None else self._from_groups(group)
        return self._grouped_units[level]

    def _group_labels(self, level: str) -> NDArray[np.int64] | None:
        if level == UNITS:
            return None
        group = self._module_labels
        if level == PARTS:
            group = by_parts(self.problem, self.leader, self.seconds.min(axis=1), group)
        return group if group.max() + 1 <= _MAX_GROUP_SHARE * len(self) else None

    @cached_property
    def _module_labels(self) -> NDArray[np.int64]:
        return by_modules(self.problem, self.leader, self.legal)

    def _from_groups(self, group: NDArray[np.int64]) -> GroupedUnits:
        _, first_unit, group = np.unique(group, return_index=True, return_inverse=True)
        by_leader = np.argsort(first_unit)  # groups are in the order of their leaders, as units are
        group = np.argsort(by_leader)[group.reshape(-1)]
        leading_unit = first_unit[by_leader]
        units = (
            group[self.unit],
            self.leader[leading_unit],
            self.legal[leading_unit],
            self.initial_plans[:, leading_unit],
        )
        common = self.device_classes, self.path_lengths, self.flow
        return GroupedUnits(GoObservation._from_units(self.problem, *units, *common), group)

    def group_of_units(self, level: str) -> NDArray[np.int64]:
        """Units: the group of each; without groups the unit itself."""
        grouped_units = self.at_level(level)
        return np.arange(len(self)) if grouped_units is None else grouped_units.group

    def majority_devices(
        self, group: NDArray[np.int64], plan: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Groups: the device that has most of each group's work in a plan of units."""
        work = self.seconds.min(axis=1) + 1e-6 * self.mean_seconds
        table = np.zeros((int(group.max()) + 1, self.legal.shape[1]))
        np.add.at(table, (group, plan), work)
        return table.argmax(axis=1)

    @cached_property
    def unit_runs(self) -> list[NDArray[np.int64]]:
        """Runs of neighbouring units that may share random numbers: of 1, 2, 4 and 8 units."""
        levels = [np.arange(len(self))]
        while levels[-1][-1] >= 2 * self.legal.shape[1] and len(levels) < _MAX_RUN_LEVELS:
            levels.append(levels[-1] // 2)
        return levels

    def priorities(self, placements: NDArray[np.integer]) -> NDArray[np.float64]:
        """Plans × ops: the longest path to the end first, over the devices and links of each plan.

        With mean path lengths instead, strong plans took 1.08 times as long as in the orders of the
        solvers that found them, and with these 1.015 times (46 problems; NMT on 6 P100: 1.28 and
        1.08).
        """
        return -self.flow.bottom_levels(placements.astype(np.int32))

    def tensors(self, torch_device: torch.device) -> FeatureTensors:
        """The features as tensors on a device; made once."""
        key = str(torch_device)
        if key not in self._tensors:
            self._tensors[key] = FeatureTensors.of(self.features, torch_device)
        return self._tensors[key]

    def unit_times(
        self, start: NDArray[np.float64], end: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Plans × units: the first start and the last end, relative to a mean unit's seconds.

        Unscheduled ops have no times.
        """
        scheduled = self.problem.arrays.scheduled
        ops = np.flatnonzero(scheduled)
        order = ops[np.argsort(self.unit[ops], kind="stable")]
        units, first_op = np.unique(self.unit[order], return_index=True)
        bounds = np.zeros((2, len(start), len(self)), dtype=np.float32)
        if len(units):
            bounds[0][:, units] = (
                np.minimum.reduceat(start[:, order], first_op, axis=1) / self.mean_seconds
            )
            bounds[1][:, units] = (
                np.maximum.reduceat(end[:, order], first_op, axis=1) / self.mean_seconds
            )
        return bounds[0], bounds[1]

    def legalize(self, unit_devices: NDArray[np.integer]) -> NDArray[np.int32]:
        """Plans × units as plans × ops that keep the constraints."""
        return self.problem.legalize(unit_devices[..., self.unit])


@dataclass(frozen=True, eq=False)
class FeatureTensors:
    """Features on a torch device, with edges as sparse units × units matrices.

    Args:
        transfers: For each link class the seconds of edges into each unit, and out of it.
        neighbours: The weights of edges into each unit, and out of it.
    """

    features: UnitFeatures
    transfers: list[tuple[torch.Tensor, torch.Tensor]]
    neighbours: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def of(cls, features: UnitFeatures, torch_device: torch.device) -> FeatureTensors:
        tensors = to_tensors(features, torch_device)
        edges, units = tensors.edges, len(tensors.kind)
        index = torch.stack([edges.target, edges.source])

        def matrices(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            into = _sparse_matrix(index, weight, units)
            return into, _sparse_matrix(index.flip(0), weight, units)

        transfers = [matrices(seconds) for seconds in edges.seconds]
        return cls(tensors, transfers, matrices(edges.weight))


@dataclass(frozen=True, eq=False)
class GroupedUnits:
    """Units in groups that are decided as one.

    Args:
        observation: The groups, as if each were a unit.
        group: Units: the group of each.
    """

    observation: GoObservation
    group: NDArray[np.int64]


def _unit_labels(problem: Problem, max_units: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The leader of each unit, ascending, and the unit of each op."""
    a = problem.arrays
    label = a.leader.astype(np.int64)
    if len(np.unique(label)) > max_units:
        levels = nested_groupings(problem)
        grouping = next(
            (candidate for candidate in levels if len(candidate) <= max_units), levels[-1]
        )
        first_leader = np.full(len(grouping), a.ops)
        np.minimum.at(first_leader, grouping.group, label)
        label = first_leader[grouping.group]
    leader, unit = np.unique(label, return_inverse=True)
    return leader, unit.astype(np.int64)


def _legal_devices(
    a: Arrays, unit: NDArray[np.int64], leader: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Units × devices: where at least one op of a unit is legal; `legalize` does the rest."""
    leads = np.flatnonzero(a.leader == np.arange(a.ops))
    legal = np.zeros((len(leader), a.devices), dtype=bool)
    np.logical_or.at(legal, unit[leads], a.allowed[leads])
    return legal


def _sparse_matrix(index: torch.Tensor, values: torch.Tensor, units: int) -> torch.Tensor:
    check: Any = torch.sparse.check_sparse_tensor_invariants
    with check(False):  # PyTorch warns where this is left open
        return torch.sparse_coo_tensor(index, values, (units, units)).coalesce()
