"""What pieces hand to each other: a problem and its pieces in, who makes and reads what out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Handed:
    """Tensors that leave their piece; those with the same producer and readers count as one.

    Args:
        producer: The piece that makes it, or -1 for an op set apart.
        home: The device of an op set apart that makes it, or -1.
        first: Where each one's readers begin, with one entry more.
        readers: Pieces that read it, its producer left out.
        away: Devices on which ops set apart read it.
        seconds: Link classes × tensors.
    """

    producer: NDArray[np.int64]
    home: NDArray[np.int64]
    first: NDArray[np.int64]
    readers: NDArray[np.int64]
    away: tuple[tuple[int, ...], ...]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.producer)

    @classmethod
    def of(cls, problem: Problem, piece: NDArray[np.int64], stand: NDArray[np.int32]) -> Handed:
        a = problem.arrays
        device, home, turn = stand.tolist(), piece.tolist(), a.turn.tolist()
        first, readers = a.first_reader.tolist(), a.readers.tolist()
        number: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], int] = {}
        into = np.full(len(a.sizes), -1, dtype=np.int64)
        for tensor, producer in enumerate(a.producer.tolist()):
            source = home[producer]
            reading = [op for op in readers[first[tensor] : first[tensor + 1]] if turn[op]]
            inside = {home[op] for op in reading} - {source, -1}
            where = -1 if source >= 0 else device[producer]
            away = {device[op] for op in reading if home[op] < 0} if source >= 0 else set()
            if inside or away:
                key = (source, where, tuple(sorted(inside)), tuple(sorted(away)))
                into[tensor] = number.setdefault(key, len(number))
        sent = into >= 0
        rows = [np.bincount(into[sent], row[sent], len(number)) for row in a.transfer]
        keys = list(number)
        return cls(
            np.array([key[0] for key in keys], dtype=np.int64),
            np.array([key[1] for key in keys], dtype=np.int64),
            np.cumsum([0, *(len(key[2]) for key in keys)]),
            np.array([reader for key in keys for reader in key[2]], dtype=np.int64),
            tuple(key[3] for key in keys),
            np.array(rows, dtype=np.float64).reshape(len(a.transfer), len(keys)),
        )

    def readers_of(self, at: int) -> NDArray[np.int64]:
        return self.readers[self.first[at] : self.first[at + 1]]
