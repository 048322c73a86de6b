"""Solvers: one file per method; `METHODS` names them for the command line."""

from functools import partial

from placewright.solvers.accelerate_map import Accelerate
from placewright.solvers.auto import Auto
from placewright.solvers.balanced import Balanced
from placewright.solvers.baselines import Baselines
from placewright.solvers.best_plans import Candidate
from placewright.solvers.bounds import Bound, bound
from placewright.solvers.contiguous.cuts import Cuts
from placewright.solvers.contiguous.ideals import Ideals
from placewright.solvers.cost_perturbation import (
    RobustChoice,
    Robustness,
    perturbed_problems,
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
from placewright.solvers.ordering.order_search import OrderSearch
from placewright.solvers.partition.capacity_repair import repair
from placewright.solvers.partition.partition_solvers import (
    METIS,
    KaHIP,
    MinCut,
    Scotch,
)
from placewright.solvers.random_search import RandomSearch
from placewright.solvers.registry import MethodRegistry
from placewright.solvers.round_robin import RoundRobin
from placewright.solvers.search import Search, Solver, solve
from placewright.solvers.searches.annealing import Annealing, refine
from placewright.solvers.searches.cross_entropy import CrossEntropy
from placewright.solvers.searches.fusion_search import FusionSearch
from placewright.solvers.searches.genetic import Genetic
from placewright.solvers.searches.local_search import LocalSearch
from placewright.solvers.single import CpuOnly, SingleDevice, SingleDevices
from placewright.solvers.stop import Gap, MaxEvaluations, MaxTime, NoImprovement, Stop
from placewright.solvers.streamed import Streamed

METHODS = MethodRegistry(
    {
        "single": SingleDevices,
        "cpu-only": CpuOnly,
        "expert": Expert,
        "accelerate": Accelerate,
        "random": RandomSearch,
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
        "order-search": OrderSearch,
    }
)


SEARCHES = frozenset(
    {
        *("auto", "annealing", "local-search", "genetic", "cross-entropy"),
        *("order-search", "exact", "lns"),
    }
)
"""Methods that run until they are stopped."""

ON_REQUEST = (SEARCHES - {"auto"}) | {
    "baselines",
    *("metis-repaired", "kahip-repaired", "scotch-repaired", "mincut-repaired"),
}
"""Methods that a comparison runs only by name: the parts of `auto`, and variants."""

__all__ = [
    "HEFT",
    "LNS",
    "METF",
    "METHODS",
    "METIS",
    "MSCT",
    "ON_REQUEST",
    "SEARCHES",
    "Accelerate",
    "Annealing",
    "Auto",
    "Balanced",
    "Baselines",
    "Bound",
    "CPoP",
    "Candidate",
    "CpuOnly",
    "CrossEntropy",
    "Cuts",
    "Exact",
    "Expert",
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
    "OrderSearch",
    "RandomSearch",
    "RobustChoice",
    "Robustness",
    "RoundRobin",
    "Scotch",
    "Search",
    "SingleDevice",
    "SingleDevices",
    "Solver",
    "Stop",
    "Streamed",
    "bound",
    "perturbed_problems",
    "refine",
    "repair",
    "robustness",
    "solve",
]
