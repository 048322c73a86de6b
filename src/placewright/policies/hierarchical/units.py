"""Units for the grouper: a problem in, the ops that it decides on and what it is told of them out.

A weight goes with its first reader and a gradient op with its forward op, as in the papers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ProblemError
from placewright.policies.grouping import edges, grouped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.transforms import Grouping


@dataclass(frozen=True, eq=False)
class Units:
    """Forward ops with all that goes with them.

    Args:
        kind: Units: the number of its forward op's kind.
        sizes: Units × outputs: log bytes of its forward op's outputs, standardised.
        near: Units × twice the neighbours: places of sources and of readers, 0 to 1, or -1 for
            none, standardised.
        bytes: Units × outputs: bytes of its forward op's outputs.
        place: Units: how much of all work comes before its middle, 0 to 1.
        source, target: Edges between units.
    """

    grouping: Grouping
    kind: NDArray[np.int64]
    sizes: NDArray[np.float32]
    near: NDArray[np.float32]
    bytes: NDArray[np.float32]
    place: NDArray[np.float64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem, kinds: tuple[str, ...], outputs: int, neighbours: int) -> Units:
        """The units of a problem.

        Raises:
            ProblemError: An op is of a kind that is not among `kinds`.
        """
        a, grouping = problem.arrays, grouped(problem, "forward", 0)
        number = {kind: at for at, kind in enumerate(kinds)}
        unknown = sorted({op.kind for op in problem.graph.ops} - set(kinds))
        if unknown:
            raise ProblemError(
                f"the policy knows no op of kind {', '.join(unknown)}: train a policy for it"
            )
        leader = np.unique(grouping.group, return_index=True)[1]
        turning, first = np.unique(grouping.group[a.turn], return_index=True)
        leader[turning] = np.flatnonzero(a.turn)[first]
        held = np.zeros((len(grouping), outputs), dtype=np.float32)
        for unit, op in enumerate(leader):
            made = problem.graph.ops[op].outputs[:outputs]
            held[unit, : len(made)] = made
        seconds = np.where(a.turn, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
        work = np.bincount(grouping.group, weights=seconds, minlength=len(grouping)).astype(float)
        # Where nothing takes time, places are by number alone.
        work = work + max(float(work.sum()), 1e-12) / (10 * len(work))
        source, target = edges(problem, grouping)
        return cls(
            grouping,
            np.array([number[problem.graph.ops[op].kind] for op in leader], dtype=np.int64),
            _standard(np.log1p(held)),
            _standard(_places(source, target, len(grouping), neighbours)),
            held,
            (np.cumsum(work) - work / 2) / work.sum(),
            source,
            target,
        )

    def __len__(self) -> int:
        return len(self.grouping)


def _standard(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each column with mean 0 and deviation 1, or all 0 if it says nothing."""
    spread = columns.std(axis=0)
    scaled = (columns - columns.mean(axis=0)) / np.where(spread > 1e-6, spread, np.inf)
    return scaled.astype(np.float32)


def _places(
    source: NDArray[np.int64], target: NDArray[np.int64], count: int, neighbours: int
) -> NDArray[np.float32]:
    """Units × twice the neighbours: the first sources' and readers' numbers over their count."""
    near = np.full((count, 2 * neighbours), -1.0, dtype=np.float32)
    filled = np.zeros((count, 2), dtype=np.int64)
    for one, other in zip(source.tolist(), target.tolist(), strict=True):
        for unit, side, place in ((other, 0, one), (one, 1, other)):
            if filled[unit, side] < neighbours:
                near[unit, side * neighbours + filled[unit, side]] = place / count
                filled[unit, side] += 1
    return near
