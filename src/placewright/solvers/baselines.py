"""Baselines: every constructive method on one search, so that the best of them is the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.solvers.accelerate import Accelerate
from placewright.solvers.balanced import Balanced
from placewright.solvers.cpop import CPoP
from placewright.solvers.expert import Expert, known
from placewright.solvers.heft import HEFT
from placewright.solvers.m_etf import METF
from placewright.solvers.m_sct import MSCT
from placewright.solvers.m_topo import MTopo
from placewright.solvers.round_robin import RoundRobin
from placewright.solvers.single import EverySingleDevice
from placewright.solvers.streamed import Streamed
from placewright.solvers.uniform import Random

if TYPE_CHECKING:
    from placewright.solvers.search import Search, Solver


@dataclass(frozen=True)
class Baselines:
    """Every baseline in turn, single devices first: no worse than any it had time for."""

    name = "baselines"

    def run(self, search: Search) -> None:
        solvers: tuple[Solver, ...] = (
            EverySingleDevice(),
            *([Expert()] if known(search.problem) else []),
            Accelerate(),
            Balanced(),
            Streamed(),
            MTopo(),
            METF(),
            HEFT(),
            HEFT(contended=True),
            CPoP(),
            MSCT(),
            RoundRobin(),
            Random(),
        )
        for solver in solvers:
            if search.over:
                return
            search.trying = solver.name
            solver.run(search)
