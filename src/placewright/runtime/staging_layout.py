"""Staging: offsets and order of streamed-weight copies in a staging buffer (rule 6).

The order of copies is known before the step, so the buffer is allocated once: where each op's
weights go, and which earlier ops must have ended before their weights are overwritten. All weights
of one op are adjacent, and small ones are batched with those of neighbouring ops: a copy takes some
microseconds however small it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Tensor

ALIGNMENT = 256  # bytes: the alignment of tensors that kernels expect
_SMALL_BYTES = 64 << 10  # bytes of an op's weights that are batched with any neighbour's
_BATCH_BYTES = 2 << 20  # bytes from which a batch is large enough
_BATCHES_PER_BUFFER = 4  # a batch of several ops takes at most this fraction of the buffer


@dataclass(frozen=True)
class StagedCopy:
    """A streamed weight and the op that reads it.

    Args:
        offset: Its offset in the buffer, in bytes.
        readers_before: How many readers must have ended before the copy may begin.
        batch: The number of its batch; copies of a batch are adjacent, in this order.
    """

    tensor: Tensor
    reader: int
    size: int
    offset: int = 0
    readers_before: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Staging:
    """How copies share a staging buffer.

    Args:
        copies: The copies, in order.
        readers: The ops that read them, in order, each once.
        capacity: Bytes of the buffer, with alignment.
    """

    copies: tuple[StagedCopy, ...]
    readers: tuple[int, ...]
    capacity: int

    @property
    def batches(self) -> list[list[StagedCopy]]:
        """The copies, batch by batch."""
        return [list(batch) for _, batch in groupby(self.copies, key=lambda copy: copy.batch)]


def allocate_staging(copies: Sequence[StagedCopy], capacity: int) -> Staging:
    """Offsets and dependencies of copies, in the order of their readers.

    Each op's weights go where space is free soonest. The buffer has the plan's size, plus what
    alignment adds to the weights of one op.
    """
    blocks = [list(block) for _, block in groupby(copies, key=lambda copy: copy.reader)]
    slack = max(sum(_align(copy.size) - copy.size for copy in block) for block in blocks)
    total = _align(capacity) + _align(slack)
    occupied: list[tuple[int, int, int]] = []  # (begin, end, last reader), newest last
    staged: list[StagedCopy] = []
    readers = 0
    for batch_index, batch in enumerate(_batches(blocks, total)):
        readers += len(batch)
        size = sum(map(_aligned_bytes, batch))
        begin, readers_before = _earliest_slot(occupied, size, total)
        end = begin + size
        occupied = [region for region in occupied if region[1] <= begin or region[0] >= end]
        occupied.append((begin, end, readers - 1))
        # Copies run one after the other, so none may begin before the ones ahead of it.
        readers_before = max(readers_before, staged[-1].readers_before if staged else 0)
        for copy in (copy for block in batch for copy in block):
            staged.append(
                StagedCopy(copy.tensor, copy.reader, copy.size, begin, readers_before, batch_index)
            )
            begin += _align(copy.size)
    return Staging(tuple(staged), tuple(block[0].reader for block in blocks), total)


def _batches(blocks: Sequence[list[StagedCopy]], capacity: int) -> list[list[list[StagedCopy]]]:
    """Groups of ops whose weights are copied together: small ones with their neighbours."""
    batches: list[list[list[StagedCopy]]] = []
    batch_bytes = 0
    for block in blocks:
        size = _aligned_bytes(block)
        is_small = min(batch_bytes, size) <= _SMALL_BYTES or batch_bytes + size <= _BATCH_BYTES
        if batches and is_small and batch_bytes + size <= capacity // _BATCHES_PER_BUFFER:
            batches[-1].append(block)
            batch_bytes += size
        else:
            batches.append([block])
            batch_bytes = size
    return batches


def _aligned_bytes(block: Sequence[StagedCopy]) -> int:
    """Bytes of an op's weights in the buffer."""
    return sum(_align(copy.size) for copy in block)


def _earliest_slot(
    occupied: Sequence[tuple[int, int, int]], size: int, capacity: int
) -> tuple[int, int]:
    """The offset of the space that is free soonest, and how many readers must have ended."""
    candidates = []
    for begin in {0, *(end for _, end, _ in occupied)}:
        if begin + size <= capacity:
            overlapping = [
                number for low, high, number in occupied if low < begin + size and high > begin
            ]
            candidates.append((max(overlapping, default=-1) + 1, begin))
    readers_before, begin = min(candidates)
    return begin, readers_before


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
