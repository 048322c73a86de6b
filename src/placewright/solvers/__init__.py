"""A problem in, a result out. One file a method; `METHODS` names them for the command line."""

from collections.abc import Callable
from functools import partial

from placewright.solvers.accelerate_map import Accelerate
from placewright.solvers.auto import Auto
from placewright.solvers.balanced import Balanced
from placewright.solvers.baselines import Baselines
from placewright.solvers.best_plans import Found
from placewright.solvers.bounds import Bound, bound
from placewright.solvers.contiguous.cuts import Cuts
from placewright.solvers.contiguous.ideals import Ideals
from placewright.solvers.cost_perturbation import (
    Robust,
    Robustness,
    perturbed,
    robustness,
)
from placewright.solvers.cpop import CPoP
from placewright.solvers.exact.lns import LNS
from placewright.solvers.exact.solver import Exact
from placewright.solvers.expert import Expert
from placewright.solvers.heft import HEFT
from placewright.solvers.m_etf import METF
from placewright.solvers.m_sct import MSCT
from placewright.solvers.m_topo import MTopo
from placewright.solvers.ordering.order_search import Schedule
from placewright.solvers.partition.capacity_repair import repair
from placewright.solvers.partition.partition_solvers import (
    METIS,
    KaHIP,
    MinCut,
    Scotch,
)
from placewright.solvers.random_search import Random
from placewright.solvers.round_robin import RoundRobin
from placewright.solvers.search import Search, Solver, solve
from placewright.solvers.searches.annealing import Annealing, refined
from placewright.solvers.searches.cross_entropy import CrossEntropy
from placewright.solvers.searches.fusion_search import FusionSearch
from placewright.solvers.searches.genetic import Genetic
from placewright.solvers.searches.local_search import LocalSearch
from placewright.solvers.single import CpuOnly, EverySingleDevice, SingleDevice
from placewright.solvers.stop import Gap, MaxEvaluations, MaxTime, NoImprovement, Stop
from placewright.solvers.streamed import Streamed

METHODS: dict[str, Callable[[], Solver]] = {
    "single": EverySingleDevice,
    "cpu-only": CpuOnly,
    "expert": Expert,
    "accelerate": Accelerate,
    "random": Random,
    "round-robin": RoundRobin,
    "balanced": Balanced,
    "heft": HEFT,
    "cpop": CPoP,
    "m-topo": MTopo,
    "m-etf": METF,
    "m-sct": MSCT,
    "streamed": Streamed,
    "metis": METIS,
    "kahip": KaHIP,
    "scotch": Scotch,
    "mincut": MinCut,
    "metis-repaired": partial(METIS, repaired=True),
    "kahip-repaired": partial(KaHIP, repaired=True),
    "scotch-repaired": partial(Scotch, repaired=True),
    "mincut-repaired": partial(MinCut, repaired=True),
    "cuts": Cuts,
    "ideals": Ideals,
    "baselines": Baselines,
    "annealing": Annealing,
    "auto": Auto,
    "exact": Exact,
    "lns": LNS,
    "local-search": LocalSearch,
    "genetic": Genetic,
    "cross-entropy": CrossEntropy,
    "schedule": Schedule,
}

SEARCHES = frozenset(
    {
        *("auto", "annealing", "local-search", "genetic", "cross-entropy"),
        *("schedule", "exact", "lns"),
    }
)
"""Methods that go on for as long as they are let."""

UNASKED = (SEARCHES - {"auto"}) | {
    "baselines",
    *("metis-repaired", "kahip-repaired", "scotch-repaired", "mincut-repaired"),
}
"""Methods that a comparison runs only when they are named: what `auto` is made of, and variants."""

__all__ = [
    "HEFT",
    "LNS",
    "METF",
    "METHODS",
    "METIS",
    "MSCT",
    "SEARCHES",
    "UNASKED",
    "Accelerate",
    "Annealing",
    "Auto",
    "Balanced",
    "Baselines",
    "Bound",
    "CPoP",
    "CpuOnly",
    "CrossEntropy",
    "Cuts",
    "EverySingleDevice",
    "Exact",
    "Expert",
    "Found",
    "FusionSearch",
    "Gap",
    "Genetic",
    "Ideals",
    "KaHIP",
    "LocalSearch",
    "MTopo",
    "MaxEvaluations",
    "MaxTime",
    "MinCut",
    "NoImprovement",
    "Random",
    "Robust",
    "Robustness",
    "RoundRobin",
    "Schedule",
    "Scotch",
    "Search",
    "SingleDevice",
    "Solver",
    "Stop",
    "Streamed",
    "bound",
    "perturbed",
    "refined",
    "repair",
    "robustness",
    "solve",
]
