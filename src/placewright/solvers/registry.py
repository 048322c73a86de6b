"""The registry of methods: `METHODS` maps the names of the command line to solvers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, nearest
from placewright.solvers.accelerate_map import Accelerate
from placewright.solvers.auto import Auto
from placewright.solvers.balanced import Balanced
from placewright.solvers.baselines import Baselines
from placewright.solvers.contiguous.cuts import Cuts
from placewright.solvers.contiguous.ideals import Ideals
from placewright.solvers.cpop import CPoP
from placewright.solvers.exact.lns import LNS
from placewright.solvers.exact.solver import Exact
from placewright.solvers.expert import Expert
from placewright.solvers.heft import HEFT
from placewright.solvers.m_etf import METF
from placewright.solvers.m_sct import MSCT
from placewright.solvers.m_topo import MTopo
from placewright.solvers.ordering.order_search import OrderSearch
from placewright.solvers.partition.partition_solvers import METIS, KaHIP, MinCut, Scotch
from placewright.solvers.random_search import RandomSearch
from placewright.solvers.round_robin import RoundRobin
from placewright.solvers.search import phase_name
from placewright.solvers.searches.annealing import Annealing
from placewright.solvers.searches.cross_entropy import CrossEntropy
from placewright.solvers.searches.genetic import Genetic
from placewright.solvers.searches.local_search import LocalSearch
from placewright.solvers.single import CpuOnly, SingleDevices
from placewright.solvers.streamed import Streamed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from placewright.solvers.search import Solver

METHODS: dict[str, Callable[[], Solver]] = {
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
    "schedule": OrderSearch,
}

SEARCHES = frozenset(
    {
        *("auto", "annealing", "local-search", "genetic", "cross-entropy"),
        *("schedule", "exact", "lns"),
    }
)
"""Methods that run until their budget is used up."""

ON_REQUEST = (SEARCHES - {"auto"}) | {
    "baselines",
    *("metis-repaired", "kahip-repaired", "scotch-repaired", "mincut-repaired"),
}
"""Methods that a comparison runs only when they are named: parts of `auto`, and variants."""


def find_method(
    name: str, further_methods: Mapping[str, Callable[[], Solver]] | None = None
) -> Solver:
    """The method of that name.

    Args:
        further_methods: Methods that are known in addition, e.g. trained policies.

    Raises:
        ConfigError: There is no method of that name.
    """
    methods = {**METHODS, **(further_methods or {})}
    if name not in methods:
        raise ConfigError(f"no method is named {name!r}: {nearest(name, methods)}")
    return methods[name]()


def placement_name(method: str) -> str:
    """What a method's plan is called where our runtime runs it.

    Only a method that stands for another runtime gets another name.
    """
    return phase_name(METHODS[method]()) if method in METHODS else method
