"""Staging: offsets and order of streamed-weight copies in a staging buffer (rule 6).

The order of copies is known before the step, so the room is shared out once: where each op's
weights go, and which earlier ops must have ended before they may be overwritten. All weights of
one op stand together, and small ones with those of their neighbours: they come in one haul, since
a copy takes some microseconds however little it carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Tensor

ALIGNMENT = 256  # bytes: what kernels expect of the address of a tensor
_SMALL_BYTES = 64 << 10  # bytes of an op's weights that go with any neighbour's
_BATCH_BYTES = 2 << 20  # bytes of a haul that others are not added to
_BATCHES_PER_BUFFER = 4  # of a room: a haul of several ops takes one part at most


@dataclass(frozen=True)
class StagedCopy:
    """A streamed weight and the op that reads it.

    Args:
        offset: Where in the room it goes.
        readers_before: The last op, in the order of the readers, that must have ended before: the number of
            readers that come before the copy may begin; 0 if it may begin at once.
        batch: Which copies it comes with: they stand side by side, in this order.
    """

    tensor: Tensor
    reader: int
    size: int
    offset: int = 0
    readers_before: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Staging:
    """How copies take turns in a room.

    Args:
        copies: In the order in which they are made.
        readers: The ops that they are for, in order, each once.
        capacity: Bytes of the room, alignment included.
    """

    copies: tuple[StagedCopy, ...]
    readers: tuple[int, ...]
    capacity: int

    @property
    def batches(self) -> list[list[StagedCopy]]:
        """The copies, by what they come with."""
        return [list(batch) for _, batch in groupby(self.copies, key=lambda copy: copy.batch)]


def allocate_staging(copies: Sequence[StagedCopy], capacity: int) -> Staging:
    """Places for copies, which come in the order of their readers.

    Each op's weights go where there is room soonest. The room is what the plan says, and what
    alignment adds to the weights of one op at most.
    """
    blocks = [list(block) for _, block in groupby(copies, key=lambda copy: copy.reader)]
    slack = max(sum(_align(copy.size) - copy.size for copy in block) for block in blocks)
    total = _align(capacity) + _align(slack)
    occupied: list[
        tuple[int, int, int]
    ] = []  # (begin, end, number of the last reader), newest last
    staged: list[StagedCopy] = []
    readers = 0
    for batch_index, batch in enumerate(_batches(blocks, total)):
        readers += len(batch)
        size = sum(map(_aligned_bytes, batch))
        begin, readers_before = _earliest_slot(occupied, size, total)
        end = begin + size
        occupied = [region for region in occupied if region[1] <= begin or region[0] >= end]
        occupied.append((begin, end, readers - 1))
        # Copies are made one after the other, so none may begin before those ahead of it.
        readers_before = max(readers_before, staged[-1].readers_before if staged else 0)
        for copy in (copy for block in batch for copy in block):
            staged.append(
                StagedCopy(copy.tensor, copy.reader, copy.size, begin, readers_before, batch_index)
            )
            begin += _align(copy.size)
    return Staging(tuple(staged), tuple(block[0].reader for block in blocks), total)


def _batches(blocks: Sequence[list[StagedCopy]], capacity: int) -> list[list[list[StagedCopy]]]:
    """Which ops' weights come together: little ones with their neighbours."""
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
    """Bytes of an op's weights in a room."""
    return sum(_align(copy.size) for copy in block)


def _earliest_slot(
    occupied: Sequence[tuple[int, int, int]], size: int, capacity: int
) -> tuple[int, int]:
    """The begin of the stretch that is free soonest, and how many readers must have ended."""
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
