"""Pieces: a problem in, what a contiguous split cuts between out, numbered as data flows.

A piece is made of whole teams. In a training graph a backward op goes with its forward op, so that
only the forward half has an order. A backward op without a forward op (a loss, a sum of gradients)
is a piece of its own, and the order of what it hands to others is mirrored: this is how Tarnawski
et al. 2020 fold such graphs. Pieces that wait for each other in a circle become one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.handed import Handed
from placewright.transforms import forward_ops, heavy_edges, topological
from placewright.union import Union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

Edges = frozenset[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of a problem, in a topological order of `before`.

    Args:
        piece: Ops → pieces, or -1 for an op that can be on one device only. Such ops are set
            apart: they stand on their device whatever is cut.
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
        label = _folded(problem)
        edges = _before(problem, label)
        return cls._numbered(problem, *_without_circles(problem, label, edges))

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
        apart = np.where(free[:, None], 0.0, seconds).sum(axis=0)

        def total(values: NDArray[np.generic]) -> NDArray[np.float64]:
            sums = np.bincount(piece[free], weights=values[free], minlength=count)
            return sums.astype(np.float64)

        allowed = np.ones((count, a.devices), dtype=bool)
        np.logical_and.at(allowed, piece[free], a.allowed[free])
        return cls(
            problem,
            piece,
            first,
            allowed,
            np.stack([total(column) for column in seconds.T], axis=1),
            apart,
            total(a.resident).astype(np.int64),
            total(a.resident + outputs).astype(np.int64),
            frozenset((int(place[one]), int(place[other])) for one, other in compact),
            Handed.of(problem, piece),
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

    def without_trifles(self) -> Pieces:
        """Pieces that take no time and deal with one other piece only, joined to that piece.

        No load grows by this: the piece adds nothing to the other's stage and takes away what the
        two hand to each other. Where memory is short, only pieces that hold none are joined.
        """
        near: list[set[int]] = [set() for _ in range(len(self))]
        tied = np.zeros(len(self), dtype=bool)  # to ops set apart
        handed = self.handed
        for at, source in enumerate(handed.producer.tolist()):
            readers = handed.readers_of(at).tolist()
            tied[[one for one in (source, *readers) if one >= 0]] |= source < 0 or bool(
                handed.away[at]
            )
            for reader in readers:
                if source >= 0:
                    near[source].add(reader)
                    near[reader].add(source)
        for one, other in self.before:
            near[one].add(other)
            near[other].add(one)
        short = self.resident.sum() > self.problem.arrays.capacity.min()
        idle = (
            (self.seconds.max(axis=1, initial=0.0) <= 0) & ~tied & ((self.resident == 0) | ~short)
        )
        into = np.arange(len(self))
        waiting = list(range(len(self)))
        while waiting:
            one = waiting.pop()
            if idle[one] and len(near[one]) == 1 and self.allowed[one].all():
                other = near[one].pop()
                near[other].discard(one)
                into[one] = other
                waiting.append(other)
        while (into != into[into]).any():
            into = into[into]
        return self.joined(into)


def _folded(problem: Problem) -> NDArray[np.int64]:
    """A label for each op: its team, or that of its forward op; -1 for those set apart."""
    a, ops = problem.arrays, problem.graph.ops
    alone = a.allowed.sum(axis=1) == 1
    forward = np.array([op.phase == "forward" for op in ops])
    union = Union(a.ops)
    if not forward.all():
        with_forward = np.zeros(a.ops, dtype=bool)
        with_forward[a.leader[forward & a.turn]] = True
        common = {int(leader): a.allowed[leader] for leader in np.unique(a.leader)}
        homes = forward_ops(problem.graph)
        for op in np.flatnonzero(~forward & a.turn & ~with_forward[a.leader]).tolist():
            home = homes[op]
            if home is None and ops[op].phase == "update":  # with the weight that it updates
                home = next((source for source, _ in ops[op].inputs if a.stored[source]), None)
            if home is None or alone[op] or alone[a.leader[home]]:
                continue
            one, other = union.find(int(a.leader[op])), union.find(int(a.leader[home]))
            both = common[one] & common[other]
            if both.any():
                union.join(one, other)
                common[union.find(one)] = both
    label = np.array([union.find(int(leader)) for leader in a.leader], dtype=np.int64)
    return np.where(alone | alone[a.leader], -1, label)


def _before(problem: Problem, label: NDArray[np.int64]) -> Edges:
    """Pairs of labels: forward ops in their order, and mirrored what backward pieces hand on."""
    a = problem.arrays
    forward = np.array([op.phase == "forward" for op in problem.graph.ops])
    orphan = np.ones(a.ops, dtype=bool)  # by label
    orphan[label[forward & a.turn & (label >= 0)]] = False
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    one, other = label[source], label[reader]
    real = a.turn[source] & a.turn[reader] & (one >= 0) & (other >= 0) & (one != other)
    ahead = real & forward[source] & forward[reader]
    mirrored = real & ~forward[source] & ~forward[reader] & (orphan[one] | orphan[other])
    pairs = [*zip(one[ahead].tolist(), other[ahead].tolist(), strict=True)]
    pairs += zip(other[mirrored].tolist(), one[mirrored].tolist(), strict=True)
    return frozenset(pairs)


def _without_circles(
    problem: Problem, label: NDArray[np.int64], edges: Edges
) -> tuple[NDArray[np.int64], Edges]:
    """Labels that wait for each other in a circle as one, and the order that is left.

    Where the ops of a circle have no device in common, they keep their labels and lose their order.
    """
    a = problem.arrays
    if topological(a.ops, edges) is not None:
        return label, edges
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array(sorted(edges), dtype=np.int64)
    links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(a.ops, a.ops))
    component = connected_components(links.tocsr(), connection="strong")[1]
    free = label >= 0
    common = np.ones((int(component.max()) + 1, a.devices), dtype=bool)
    np.logical_and.at(common, component[label[free]], a.allowed[free])
    # A component is called by one of its labels.
    name = np.zeros(len(common), dtype=np.int64)
    name[component[label[free]]] = label[free]
    one = common[component].any(axis=1)
    into = np.where(one, name[component], np.arange(a.ops))
    kept = {
        (int(into[s]), int(into[t]))
        for s, t in edges
        if into[s] != into[t] and (component[s] != component[t])
    }
    return np.where(free, into[label], -1), frozenset(kept)
