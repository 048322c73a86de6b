"""Ideals of a coarse graph: all sets closed under predecessors, and the costs of their stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.stage_costs import (
    AFTER,
    BEFORE,
    FIXED,
    SENT,
    StageCosts,
    StageMemory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import CoarseGraph
    from placewright.solvers.contiguous.stage_costs import Ints, Seconds, TransferParts

    Flags = NDArray[np.bool_]
    Features = tuple[Ints, Flags, Flags, float]


def enumerate_ideals(coarse: CoarseGraph, limit: int) -> Flags | None:
    """Ideals × nodes, by their work, from none to all; None if there are more than `limit`.

    Ideals are enumerated size by size: each grows by one node whose predecessors it holds.
    """
    count = len(coarse)
    needs = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in sorted(coarse.precedence):
        needs[target] |= 1 << source
        readers[source].append(target)
    ready = sum(1 << node for node in range(count) if not needs[node])
    level = {0: ready}  # ideal → nodes that may join it, both as bits
    masks = [0]
    for _ in range(count):
        larger: dict[int, int] = {}
        for ideal, ready in level.items():
            candidates = ready
            while candidates:
                bit = candidates & -candidates
                candidates ^= bit
                grown = ideal | bit
                if grown not in larger:
                    readers_now = readers[bit.bit_length() - 1]
                    freed = sum(1 << r for r in readers_now if not needs[r] & ~grown)
                    larger[grown] = ready ^ bit | freed
            if len(masks) + len(larger) > limit:
                return None
        masks.extend(larger)
        level = larger
    width = max(1, -(-count // 8))
    rows = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
    membership = np.unpackbits(rows.reshape(-1, width), axis=1, bitorder="little")[:, :count]
    by_work = 1 + np.argsort((membership @ coarse.fastest_seconds)[1:-1], kind="stable")
    return membership.astype(bool)[[0, *by_work, len(membership) - 1]]


class IdealCosts(StageCosts):
    """The points are ideals. The transfers of a stage are bilinear in features of its two ends.

    Let `k` of a tensor's reading nodes be in a point. A stage from point I to J receives the tensor
    from an earlier stage if I holds its producer and k(J) > k(I), that is, if for one number n both
    k(I) = n and k(J) > n. Each such pair of conditions is a feature of I and one of J; their product
    counts with the tensor's seconds; so a block of stages is a matrix product. Tensors from later
    stages, from fixed ops, and sent tensors are handled in the same way.

    Args:
        membership: Ideals × nodes, from `enumerate_ideals`.
    """

    def __init__(
        self, coarse: CoarseGraph, membership: Flags, memory: StageMemory, share: float = 1.0
    ) -> None:
        self.membership = membership
        packed = np.packbits(membership, axis=1)
        words = np.zeros((len(membership), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
        words[:, : packed.shape[1]] = packed
        self._packed = words.view(np.uint64)
        super().__init__(coarse, memory, share)
        boundary = coarse.boundary
        reads = np.zeros((len(coarse), len(boundary)), dtype=np.float32)
        tensor = np.repeat(np.arange(len(boundary)), np.diff(boundary.first_reader))
        reads[boundary.readers, tensor] = 1
        self._readers_done = (membership.astype(np.float32) @ reads).astype(np.int16)
        self._is_produced = np.where(
            boundary.producer >= 0, membership[:, boundary.producer], False
        )
        self._reader_count = np.diff(boundary.first_reader)
        follows = np.array(
            [(int(boundary.producer[index]), int(node)) in coarse.precedence for index, node in
             zip(tensor.tolist(), boundary.readers.tolist(), strict=True)], dtype=bool
        )  # fmt: skip
        self._readers_follow = np.ones(
            len(boundary), dtype=bool
        )  # all readers come after the producer
        np.logical_and.at(self._readers_follow, tensor, follows)

    def point_totals(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.asarray(self.membership @ values.astype(np.float64), dtype=np.float64)

    def stage_nodes(self, source: int, target: int) -> Ints:
        return np.flatnonzero(self.membership[target] & ~self.membership[source])

    def is_subset(self, sources: Ints, targets: Ints) -> Flags:
        missing = np.zeros((len(targets), len(sources)), dtype=bool)
        for small, large in zip(self._packed[sources].T, ~self._packed[targets].T, strict=True):
            missing |= (small[None] & large[:, None]) != 0
        return ~missing

    def transfer_seconds(
        self, parts: TransferParts, leaving: Flags, sources: Ints, targets: Ints
    ) -> Seconds:
        target_features = [np.zeros((len(targets), 1))]
        source_features = [np.zeros((len(sources), 1))]
        for part, seconds in parts.items():
            features = self._send_features if part == SENT else self._receive_features
            for tensors, small, large, sign in features(part, leaving, sources, targets):
                used = small.any(axis=0) & large.any(axis=0)
                value = sign * seconds[tensors[used]]
                if small.all():  # depends on the target only
                    target_features.append((large[:, used] @ value)[:, None])
                    source_features.append(np.ones((len(sources), 1)))
                else:
                    target_features.append(large[:, used] * value)
                    source_features.append(small[:, used].astype(np.float64))
        product: Seconds = (
            np.concatenate(target_features, axis=1) @ np.concatenate(source_features, axis=1).T
        )
        return np.maximum(product, 0.0, out=product)

    def _receive_features(
        self, part: str, leaving: Flags, sources: Ints, targets: Ints
    ) -> Iterator[Features]:
        """Tensors, features of sources and of targets, and the sign of their products."""
        has_node = self.coarse.boundary.producer >= 0
        counted = {BEFORE: has_node, AFTER: has_node & ~self._readers_follow, FIXED: ~has_node}[
            part
        ]
        for read in range(int(self._reader_count[counted].max(initial=0))):
            tensors = np.flatnonzero(counted & (self._reader_count > read))
            small = self._readers_done[np.ix_(sources, tensors)] == read
            large = self._readers_done[np.ix_(targets, tensors)] > read
            if part == BEFORE:
                small &= self._is_produced[np.ix_(sources, tensors)]
            elif part == AFTER:
                large &= ~self._is_produced[np.ix_(targets, tensors)]
            yield tensors, small, large, 1.0

    def _send_features(
        self, part: str, leaving: Flags, sources: Ints, targets: Ints
    ) -> Iterator[Features]:
        """A tensor is sent if it is made in the stage and not all its readers are there too.

        If all readers come after the producer, this means that the target does not hold them all.
        If not, we subtract tensors that stay: the target holds all readers and the source none.
        """
        has_node = self.coarse.boundary.producer >= 0
        for chosen, all_after in (
            (self._readers_follow & ~leaving, True),
            (~self._readers_follow | leaving, False),
        ):
            tensors = np.flatnonzero(has_node & chosen)
            made_before, made_by_end = (
                self._is_produced[np.ix_(points, tensors)] for points in (sources, targets)
            )
            full = self._readers_done[np.ix_(targets, tensors)] == self._reader_count[tensors]
            if all_after:
                yield tensors, np.ones_like(made_before), made_by_end & ~full, 1.0
                yield tensors, made_before, ~full, -1.0
                continue
            yield tensors, np.ones_like(made_before), made_by_end, 1.0
            yield tensors, made_before, np.ones_like(made_by_end), -1.0
            none = (self._readers_done[np.ix_(sources, tensors)] == 0) & ~leaving[tensors]
            yield tensors, none, made_by_end & full, -1.0
            yield tensors, none & made_before, full, 1.0
