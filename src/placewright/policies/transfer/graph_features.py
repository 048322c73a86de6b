"""Graph features of groups and devices, added to the features of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.policies import grouping as op_groups
from placewright.policies.transfer.neighbourhood_kernels import (
    NEIGHBOURHOODS,
    diffusion_kernels,
    path_positions,
)
from placewright.scheduling.reachability import ancestors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.policies.transfer.features import PairFeatures
    from placewright.problem import Problem
    from placewright.scheduling.batched_schedules import (
        BatchedSchedule,
        RankedOp,
        ScheduleOrder,
    )


@dataclass(frozen=True)
class FeatureFlags:
    """Which graph features there are, besides the estimates.

    Args:
        senses: The shares of a group's neighbours (`diffusion.NEIGHBOURHOODS`) on each device.
        draft: An initial placement, which groups keep until they are decided, as in Placeto: where
            readers will probably be, and how much work each device will have.
        blind: No graph features at all, for ablations.
    """

    senses: bool = False
    draft: bool = False
    blind: bool = False

    @property
    def group_width(self) -> int:
        """The number of attributes of a group."""
        return 8 + 2 * self.senses + self.draft

    @property
    def pair_width(self) -> int:
        """The number of graph features of a pair."""
        return 6 + len(NEIGHBOURHOODS) * self.senses + 2 * self.draft


@dataclass(frozen=True, eq=False)
class InitialPlacement:
    """A whole placement: devices × groups, 1 where a group is; and when each group starts."""

    occupancy: NDArray[np.float32]
    start: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GraphFeatures:
    """Features of a problem's pairs, with the graph around each group.

    Args:
        attributes: Groups × numbers: the inputs of the graph network.
        adjacency: 2 × groups × groups: means over a group's sources, and over its readers.
        shares: Groups × groups × kernels: shares of the work in ancestors, descendants and the
            rest, and the diffusion kernels.
    """

    pair_features: PairFeatures
    flags: FeatureFlags
    attributes: NDArray[np.float32]
    adjacency: NDArray[np.float32]
    shares: NDArray[np.float32]
    speed: NDArray[np.float64]  # devices: log of all work there relative to the fastest device
    remaining_work: NDArray[np.float64]  # groups: the share of all work that is undecided then
    initial_placement: InitialPlacement | None

    @classmethod
    def of(
        cls,
        problem: Problem,
        pair_features: PairFeatures,
        flags: FeatureFlags | None = None,
        initial_placement: InitialPlacement | None = None,
    ) -> GraphFeatures:
        order = pair_features.order
        flags = flags or FeatureFlags()
        grouping = order.grouping
        groups = len(grouping)
        source, target = op_groups.group_edges(problem, grouping)
        adjacency = np.zeros((2, groups, groups), dtype=np.float32)
        adjacency[0, target, source] = adjacency[1, source, target] = 1.0
        degree = adjacency.sum(axis=2)
        is_ancestor = ancestors(groups, source, target)
        is_descendant = is_ancestor.T & ~is_ancestor
        unrelated = ~(is_ancestor | is_descendant | np.eye(groups, dtype=bool))
        work = pair_features.fastest + 1e-3 * pair_features.mean_scale
        related_work = np.stack([is_ancestor, is_descendant, unrelated]) * work
        shares = related_work.sum(axis=2)  # work before, after and parallel to each group
        sent_bytes = op_groups.output_bytes(problem, grouping)
        total = work.sum()
        columns = [
            np.log1p(work / pair_features.mean_scale),
            np.log1p(sent_bytes / max(sent_bytes.mean(), 1e-30)),
            np.log1p(pair_features.memory_bytes / max(pair_features.memory_bytes.mean(), 1e-30)),
            pair_features.criticality,
            np.log1p(degree[0]),
            np.log1p(degree[1]),
            shares[0] / total,
            shares[2] / total,
        ]
        means = (related_work / np.maximum(shares, 1e-30)[:, :, None]).astype(np.float32)
        all_kernels = means
        if flags.senses:
            columns += path_positions(order)
            all_kernels = np.concatenate([means, diffusion_kernels(order)])
        if initial_placement is not None:
            columns.append(
                initial_placement.start / max(float(initial_placement.start.max()), 1e-30)
            )
        seconds = pair_features.seconds.sum(axis=0)
        remaining_work = np.zeros(groups)
        remaining_work[order.decision_groups] = 1 - np.cumsum(work[order.decision_groups]) / total
        return cls(
            pair_features,
            flags,
            (np.stack(columns, axis=1) * (not flags.blind)).astype(np.float32),
            adjacency / np.maximum(degree, 1.0)[:, :, None],
            np.ascontiguousarray(all_kernels.transpose(1, 2, 0)),
            np.log(np.maximum(seconds, 1e-30) / max(float(seconds.min()), 1e-30)),
            remaining_work,
            initial_placement,
        )

    @property
    def order(self) -> ScheduleOrder:
        return self.pair_features.order

    @property
    def width(self) -> int:
        return self.pair_features.width + self.flags.pair_width

    @property
    def means(self) -> NDArray[np.float32]:
        """3 × groups × groups: means over ancestors, descendants and the rest, by work."""
        return self.shares[..., :3].transpose(2, 0, 1)

    def prepare(self, schedule: BatchedSchedule) -> None:
        """Start with the initial placement, if there is one."""
        if self.initial_placement is not None:
            schedule.occupancy[:] = self.initial_placement.occupancy

    def features(self, schedule: BatchedSchedule, ranked_op: RankedOp) -> NDArray[np.float64]:
        """Episodes × devices × features: the estimates, and the graph around on each device."""
        estimates = self.pair_features.features(schedule, ranked_op)
        group, devices = ranked_op.group, schedule.arrays.devices
        graph_features = np.empty((*estimates.shape[:2], self.flags.pair_width))
        kernels = self.shares.shape[2]
        graph_features[..., :kernels] = (
            0.0 if self.flags.blind else schedule.occupancy @ self.shares[group]
        )
        graph_features[..., kernels] = self.speed
        graph_features[..., kernels + 1] = self.remaining_work[group]
        graph_features[..., kernels + 2] = np.log(devices)
        if self.initial_placement is not None:
            is_here = schedule.occupancy[:, :, group]
            # The final work of a device if this group goes there.
            load = np.einsum("edg,gd->ed", schedule.occupancy, self.pair_features.seconds)
            load = load + (1 - is_here) * self.pair_features.seconds[group]
            graph_features[..., kernels + 3] = is_here
            graph_features[..., kernels + 4] = np.minimum(
                load / self.pair_features.fair_share - 1.0, 4.0
            )
        return np.concatenate([estimates, graph_features], axis=2)
