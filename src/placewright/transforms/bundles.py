"""Bundles: ops that a solver places as one, each a unit with the weights that follow it.

A bundle is a leader and all ops that `legalize` puts on its device: the rest of its unit, and
weights that it reads first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Bundles:
    """The bundles of a problem, in the order of their leaders."""

    problem: Problem
    leader: NDArray[np.int64]  # bundles
    seconds: NDArray[np.float64]  # bundles × devices; ops count 0 where they may not be
    bytes: NDArray[np.int64]  # bundles: resident bytes and every output

    @classmethod
    def of(cls, problem: Problem) -> Bundles:
        a = problem.arrays
        leader, bundle = np.unique(a.leader, return_inverse=True)
        seconds = np.where(a.allowed & a.scheduled[:, None], a.compute, 0.0)
        output_bytes = np.where((a.alias < 0) & ~a.is_resident[a.producer], a.sizes, 0)
        memory_bytes = a.resident + np.bincount(
            a.producer, weights=output_bytes, minlength=a.ops
        ).astype(np.int64)
        return cls(
            problem,
            leader.astype(np.int64),
            np.stack([np.bincount(bundle, weights=column) for column in seconds.T], axis=1),
            np.bincount(bundle, weights=memory_bytes).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.leader)

    def placement(self, bundle_device: NDArray[np.integer]) -> NDArray[np.int32]:
        """The devices of all ops from those of the bundles."""
        leader_device = np.zeros(self.problem.arrays.ops, dtype=np.int32)
        leader_device[self.leader] = bundle_device
        return self.problem.legalize(leader_device)


def accelerators(problem: Problem) -> NDArray[np.int64]:
    """The devices that are not hosts; all devices if there are only hosts."""
    host = problem.arrays.is_host
    return np.flatnonzero(host if host.all() else ~host)


def accelerators_first(problem: Problem) -> NDArray[np.int64]:
    """All devices, hosts last."""
    return np.argsort(problem.arrays.is_host, kind="stable")
