"""The units that the Hierarchical policy's grouper decides on, and their features.

A weight goes with its first reader and a gradient op with its forward op, as in the papers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ProblemError
from placewright.policies.grouping import group_edges, group_ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.transforms import Grouping


@dataclass(frozen=True, eq=False)
class GrouperUnits:
    """Forward ops with the ops that are placed with them.

    Args:
        kind: Units: the index of the forward op's kind.
        log_sizes: Units × outputs: log bytes of the forward op's outputs, standardised.
        neighbour_positions: Units × twice the neighbours: positions of sources and of readers, 0
            to 1, or -1 for none, standardised.
        output_bytes: Units × outputs: bytes of the forward op's outputs.
        position: Units: the share of all work before its middle, 0 to 1.
        source, target: Edges between units.
    """

    grouping: Grouping
    kind: NDArray[np.int64]
    log_sizes: NDArray[np.float32]
    neighbour_positions: NDArray[np.float32]
    output_bytes: NDArray[np.float32]
    position: NDArray[np.float64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]

    @classmethod
    def of(
        cls, problem: Problem, kinds: tuple[str, ...], outputs: int, neighbours: int
    ) -> GrouperUnits:
        """The units of a problem.

        Raises:
            ProblemError: An op is of a kind that is not among `kinds`.
        """
        a, grouping = problem.arrays, group_ops(problem, "forward", 0)
        kind_index = {kind: at for at, kind in enumerate(kinds)}
        unknown = sorted({op.kind for op in problem.graph.ops} - set(kinds))
        if unknown:
            raise ProblemError(
                f"the policy knows no op of kind {', '.join(unknown)}: train a policy for it"
            )
        leader = np.unique(grouping.group, return_index=True)[1]
        scheduled_units, first_op = np.unique(grouping.group[a.scheduled], return_index=True)
        leader[scheduled_units] = np.flatnonzero(a.scheduled)[first_op]
        sizes = np.zeros((len(grouping), outputs), dtype=np.float32)
        for unit, op in enumerate(leader):
            output_sizes = problem.graph.ops[op].outputs[:outputs]
            sizes[unit, : len(output_sizes)] = output_sizes
        seconds = np.where(a.scheduled, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
        work = np.bincount(grouping.group, weights=seconds, minlength=len(grouping)).astype(float)
        # Where nothing takes time, positions follow the unit's number.
        work = work + max(float(work.sum()), 1e-12) / (10 * len(work))
        source, target = group_edges(problem, grouping)
        return cls(
            grouping,
            np.array([kind_index[problem.graph.ops[op].kind] for op in leader], dtype=np.int64),
            _standardise(np.log1p(sizes)),
            _standardise(_neighbour_positions(source, target, len(grouping), neighbours)),
            sizes,
            (np.cumsum(work) - work / 2) / work.sum(),
            source,
            target,
        )

    def __len__(self) -> int:
        return len(self.grouping)


def _standardise(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each column with mean 0 and deviation 1, or all 0 if it is constant."""
    deviation = columns.std(axis=0)
    scaled = (columns - columns.mean(axis=0)) / np.where(deviation > 1e-6, deviation, np.inf)
    return scaled.astype(np.float32)


def _neighbour_positions(
    source: NDArray[np.int64], target: NDArray[np.int64], count: int, neighbours: int
) -> NDArray[np.float32]:
    """Units × twice the neighbours: the numbers of the first sources and readers, as shares."""
    positions = np.full((count, 2 * neighbours), -1.0, dtype=np.float32)
    filled = np.zeros((count, 2), dtype=np.int64)
    for tail, head in zip(source.tolist(), target.tolist(), strict=True):
        for unit, side, neighbour in ((head, 0, tail), (tail, 1, head)):
            if filled[unit, side] < neighbours:
                positions[unit, side * neighbours + filled[unit, side]] = neighbour / count
                filled[unit, side] += 1
    return positions
