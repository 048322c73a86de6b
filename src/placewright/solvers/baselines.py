"""Baselines: every constructive method on one search, so that the best of them is the result."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from placewright.solvers.accelerate_map import Accelerate
from placewright.solvers.balanced import Balanced
from placewright.solvers.contiguous.cuts import Cuts
from placewright.solvers.contiguous.ideals import Ideals
from placewright.solvers.cpop import CPoP
from placewright.solvers.expert import Expert, known
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
from placewright.solvers.random_search import Random
from placewright.solvers.round_robin import RoundRobin
from placewright.solvers.search import called
from placewright.solvers.single import EverySingleDevice
from placewright.solvers.streamed import Streamed

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.search import Search, Solver


@dataclass(frozen=True)
class Baselines:
    """Every baseline in turn, single devices first: no worse than any it had time for."""

    name = "baselines"

    def run(self, search: Search) -> None:
        quick, slow = baselines(search.problem)
        for solver in quick + slow:
            if search.over:
                return
            search.trying = called(solver)
            solver.run(search)


def baselines(problem: Problem, installed: bool = False) -> tuple[list[Solver], list[Solver]]:
    """Every constructive method that has an answer for this problem: quick ones, and slower.

    Args:
        installed: With the partitioners whose library is installed; what is found then depends on
            the machine.
    """
    quick: list[Solver] = [
        EverySingleDevice(),
        *([Expert()] if known(problem) else []),
        Accelerate(),
        Balanced(),
        Streamed(),
        MTopo(),
        RoundRobin(),
    ]
    parts = _partitioners() if installed else []
    if problem.objective == "period":
        quick += [Cuts(), METF(), HEFT()]
        return quick, [Ideals(), *parts, MSCT(), Random()]
    quick += [HEFT(), METF(), HEFT(contended=True), CPoP()]
    return quick, [MSCT(), *parts, Cuts(), Ideals(), Random()]


def _partitioners() -> list[Solver]:
    """Those whose library is installed."""
    found: list[Solver] = []
    if find_spec("pymetis"):
        found.append(METIS(repaired=True))
    if find_spec("pyscotch"):
        found += [Scotch(repaired=True), MinCut(repaired=True)]
    if find_spec("kahip"):
        found.append(KaHIP(repaired=True))
    return found
