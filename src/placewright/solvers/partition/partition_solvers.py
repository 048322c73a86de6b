"""Graph partitioning: a problem in, teams shared out by load with few tensors between parts out.

The baselines of the papers on learned placement. They are blind to memory and to the direction of
tensors: they balance seconds, in proportion to the devices' speed, and keep ties uncut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placewright.solvers.partition import libraries
from placewright.solvers.partition.affinity import Ties, link_seconds
from placewright.solvers.partition.capacity_repair import rounds
from placewright.solvers.partition.libraries import (
    Ints,
    Shares,
    Web,
)
from placewright.transforms.bundles import Teams, accelerators

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.search import Search

_BLOCKS = 8  # blocks a device, on average, that KaHIP is asked for at most
_CLOSE = 0.05  # how far from its share a device may be, as a part of it
_SEEDS = 2**31 - 1


@dataclass(frozen=True)
class _Partitioner:
    """A library's parts as a placement, judged as it is: partitioners know no memory.

    Args:
        repaired: Whether teams are then moved until memory suffices; the papers' METIS often ends
            out of memory.
    """

    repaired: bool = False
    library: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{self.library}-repaired" if self.repaired else self.library

    def run(self, search: Search) -> None:
        _judge(search, self.place(search.problem, _seed(search)), self.repaired)

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """The library's placement."""
        raise NotImplementedError


@dataclass(frozen=True)
class METIS(_Partitioner):
    """METIS on the accelerators, as in GDP (Zhou et al. 2019) and GO (Zhou et al. 2020)."""

    library = "metis"

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """METIS's placement."""
        cut = _Cut.of(problem, accelerators(problem))
        if cut.trivial:
            return cut.placement(np.zeros(len(cut.free), dtype=np.int64))
        parts = libraries.metis(cut.web, cut.share, seed)
        return cut.placement(_along(parts, cut.share))


@dataclass(frozen=True)
class KaHIP(_Partitioner):
    """KaHIP on the accelerators, strong up to 4,000 teams and eco above.

    Its parts are all equal: a device that is twice as fast as another gets two of them.
    """

    library = "kahip"

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """KaHIP's placement."""
        cut = _Cut.of(problem, accelerators(problem))
        if cut.trivial:
            return cut.placement(np.zeros(len(cut.free), dtype=np.int64))
        blocks = _blocks(cut.share)
        parts = libraries.kahip(cut.web, int(blocks.sum()), seed)
        parts = _along(parts, np.ones(int(blocks.sum())))
        return cut.placement(_joined(cut.web, parts, blocks))


@dataclass(frozen=True)
class Scotch(_Partitioner):
    """Scotch's static mapping onto all devices, hosts too, as in ColocRL (Mirhoseini et al. 2017).

    The devices' speeds and the links' times are its target architecture. The strategy is the
    library's default, as in the paper.
    """

    library = "scotch"

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """Scotch's placement."""
        return _mapped(problem, np.arange(problem.arrays.devices), seed)


@dataclass(frozen=True)
class MinCut(_Partitioner):
    """Scotch without the hosts, as in ColocRL (Mirhoseini et al. 2017)."""

    library = "mincut"

    def place(self, problem: Problem, seed: int) -> NDArray[np.int32]:
        """Scotch's placement on the accelerators."""
        return _mapped(problem, accelerators(problem), seed)


def _seed(search: Search) -> int:
    return int(search.rng.integers(1, _SEEDS))


def _judge(search: Search, device: NDArray[np.int32], repaired: bool) -> None:
    search.judge(device)
    if repaired:
        for better in rounds(search.problem, device):
            if search.over:
                return
            search.judge(better)


def _mapped(problem: Problem, devices: Ints, seed: int) -> NDArray[np.int32]:
    cut = _Cut.of(problem, devices)
    if cut.trivial:
        return cut.placement(np.zeros(len(cut.free), dtype=np.int64))
    apart = link_seconds(problem)[np.ix_(devices, devices)]
    return cut.placement(libraries.scotch(cut.web, cut.share, apart, seed))


@dataclass(frozen=True, eq=False)
class _Cut:
    """What is shared out: the teams that may be on more than one of some devices."""

    teams: Teams
    devices: Ints
    share: Shares  # devices: what each should get, in proportion to its speed
    free: Ints  # the teams that are shared out
    web: Web

    @classmethod
    def of(cls, problem: Problem, devices: Ints) -> _Cut:
        a = problem.arrays
        teams = Teams.of(problem)
        allowed = a.allowed[teams.leader][:, devices]
        free = np.flatnonzero(allowed.sum(axis=1) > 1)
        load, share = _loads(teams.seconds[free][:, devices], allowed[free])
        team = np.searchsorted(teams.leader, a.leader)
        ties = Ties.between(problem, team, len(devices))
        place = np.full(len(teams), -1)
        place[free] = np.arange(len(free))
        one, other = place[ties.one], place[ties.other]
        kept = (one >= 0) & (other >= 0)
        web = Web.of(load, one[kept], other[kept], ties.seconds[kept])
        return cls(teams, devices, share, free, web)

    @property
    def trivial(self) -> bool:
        return len(self.devices) == 1 or len(self.free) == 0

    def placement(self, parts: Ints) -> NDArray[np.int32]:
        """Devices of all ops; a team that has no choice goes where it must."""
        allowed = self.teams.problem.arrays.allowed[self.teams.leader]
        legal = np.zeros_like(allowed)
        legal[:, self.devices] = allowed[:, self.devices]
        device = np.where(legal.any(axis=1), legal.argmax(axis=1), allowed.argmax(axis=1))
        wanted = self.devices[parts]
        may = allowed[self.free, wanted]
        device[self.free[may]] = wanted[may]
        return self.teams.placement(device)


def _loads(
    seconds: NDArray[np.float64], allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], Shares]:
    """Each team's load, and the share of all loads at which all devices take the same time.

    A device's speed is what all teams take on average over what they take on it. A team's load is
    its seconds times the speed, the mean over devices; where no team has a taste of its own, that
    is exact.
    """
    everywhere = allowed.all(axis=1)
    total = seconds[everywhere if everywhere.any() else slice(None)].sum(axis=0)
    speed = total.mean() / total if (total > 0).all() else np.ones(len(total))
    load = np.where(allowed, seconds * speed, 0.0).sum(axis=1) / np.maximum(1, allowed.sum(axis=1))
    return load, speed / speed.sum()


def _along(parts: Ints, share: Shares) -> Ints:
    """Parts renumbered along the graph, each among those of the same share.

    Neighbours in a cluster are often numbered one after the other.
    """
    count = np.bincount(parts, minlength=len(share))
    place = np.bincount(parts, weights=np.arange(len(parts)), minlength=len(share))
    place = np.where(count > 0, place / np.maximum(count, 1), np.inf)
    number = np.empty(len(share), dtype=np.int64)
    for value in np.unique(share):
        same = np.flatnonzero(share == value)
        number[same[np.argsort(place[same], kind="stable")]] = same
    return number[parts]


def _blocks(share: Shares) -> Ints:
    """How many equal blocks each device gets: the fewest that are close to the shares."""
    best, least = np.ones(len(share), dtype=np.int64), np.inf
    for total in range(len(share), _BLOCKS * len(share) + 1):
        blocks = np.maximum(1, np.floor(share * total)).astype(np.int64)
        while blocks.sum() < total:
            blocks[np.argmin(blocks / share)] += 1
        error = float(np.abs(blocks / blocks.sum() / share - 1).max())
        if error < least - 1e-12:
            best, least = blocks, error
        if least <= _CLOSE:
            break
    return best


def _joined(web: Web, parts: Ints, blocks: Ints) -> Ints:
    """Parts of several blocks: each device takes the next free block and those tied to it most."""
    count = int(blocks.sum())
    start = np.repeat(np.arange(len(web)), np.diff(web.first))
    ties = np.bincount(
        parts[start] * count + parts[web.other], weights=web.weight, minlength=count * count
    ).reshape(count, count)
    owner = np.full(count, -1)
    for device in np.argsort(-blocks, kind="stable"):
        for _ in range(blocks[device]):
            mine = owner == device
            tied = np.where(owner < 0, ties[:, mine].sum(axis=1), -1.0)
            owner[tied.argmax()] = device
    return owner[parts]
