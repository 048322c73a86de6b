"""Solvers: one file per method; `METHODS` names them for the command line."""

from placewright.solvers.accelerate_map import Accelerate
from placewright.solvers.auto import Auto
from placewright.solvers.balanced import Balanced
from placewright.solvers.baselines import Baselines
from placewright.solvers.best_plans import Candidate
from placewright.solvers.bounds import Bound, bound
from placewright.solvers.cautious_choice import CautiousChoice
from placewright.solvers.comparison import Comparison, compare
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
from placewright.solvers.in_flight_choice import InFlightChoice
from placewright.solvers.islands import Islands
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
from placewright.solvers.registry import METHODS, ON_REQUEST, SEARCHES, find_method
from placewright.solvers.results import evaluate, solve
from placewright.solvers.round_robin import RoundRobin
from placewright.solvers.search import RuntimeSolver, Search, Solver
from placewright.solvers.searches.annealing import Annealing, refine
from placewright.solvers.searches.cross_entropy import CrossEntropy
from placewright.solvers.searches.fusion_search import FusionSearch
from placewright.solvers.searches.genetic import Genetic
from placewright.solvers.searches.local_search import LocalSearch
from placewright.solvers.searches.population_annealing import PopulationAnnealing
from placewright.solvers.single import CpuOnly, SingleDevice, SingleDevices
from placewright.solvers.stop import Gap, MaxEvaluations, MaxTime, NoImprovement, Stop
from placewright.solvers.streamed import Streamed

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
    "CautiousChoice",
    "Comparison",
    "CpuOnly",
    "CrossEntropy",
    "Cuts",
    "Exact",
    "Expert",
    "FusionSearch",
    "Gap",
    "Genetic",
    "Ideals",
    "InFlightChoice",
    "Islands",
    "KaHIP",
    "LocalSearch",
    "MTopo",
    "MaxEvaluations",
    "MaxTime",
    "MinCut",
    "NoImprovement",
    "OrderSearch",
    "PopulationAnnealing",
    "RandomSearch",
    "RobustChoice",
    "Robustness",
    "RoundRobin",
    "RuntimeSolver",
    "Scotch",
    "Search",
    "SingleDevice",
    "SingleDevices",
    "Solver",
    "Stop",
    "Streamed",
    "bound",
    "compare",
    "evaluate",
    "find_method",
    "perturbed_problems",
    "refine",
    "repair",
    "robustness",
    "solve",
]
