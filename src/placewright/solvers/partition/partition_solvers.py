"""METIS, KaHIP and Scotch as solvers: balanced bundles with few tensors between parts.

The baselines of the papers on learned placement. They ignore memory and the direction of tensors:
they balance seconds, in proportion to the devices' speed, and minimise cut edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placewright.solvers.partition import libraries
from placewright.solvers.partition.affinity import Affinity, link_seconds
from placewright.solvers.partition.capacity_repair import repair_rounds
from placewright.solvers.partition.libraries import (
    CsrGraph,
    Ints,
    Shares,
)
from placewright.transforms.bundles import Bundles, accelerators

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.search import Search

_MAX_BLOCKS = 8  # blocks per device, on average, that KaHIP makes at most
_TOLERANCE = 0.05  # distance of a device from its share, relative to it
_MAX_SEED = 2**31 - 1


@dataclass(frozen=True)
class _Partitioner:
    """A library's parts as a placement; partitioners do not consider memory.

    Args:
        repaired: Whether bundles are then moved until the plan fits; the papers' METIS often ends
            out of memory.
    """

    repaired: bool = False
    library: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{self.library}-repaired" if self.repaired else self.library

    def run(self, search: Search) -> None:
        _judge(search, self.place(search.problem, _random_seed(search)), self.repaired)

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """The library's placement."""
        raise NotImplementedError


@dataclass(frozen=True)
class METIS(_Partitioner):
    """METIS on the accelerators, as in GDP (Zhou et al. 2019) and GO (Zhou et al. 2020)."""

    library = "metis"

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """METIS's placement."""
        partition = _PartitionProblem.of(problem, accelerators(problem))
        if partition.is_trivial:
            return partition.placement(np.zeros(len(partition.free_bundles), dtype=np.int64))
        parts = libraries.metis(partition.csr, partition.share, seed)
        return partition.placement(_renumber_parts(parts, partition.share))


@dataclass(frozen=True)
class KaHIP(_Partitioner):
    """KaHIP on the accelerators, strong up to 4,000 bundles and eco above.

    Its parts are all equal: a device that is twice as fast as another gets two of them.
    """

    library = "kahip"

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """KaHIP's placement."""
        partition = _PartitionProblem.of(problem, accelerators(problem))
        if partition.is_trivial:
            return partition.placement(np.zeros(len(partition.free_bundles), dtype=np.int64))
        blocks = _block_counts(partition.share)
        parts = libraries.kahip(partition.csr, int(blocks.sum()), seed)
        parts = _renumber_parts(parts, np.ones(int(blocks.sum())))
        return partition.placement(_merge_blocks(partition.csr, parts, blocks))


@dataclass(frozen=True)
class Scotch(_Partitioner):
    """Scotch's static mapping onto all devices with hosts, as in ColocRL (Mirhoseini et al. 2017).

    The devices' speeds and the links' times are its target architecture. The strategy is the
    library's default, as in the paper.
    """

    library = "scotch"

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """Scotch's placement."""
        return _scotch_placement(problem, np.arange(problem.arrays.devices), seed)


@dataclass(frozen=True)
class MinCut(_Partitioner):
    """Scotch without the hosts, as in ColocRL (Mirhoseini et al. 2017)."""

    library = "mincut"

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """Scotch's placement on the accelerators."""
        return _scotch_placement(problem, accelerators(problem), seed)


def _random_seed(search: Search) -> int:
    return int(search.rng.integers(1, _MAX_SEED))


def _judge(search: Search, device: NDArray[np.int32], repaired: bool) -> None:
    search.judge(device)
    if repaired:
        for placement in repair_rounds(search.problem, device):
            if search.over:
                return
            search.judge(placement)


def _scotch_placement(problem: Problem, devices: Ints, seed: int) -> NDArray[np.int32]:
    partition = _PartitionProblem.of(problem, devices)
    if partition.is_trivial:
        return partition.placement(np.zeros(len(partition.free_bundles), dtype=np.int64))
    distances = link_seconds(problem)[np.ix_(devices, devices)]
    return partition.placement(libraries.scotch(partition.csr, partition.share, distances, seed))


@dataclass(frozen=True, eq=False)
class _PartitionProblem:
    """The bundles to partition: those that may be on more than one of some devices."""

    bundles: Bundles
    devices: Ints
    share: Shares  # devices: its share, in proportion to its speed
    free_bundles: Ints  # the bundles to partition
    csr: CsrGraph

    @classmethod
    def of(cls, problem: Problem, devices: Ints) -> _PartitionProblem:
        a = problem.arrays
        bundles = Bundles.of(problem)
        allowed = a.allowed[bundles.leader][:, devices]
        free_bundles = np.flatnonzero(allowed.sum(axis=1) > 1)
        load, share = _loads_and_shares(
            bundles.seconds[free_bundles][:, devices], allowed[free_bundles]
        )
        bundle_of = np.searchsorted(bundles.leader, a.leader)
        affinity = Affinity.between_groups(problem, bundle_of, len(devices))
        index = np.full(len(bundles), -1)
        index[free_bundles] = np.arange(len(free_bundles))
        node, neighbour = index[affinity.group], index[affinity.other_group]
        is_inside = (node >= 0) & (neighbour >= 0)
        csr = CsrGraph.of(load, node[is_inside], neighbour[is_inside], affinity.seconds[is_inside])
        return cls(bundles, devices, share, free_bundles, csr)

    @property
    def is_trivial(self) -> bool:
        return len(self.devices) == 1 or len(self.free_bundles) == 0

    def placement(self, parts: Ints) -> NDArray[np.int32]:
        """The devices of all ops; a bundle without a choice goes to its only device."""
        allowed = self.bundles.problem.arrays.allowed[self.bundles.leader]
        legal = np.zeros_like(allowed)
        legal[:, self.devices] = allowed[:, self.devices]
        device = np.where(legal.any(axis=1), legal.argmax(axis=1), allowed.argmax(axis=1))
        targets = self.devices[parts]
        is_allowed = allowed[self.free_bundles, targets]
        device[self.free_bundles[is_allowed]] = targets[is_allowed]
        return self.bundles.placement(device)


def _loads_and_shares(
    seconds: NDArray[np.float64], allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], Shares]:
    """Each bundle's load, and the share of all loads at which all devices take the same time.

    A device's speed is the mean time of all bundles divided by their time on it. A bundle's load is
    its seconds times the speed, the mean over devices; where all bundles have the same ratio of
    times between devices, that is exact.
    """
    everywhere = allowed.all(axis=1)
    total = seconds[everywhere if everywhere.any() else slice(None)].sum(axis=0)
    speed = total.mean() / total if (total > 0).all() else np.ones(len(total))
    load = np.where(allowed, seconds * speed, 0.0).sum(axis=1) / np.maximum(1, allowed.sum(axis=1))
    return load, speed / speed.sum()


def _renumber_parts(parts: Ints, share: Shares) -> Ints:
    """Parts renumbered along the graph, each among those of the same share.

    Neighbours in a cluster are often numbered one after the other.
    """
    count = np.bincount(parts, minlength=len(share))
    position = np.bincount(parts, weights=np.arange(len(parts)), minlength=len(share))
    position = np.where(count > 0, position / np.maximum(count, 1), np.inf)
    number = np.empty(len(share), dtype=np.int64)
    for value in np.unique(share):
        same = np.flatnonzero(share == value)
        number[same[np.argsort(position[same], kind="stable")]] = same
    return number[parts]


def _block_counts(share: Shares) -> Ints:
    """The number of equal blocks per device: the fewest that are close to the shares."""
    best_blocks, least_error = np.ones(len(share), dtype=np.int64), np.inf
    for total in range(len(share), _MAX_BLOCKS * len(share) + 1):
        blocks = np.maximum(1, np.floor(share * total)).astype(np.int64)
        while blocks.sum() < total:
            blocks[np.argmin(blocks / share)] += 1
        error = float(np.abs(blocks / blocks.sum() / share - 1).max())
        if error < least_error - 1e-12:
            best_blocks, least_error = blocks, error
        if least_error <= _TOLERANCE:
            break
    return best_blocks


def _merge_blocks(csr: CsrGraph, parts: Ints, blocks: Ints) -> Ints:
    """Parts of several blocks: each device takes the next free block and its closest blocks."""
    count = int(blocks.sum())
    start = np.repeat(np.arange(len(csr)), np.diff(csr.first_edge))
    affinity = np.bincount(
        parts[start] * count + parts[csr.neighbour],
        weights=csr.edge_weight,
        minlength=count * count,
    ).reshape(count, count)
    owner = np.full(count, -1)
    for device in np.argsort(-blocks, kind="stable"):
        for _ in range(blocks[device]):
            is_own = owner == device
            tied = np.where(owner < 0, affinity[:, is_own].sum(axis=1), -1.0)
            owner[tied.argmax()] = device
    return owner[parts]
