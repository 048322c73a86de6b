"""A problem in, a result out. One file a method; `METHODS` names them for the command line."""

from collections.abc import Callable

from placewright.solvers.accelerate import Accelerate
from placewright.solvers.balanced import Balanced
from placewright.solvers.baselines import Baselines
from placewright.solvers.bounds import Bound, bound
from placewright.solvers.cross_entropy import CrossEntropy
from placewright.solvers.expert import Expert
from placewright.solvers.genetic import Genetic
from placewright.solvers.heft import HEFT
from placewright.solvers.local_search import LocalSearch
from placewright.solvers.m_etf import METF
from placewright.solvers.m_sct import MSCT
from placewright.solvers.m_topo import MTopo
from placewright.solvers.round_robin import RoundRobin
from placewright.solvers.schedule import Schedule
from placewright.solvers.search import Search, Solver, solve
from placewright.solvers.single import CpuOnly, EverySingleDevice, SingleDevice
from placewright.solvers.stop import Gap, MaxEvaluations, MaxTime, NoImprovement, Stop
from placewright.solvers.streamed import Streamed
from placewright.solvers.uniform import Random

METHODS: dict[str, Callable[[], Solver]] = {
    "single": EverySingleDevice,
    "cpu-only": CpuOnly,
    "expert": Expert,
    "accelerate": Accelerate,
    "random": Random,
    "round-robin": RoundRobin,
    "balanced": Balanced,
    "heft": HEFT,
    "m-topo": MTopo,
    "m-etf": METF,
    "m-sct": MSCT,
    "streamed": Streamed,
    "baselines": Baselines,
    "local-search": LocalSearch,
    "genetic": Genetic,
    "cross-entropy": CrossEntropy,
    "schedule": Schedule,
}

__all__ = [
    "HEFT",
    "METF",
    "METHODS",
    "MSCT",
    "Accelerate",
    "Balanced",
    "Baselines",
    "Bound",
    "CpuOnly",
    "CrossEntropy",
    "EverySingleDevice",
    "Expert",
    "Gap",
    "Genetic",
    "LocalSearch",
    "MTopo",
    "MaxEvaluations",
    "MaxTime",
    "NoImprovement",
    "Random",
    "RoundRobin",
    "Schedule",
    "Search",
    "SingleDevice",
    "Solver",
    "Stop",
    "Streamed",
    "bound",
    "solve",
]
