"""Ideals: pieces in, all sets that hold with a piece everything before it out, and their costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.stage_costs import AFTER, APART, BEFORE, SENT, Room, StageCosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import Pieces
    from placewright.solvers.contiguous.stage_costs import Ints, Parts, Seconds

    Flags = NDArray[np.bool_]
    Features = tuple[Ints, Flags, Flags, float]


def ideals(pieces: Pieces, limit: int) -> Flags | None:
    """Ideals × pieces, by the work in them, from none to all; None if there are over `limit`.

    Ideals are found size by size: each grows by any one piece whose predecessors it holds.
    """
    count = len(pieces)
    needs = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in sorted(pieces.before):
        needs[target] |= 1 << source
        readers[source].append(target)
    ready = sum(1 << piece for piece in range(count) if not needs[piece])
    level = {0: ready}  # ideal → what may join it, both as bits
    found = [0]
    for _ in range(count):
        larger: dict[int, int] = {}
        for ideal, ready in level.items():
            left = ready
            while left:
                bit = left & -left
                left ^= bit
                grown = ideal | bit
                if grown not in larger:
                    readers_now = readers[bit.bit_length() - 1]
                    freed = sum(1 << r for r in readers_now if not needs[r] & ~grown)
                    larger[grown] = ready ^ bit | freed
            if len(found) + len(larger) > limit:
                return None
        found.extend(larger)
        level = larger
    width = max(1, -(-count // 8))
    rows = np.frombuffer(b"".join(one.to_bytes(width, "little") for one in found), dtype=np.uint8)
    inside = np.unpackbits(rows.reshape(-1, width), axis=1, bitorder="little")[:, :count]
    between = 1 + np.argsort((inside @ pieces.least)[1:-1], kind="stable")
    return inside.astype(bool)[[0, *between, len(inside) - 1]]


class IdealCosts(StageCosts):
    """The points are ideals. What a stage moves is bilinear in features of its two ends.

    Say a tensor has been read by `k` of its reading pieces in a point. A stage from point I to J
    receives it from before if I holds its producer and k(J) > k(I), that is, if for one number n
    both k(I) = n and k(J) > n. Each such pair of conditions is a feature of I and one of J, whose
    product counts with the tensor's seconds; so a whole block of stages is a matrix product. What
    comes from after the stage, from ops set apart, and what is sent, are written likewise.

    Args:
        inside: Ideals × pieces, as `ideals` makes it.
    """

    def __init__(self, pieces: Pieces, inside: Flags, room: Room, share: float = 1.0) -> None:
        self.inside = inside
        packed = np.packbits(inside, axis=1)
        words = np.zeros((len(inside), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
        words[:, : packed.shape[1]] = packed
        self._words = words.view(np.uint64)
        super().__init__(pieces, room, share)
        handed = pieces.handed
        spread = np.zeros((len(pieces), len(handed)), dtype=np.float32)
        tensor = np.repeat(np.arange(len(handed)), np.diff(handed.first))
        spread[handed.readers, tensor] = 1
        self._read = (inside.astype(np.float32) @ spread).astype(np.int16)
        self._made = np.where(handed.producer >= 0, inside[:, handed.producer], False)
        self._readers = np.diff(handed.first)
        ahead = np.array(
            [(int(handed.producer[at]), int(piece)) in pieces.before for at, piece in
             zip(tensor.tolist(), handed.readers.tolist(), strict=True)], dtype=bool
        )  # fmt: skip
        self._ahead = np.ones(len(handed), dtype=bool)  # all readers come after the producer
        np.logical_and.at(self._ahead, tensor, ahead)

    def total(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.asarray(self.inside @ values.astype(np.float64), dtype=np.float64)

    def members(self, source: int, target: int) -> Ints:
        return np.flatnonzero(self.inside[target] & ~self.inside[source])

    def within(self, sources: Ints, targets: Ints) -> Flags:
        missing = np.zeros((len(targets), len(sources)), dtype=bool)
        for small, large in zip(self._words[sources].T, ~self._words[targets].T, strict=True):
            missing |= (small[None] & large[:, None]) != 0
        return ~missing

    def moved(self, parts: Parts, leaving: Flags, sources: Ints, targets: Ints) -> Seconds:
        left = [np.zeros((len(targets), 1))]
        right = [np.zeros((len(sources), 1))]
        for part, seconds in parts.items():
            features = self._sent if part == SENT else self._received
            for tensors, small, large, sign in features(part, leaving, sources, targets):
                used = small.any(axis=0) & large.any(axis=0)
                value = sign * seconds[tensors[used]]
                if small.all():  # depends on the target only
                    left.append((large[:, used] @ value)[:, None])
                    right.append(np.ones((len(sources), 1)))
                else:
                    left.append(large[:, used] * value)
                    right.append(small[:, used].astype(np.float64))
        product: Seconds = np.concatenate(left, axis=1) @ np.concatenate(right, axis=1).T
        return np.maximum(product, 0.0, out=product)

    def _received(
        self, part: str, leaving: Flags, sources: Ints, targets: Ints
    ) -> Iterator[Features]:
        """Tensors, features of sources and of targets, and the sign of their products."""
        inner = self.pieces.handed.producer >= 0
        which = {BEFORE: inner, AFTER: inner & ~self._ahead, APART: ~inner}[part]
        for read in range(int(self._readers[which].max(initial=0))):
            some = np.flatnonzero(which & (self._readers > read))
            small = self._read[np.ix_(sources, some)] == read
            large = self._read[np.ix_(targets, some)] > read
            if part == BEFORE:
                small &= self._made[np.ix_(sources, some)]
            elif part == AFTER:
                large &= ~self._made[np.ix_(targets, some)]
            yield some, small, large, 1.0

    def _sent(self, part: str, leaving: Flags, sources: Ints, targets: Ints) -> Iterator[Features]:
        """A tensor is sent if it is made in the stage and not all its readers are there too.

        If they all come after it, the latter says that the target does not hold them all. If not,
        we take away what stays: the target holds all of them and the source none.
        """
        inner = self.pieces.handed.producer >= 0
        for some, all_after in ((self._ahead & ~leaving, True), (~self._ahead | leaving, False)):
            tensors = np.flatnonzero(inner & some)
            made, later = (self._made[np.ix_(points, tensors)] for points in (sources, targets))
            full = self._read[np.ix_(targets, tensors)] == self._readers[tensors]
            if all_after:
                yield tensors, np.ones_like(made), later & ~full, 1.0
                yield tensors, made, ~full, -1.0
                continue
            yield tensors, np.ones_like(made), later, 1.0
            yield tensors, made, np.ones_like(later), -1.0
            none = (self._read[np.ix_(sources, tensors)] == 0) & ~leaving[tensors]
            yield tensors, none, later & full, -1.0
            yield tensors, none & made, full, 1.0
