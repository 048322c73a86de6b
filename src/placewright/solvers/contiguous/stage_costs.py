"""The cost in seconds of a stage between two points on a device.

For the period without overlap a device pays for its ops, for each tensor it receives and once for
each it sends; a host pays for its ops only. With overlap ops and channels count separately.
Transfers of a stage over one channel, if all links from or to its device share one, count in full,
but a tensor for several devices once only. Otherwise a share of them counts: the full count is
exact if the device has one neighbour only. For the step time stages run one after the other, each
after its transfers, which is exact for a chain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import CoarseGraph
    from placewright.solvers.contiguous.device_order import StageDevice

    Ints = NDArray[np.int64]
    Seconds = NDArray[np.float64]
    TransferParts = dict[str, Seconds]

BEFORE, AFTER, FIXED, SENT = "before", "after", "apart", "sent"


@dataclass(frozen=True, eq=False)
class StageMemory:
    """The memory of the stages of a split.

    Args:
        node_bytes: Bytes of each node.
        limit: Bytes that each device has for nodes.
    """

    node_bytes: NDArray[np.int64]
    limit: NDArray[np.int64]


class StageCosts(ABC):
    """The costs of all stages between the points of a family.

    Args:
        share: The share that counts of transfers over several channels (period with overlap).
    """

    def __init__(self, coarse: CoarseGraph, memory: StageMemory, share: float = 1.0) -> None:
        self.coarse, self.memory, self.share = coarse, memory, share
        self.work = np.maximum.accumulate(self.point_totals(coarse.fastest_seconds))
        self._total_bytes = self.point_totals(memory.node_bytes)
        self._forbidden = self.point_totals(~coarse.allowed)
        self._link_seconds = np.vstack([coarse.boundary.seconds, np.zeros(len(coarse.boundary))])
        problem = coarse.problem
        self._pipelined = problem.objective == "period"
        self._compute = self.point_totals(coarse.seconds)
        # Without a bound all stages are needed, and again for each number of devices.
        self._precompute = not self._pipelined
        self._cache: dict[StageDevice, Seconds] = {}
        if not self._pipelined or problem.overlap:
            self._fixed_sends = self.point_totals(self._fixed_send_seconds())

    @abstractmethod
    def point_totals(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        """Points (× …): the sum of the nodes' values (nodes × …) in each point."""

    @abstractmethod
    def stage_nodes(self, source: int, target: int) -> Ints:
        """The nodes of the stage between two points."""

    @abstractmethod
    def is_subset(self, sources: Ints, targets: Ints) -> NDArray[np.bool_]:
        """Targets × sources: whether the source is a subset of the target."""

    @abstractmethod
    def transfer_seconds(
        self, parts: TransferParts, leaving: NDArray[np.bool_], sources: Ints, targets: Ints
    ) -> Seconds:
        """Targets × sources: seconds of all transfers of the stage between the two.

        Or 1 × 1 if there are none.

        Args:
            parts: The transfers that count, with each tensor's seconds: from a node before the
                stage, from one after it, from a fixed op; or sent.
            leaving: Tensors that are sent whichever nodes are in the stage.
        """

    def seconds(
        self, stage_device: StageDevice, sources: Ints, targets: Ints, bound: float
    ) -> Seconds:
        """See `stages.StagePoints`."""
        if not self._precompute:
            return self._allowed_seconds(stage_device, sources, targets, bound)
        if stage_device not in self._cache:
            all_points = np.arange(len(self.work))
            self._cache[stage_device] = self._allowed_seconds(
                stage_device, all_points, all_points, np.inf
            )
        return self._cache[stage_device][targets[0] : targets[-1] + 1][:, sources]

    def _allowed_seconds(
        self, stage_device: StageDevice, sources: Ints, targets: Ints, bound: float
    ) -> Seconds:
        device = stage_device.device
        is_allowed = self.is_subset(sources, targets)
        if self._forbidden[-1, device]:
            is_allowed &= _differences(self._forbidden[:, device], sources, targets) == 0
        if self._total_bytes[-1] > self.memory.limit[device]:
            is_allowed &= (
                _differences(self._total_bytes, sources, targets) <= self.memory.limit[device]
            )
        if self._compute[-1, device] > bound:
            is_allowed &= _differences(self._compute[:, device], sources, targets) <= bound
        rows, columns = (
            np.flatnonzero(is_allowed.any(axis=1)),
            np.flatnonzero(is_allowed.any(axis=0)),
        )
        cost = np.full(is_allowed.shape, np.inf)
        if len(rows):
            block = np.ix_(rows, columns)
            load = self.load(stage_device, sources[columns], targets[rows])
            cost[block] = np.where(is_allowed[block], load, np.inf)
        return cost

    def load(self, stage_device: StageDevice, sources: Ints, targets: Ints) -> Seconds:
        """Targets × sources: the seconds of each stage, legal or not."""
        device = stage_device.device
        coarse, problem = self.coarse, self.coarse.problem
        a, boundary = problem.arrays, coarse.boundary
        load = _differences(self._compute[:, device], sources, targets)
        if self._pipelined:
            load += coarse.fixed_seconds[device]
            if not problem.overlap and a.is_host[device]:
                return load
        source_link = np.where(
            boundary.fixed_source >= 0, a.link_class[boundary.fixed_source, device], -1
        )
        parts = {
            BEFORE: self._link_seconds[stage_device.link_in],
            AFTER: self._link_seconds[stage_device.link_back],
            FIXED: self._link_seconds[source_link, np.arange(len(boundary))],
        }
        leaving = np.array(
            [any(target != device for target in away) for away in boundary.fixed_targets], bool
        )
        if not self._pipelined:
            away = _differences(self._fixed_sends[:, device], sources, targets)
            return load + away + self.transfer_seconds(parts, leaving, sources, targets)
        if not problem.overlap:
            parts[SENT] = self._link_seconds[stage_device.link_out]
            return load + self.transfer_seconds(parts, leaving, sources, targets)
        if self._fixed_sends[-1, device]:
            away = _differences(self._fixed_sends[:, device], sources, targets)
            np.maximum(load, self.share * away, out=load)
        others = np.arange(a.devices) != device
        single_in, single_out = (
            len(np.unique(channels[others])) == 1
            for channels in (a.channel[:, device], a.channel[device])
        )
        groups = [(parts, 1.0)] if single_in else [({p: s}, self.share) for p, s in parts.items()]
        groups.append(
            ({SENT: self._link_seconds[stage_device.link_out]}, 1.0 if single_out else self.share)
        )
        for group, share in groups:
            transfers = self.transfer_seconds(group, leaving, sources, targets)
            transfers *= share
            np.maximum(load, transfers, out=load)
        return load

    def _fixed_send_seconds(self) -> Seconds:
        """Nodes × devices: seconds of sending tensors to fixed ops on other devices."""
        coarse, a = self.coarse, self.coarse.problem.arrays
        sends = np.zeros(coarse.seconds.shape)
        for index, targets in enumerate(coarse.boundary.fixed_targets):
            for target in targets:
                sends[coarse.boundary.producer[index]] += self._link_seconds[
                    a.link_class[:, target], index
                ]
        return sends


def _differences(values: Seconds, sources: Ints, targets: Ints) -> Seconds:
    difference: Seconds = values[targets][:, None] - values[sources][None]
    return difference
