"""Boundary tensors: the tensors between the nodes of a coarse graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class BoundaryTensors:
    """Tensors that leave their node; those with the same producer and readers count as one.

    Args:
        producer: The node that makes it, or -1 for a fixed op.
        fixed_source: The device of the fixed op that makes it, or -1.
        first_reader: Where each one's readers begin, with one entry more.
        readers: Nodes that read it, without its producer.
        fixed_targets: Devices on which fixed ops read it.
        seconds: Link classes × tensors.
    """

    producer: NDArray[np.int64]
    fixed_source: NDArray[np.int64]
    first_reader: NDArray[np.int64]
    readers: NDArray[np.int64]
    fixed_targets: tuple[tuple[int, ...], ...]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.producer)

    @classmethod
    def of(
        cls, problem: Problem, node_of: NDArray[np.int64], fixed_device: NDArray[np.int32]
    ) -> BoundaryTensors:
        a = problem.arrays
        device, node, scheduled = fixed_device.tolist(), node_of.tolist(), a.scheduled.tolist()
        first_reader, readers = a.first_reader.tolist(), a.readers.tolist()
        index_of: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], int] = {}
        index = np.full(len(a.sizes), -1, dtype=np.int64)
        for tensor, producer in enumerate(a.producer.tolist()):
            source = node[producer]
            reader_ops = [
                op
                for op in readers[first_reader[tensor] : first_reader[tensor + 1]]
                if scheduled[op]
            ]
            reader_nodes = {node[op] for op in reader_ops} - {source, -1}
            fixed_source = -1 if source >= 0 else device[producer]
            fixed_targets = (
                {device[op] for op in reader_ops if node[op] < 0} if source >= 0 else set()
            )
            if reader_nodes or fixed_targets:
                key = (
                    source,
                    fixed_source,
                    tuple(sorted(reader_nodes)),
                    tuple(sorted(fixed_targets)),
                )
                index[tensor] = index_of.setdefault(key, len(index_of))
        crosses = index >= 0
        rows = [np.bincount(index[crosses], row[crosses], len(index_of)) for row in a.transfer]
        keys = list(index_of)
        return cls(
            np.array([key[0] for key in keys], dtype=np.int64),
            np.array([key[1] for key in keys], dtype=np.int64),
            np.cumsum([0, *(len(key[2]) for key in keys)]),
            np.array([reader for key in keys for reader in key[2]], dtype=np.int64),
            tuple(key[3] for key in keys),
            np.array(rows, dtype=np.float64).reshape(len(a.transfer), len(keys)),
        )

    def readers_of(self, at: int) -> NDArray[np.int64]:
        return self.readers[self.first_reader[at] : self.first_reader[at + 1]]
