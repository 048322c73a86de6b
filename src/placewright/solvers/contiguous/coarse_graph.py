"""Pieces: a problem in, what a contiguous split cuts between out, numbered as data flows.

A piece is made of whole teams, folded as `folding` says, and of what waits for it in a circle.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.backward_folding import (
    before,
    folded,
    without_circles,
)
from placewright.solvers.contiguous.boundary_tensors import Handed
from placewright.transforms import heavy_edges, topological

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.contiguous.backward_folding import Edges


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of a problem, in a topological order of `before`.

    Args:
        piece: Ops → pieces, or -1 for an op that can be on one device only. Such ops are set
            apart: they stand on their device whatever is cut.
        stand: The device of each op that is set apart.
        first: Each piece's first op, a forward one if it has any.
        allowed: Pieces × devices.
        seconds: Pieces × devices; 0 where a piece may not be.
        apart: Devices: seconds of the ops set apart.
        resident: Bytes that stay for the whole step.
        held: The same and every output, which is more than is ever held at once.
        before: Pairs of pieces of which the first may not be in a later stage than the second.
        handed: What pieces hand to each other.
    """

    problem: Problem
    piece: NDArray[np.int64]
    stand: NDArray[np.int32]
    first: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    seconds: NDArray[np.float64]
    apart: NDArray[np.float64]
    resident: NDArray[np.int64]
    held: NDArray[np.int64]
    before: Edges
    handed: Handed

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, problem: Problem) -> Pieces:
        """One piece a team, but for what is folded."""
        label = folded(problem)
        return cls._numbered(problem, *without_circles(problem, label, before(problem, label)))

    @classmethod
    def _numbered(cls, problem: Problem, label: NDArray[np.int64], edges: Edges) -> Pieces:
        """Pieces from a label for each op (-1 for those set apart) and an order without circles."""
        a = problem.arrays
        names, piece = np.unique(label, return_inverse=True)
        offset = int(names[0] < 0) if len(names) else 0
        piece, names = piece.astype(np.int64) - offset, names[offset:]
        count = len(names)
        number = {int(name): at for at, name in enumerate(names)}
        compact = {(number[one], number[other]) for one, other in edges}
        place = topological(count, compact)
        assert place is not None  # circles are gone
        piece = np.append(place, -1)[piece]  # -1 stays -1
        forward = np.array([op.phase == "forward" for op in problem.graph.ops]) & a.turn
        first = np.full(count, a.ops)
        for late in (~forward, forward):  # the later assignment wins: forward ops before others
            ops = np.flatnonzero(late & (piece >= 0))[::-1]
            first[piece[ops]] = ops
        seconds = np.where(a.allowed, a.compute, 0.0)
        own = np.where((a.alias < 0) & ~a.stored[a.producer], a.sizes, 0)
        outputs = np.bincount(a.producer, weights=own, minlength=a.ops).astype(np.int64)
        free = piece >= 0
        stand = problem.settle(np.zeros(a.ops, dtype=np.int32))
        alone = np.flatnonzero(~free)
        apart = np.bincount(stand[alone], a.compute[alone, stand[alone]], a.devices).astype(float)

        def total(values: NDArray[np.generic]) -> NDArray[np.float64]:
            sums = np.bincount(piece[free], weights=values[free], minlength=count)
            return sums.astype(np.float64)

        allowed = np.ones((count, a.devices), dtype=bool)
        lead = np.unique(a.leader[free])  # the others follow, or go where they may
        np.logical_and.at(allowed, piece[lead], a.allowed[lead])
        return cls(
            problem,
            piece,
            stand,
            first,
            allowed,
            np.stack([total(column) for column in seconds.T], axis=1),
            apart,
            total(a.resident).astype(np.int64),
            total(a.resident + outputs).astype(np.int64),
            frozenset((int(place[one]), int(place[other])) for one, other in compact),
            Handed.of(problem, piece, stand),
        )

    @property
    def least(self) -> NDArray[np.float64]:
        """Each piece's seconds on its fastest device."""
        fastest: NDArray[np.float64] = np.where(self.allowed, self.seconds, np.inf).min(axis=1)
        return fastest

    def placement(self, device: NDArray[np.integer]) -> NDArray[np.int32]:
        """Devices of all ops from those of the pieces (…, pieces)."""
        spread = np.zeros((*device.shape[:-1], len(self.piece)), dtype=np.int32)
        free = self.piece >= 0
        spread[..., free] = device[..., self.piece[free]]
        return self.problem.settle(spread)

    def joined(self, group: NDArray[np.int64]) -> Pieces:
        """Pieces of one group as one piece.

        Groups must not wait for each other in a circle. Pieces that have no device in common stay
        apart, whatever their group.
        """
        common = np.ones((int(group.max()) + 1, self.allowed.shape[1]), dtype=bool)
        np.logical_and.at(common, group, self.allowed)
        into = np.where(
            common[group].any(axis=1), group, int(group.max()) + 1 + np.arange(len(self))
        )
        label = np.where(self.piece >= 0, into[self.piece], -1)
        edges = {(int(into[one]), int(into[other])) for one, other in self.before}
        return Pieces._numbered(
            self.problem, label, frozenset(edge for edge in edges if edge[0] != edge[1])
        )

    def coarser(self, count: int) -> Pieces:
        """About `count` pieces, with heavy tensors inside."""
        flow = dict.fromkeys(sorted(self.before), 0.0)
        heaviest = self.handed.seconds.max(axis=0, initial=0.0)
        for at, source in enumerate(self.handed.producer.tolist()):
            for reader in self.handed.readers_of(at).tolist():
                for pair in ((source, reader), (reader, source)):
                    if pair in flow:
                        flow[pair] += float(heaviest[at])
        return self.joined(heavy_edges(self.least, flow, count))

    def without_trifles(self, share: float = 0.0) -> Pieces:
        """Pieces that take no time and deal with one other piece only, joined to that piece.

        No load grows by this: the piece adds nothing to the other's stage and takes away what the
        two hand to each other. Where memory is short, only pieces that hold none are joined.

        Args:
            share: Of all work that counts as no time. If it is above 0, pieces that deal with none
                are joined too, to the one before them in the graph.
        """
        near, tied = self._near()
        short = self.resident.sum() > self.problem.arrays.capacity.min()
        idle = self.seconds.max(axis=1, initial=0.0) <= share * self.least.sum()
        idle &= ~tied & ((self.resident == 0) | ~short) & self.allowed.all(axis=1)
        into = np.arange(len(self))
        if share:
            in_graph = np.argsort(self.first)
            for earlier, one in itertools.pairwise(in_graph.tolist()):
                if idle[one] and not near[one]:
                    into[one] = earlier
        waiting = list(range(len(self)))
        while waiting:
            one = waiting.pop()
            if idle[one] and len(near[one]) == 1:
                other = near[one].pop()
                near[other].discard(one)
                into[one] = other
                waiting.append(other)
        while (into != into[into]).any():
            into = into[into]
        return self.joined(into)

    def _near(self) -> tuple[list[set[int]], NDArray[np.bool_]]:
        """Which pieces each deals with, and whether it deals with ops set apart."""
        near: list[set[int]] = [set() for _ in range(len(self))]
        tied = np.zeros(len(self), dtype=bool)
        pairs = list(self.before)
        for at, source in enumerate(self.handed.producer.tolist()):
            readers = self.handed.readers_of(at)
            if source < 0:
                tied[readers] = True
                continue
            tied[source] |= bool(self.handed.away[at])
            pairs.extend((source, reader) for reader in readers.tolist())
        for one, other in pairs:
            near[one].add(other)
            near[other].add(one)
        return near, tied
