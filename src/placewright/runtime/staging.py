"""Copies of streamed weights in order in, their places in a staging room out (rule 6).

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

ALIGNED = 256  # bytes: what kernels expect of the address of a tensor
_LITTLE = 64 << 10  # bytes of an op's weights that go with any neighbour's
_ENOUGH = 2 << 20  # bytes of a haul that others are not added to
_SHARE = 4  # of a room: a haul of several ops takes one part at most


@dataclass(frozen=True)
class Copy:
    """A streamed weight and the op that reads it.

    Args:
        offset: Where in the room it goes.
        after: The last op, in the order of the readers, that must have ended before: the number of
            readers that come before the copy may begin; 0 if it may begin at once.
        haul: Which copies it comes with: they stand side by side, in this order.
    """

    tensor: Tensor
    reader: int
    size: int
    offset: int = 0
    after: int = 0
    haul: int = 0


@dataclass(frozen=True)
class Staging:
    """How copies take turns in a room.

    Args:
        copies: In the order in which they are made.
        readers: The ops that they are for, in order, each once.
        room: Bytes of the room, alignment included.
    """

    copies: tuple[Copy, ...]
    readers: tuple[int, ...]
    room: int

    @property
    def hauls(self) -> list[list[Copy]]:
        """The copies, by what they come with."""
        return [list(haul) for _, haul in groupby(self.copies, key=lambda copy: copy.haul)]


def lay_out(copies: Sequence[Copy], room: int) -> Staging:
    """Places for copies, which come in the order of their readers.

    Each op's weights go where there is room soonest. The room is what the plan says, and what
    alignment adds to the weights of one op at most.
    """
    blocks = [list(block) for _, block in groupby(copies, key=lambda copy: copy.reader)]
    slack = max(sum(_up(copy.size) - copy.size for copy in block) for block in blocks)
    total = _up(room) + _up(slack)
    taken: list[tuple[int, int, int]] = []  # (begin, end, number of the last reader), newest last
    placed: list[Copy] = []
    readers = 0
    for number, haul in enumerate(_hauls(blocks, total)):
        readers += len(haul)
        size = sum(map(_size, haul))
        begin, after = _soonest(taken, size, total)
        end = begin + size
        taken = [one for one in taken if one[1] <= begin or one[0] >= end]
        taken.append((begin, end, readers - 1))
        # Copies are made one after the other, so none may begin before those ahead of it.
        after = max(after, placed[-1].after if placed else 0)
        for copy in (copy for block in haul for copy in block):
            placed.append(Copy(copy.tensor, copy.reader, copy.size, begin, after, number))
            begin += _up(copy.size)
    return Staging(tuple(placed), tuple(block[0].reader for block in blocks), total)


def _hauls(blocks: Sequence[list[Copy]], room: int) -> list[list[list[Copy]]]:
    """Which ops' weights come together: little ones with their neighbours."""
    found: list[list[list[Copy]]] = []
    held = 0
    for block in blocks:
        size = _size(block)
        small = min(held, size) <= _LITTLE or held + size <= _ENOUGH
        if found and small and held + size <= room // _SHARE:
            found[-1].append(block)
            held += size
        else:
            found.append([block])
            held = size
    return found


def _size(block: Sequence[Copy]) -> int:
    """Bytes of an op's weights in a room."""
    return sum(_up(copy.size) for copy in block)


def _soonest(taken: Sequence[tuple[int, int, int]], size: int, room: int) -> tuple[int, int]:
    """The begin of the stretch that is free soonest, and how many readers must have ended."""
    choices = []
    for begin in {0, *(end for _, end, _ in taken)}:
        if begin + size <= room:
            inside = [number for low, high, number in taken if low < begin + size and high > begin]
            choices.append((max(inside, default=-1) + 1, begin))
    after, begin = min(choices)
    return begin, after


def _up(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
