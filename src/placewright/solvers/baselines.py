"""Baselines: runs every constructive method on one search and keeps the best plan."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from placewright.solvers.accelerate_map import Accelerate
from placewright.solvers.balanced import Balanced
from placewright.solvers.contiguous.cuts import Cuts
from placewright.solvers.contiguous.ideals import Ideals
from placewright.solvers.cpop import CPoP
from placewright.solvers.expert import Expert, has_expert
from placewright.solvers.heft import HEFT
from placewright.solvers.m_etf import METF
from placewright.solvers.m_sct import MSCT
from placewright.solvers.m_topo import MTopo
from placewright.solvers.partition.partition_solvers import (
    METIS,
    KaHIP,
    MinCut,
    Scotch,
)
from placewright.solvers.random_search import RandomSearch
from placewright.solvers.round_robin import RoundRobin
from placewright.solvers.search import phase_name
from placewright.solvers.single import SingleDevices
from placewright.solvers.streamed import Streamed

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.search import Search, Solver


@dataclass(frozen=True)
class Baselines:
    """Every baseline, single devices first: no worse than any that ran in time."""

    name = "baselines"

    def run(self, search: Search) -> None:
        quick, slow = constructive_solvers(search.problem)
        for solver in quick + slow:
            if search.over:
                return
            search.phase = phase_name(solver)
            solver.run(search)


def constructive_solvers(
    problem: Problem, with_partitioners: bool = False
) -> tuple[list[Solver], list[Solver]]:
    """Every constructive method that applies to this problem: fast ones, and slower ones.

    Args:
        with_partitioners: Include the partitioners whose libraries are installed; results then
            depend on the machine.
    """
    quick: list[Solver] = [
        SingleDevices(),
        *([Expert()] if has_expert(problem) else []),
        Accelerate(),
        Balanced(),
        Streamed(),
        MTopo(),
        RoundRobin(),
    ]
    partitioners = _installed_partitioners() if with_partitioners else []
    if problem.objective == "period":
        quick += [Cuts(), METF(), HEFT()]
        slow: list[Solver] = [Ideals(), *partitioners, MSCT(), HEFT(contended=True), CPoP()]
        return quick, [*slow, RandomSearch()]
    quick += [HEFT(), METF(), HEFT(contended=True), CPoP()]
    return quick, [MSCT(), *partitioners, Cuts(), Ideals(), RandomSearch()]


def _installed_partitioners() -> list[Solver]:
    """The partitioners whose libraries are installed."""
    partitioners: list[Solver] = []
    if find_spec("pymetis"):
        partitioners.append(METIS(repaired=True))
    if find_spec("pyscotch"):
        partitioners += [Scotch(repaired=True), MinCut(repaired=True)]
    if find_spec("kahip"):
        partitioners.append(KaHIP(repaired=True))
    return partitioners
