"""The registry of methods: solvers by name, with the names of the last release."""

from __future__ import annotations

import warnings
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
from placewright.solvers.islands import Islands
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
from placewright.solvers.searches.population_annealing import PopulationAnnealing
from placewright.solvers.single import CpuOnly, SingleDevices
from placewright.solvers.streamed import Streamed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from placewright.solvers.search import Solver

RENAMED_METHODS = {"schedule": "order-search"}  # old name -> new name; read until the next release


class MethodRegistry(dict[str, "Callable[[], Solver]"]):
    """Makers of solvers by name. A renamed method is also found by its old name, with a warning."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in RENAMED_METHODS

    def __missing__(self, name: str) -> Callable[[], Solver]:
        if name not in RENAMED_METHODS:
            raise KeyError(name)
        new_name = RENAMED_METHODS[name]
        warnings.warn(
            f"method {name!r} is called {new_name!r} now: the next release reads that name only",
            FutureWarning,
            stacklevel=2,
        )
        return self[new_name]


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
        "islands": Islands,
        "exact": Exact,
        "lns": LNS,
        "local-search": LocalSearch,
        "genetic": Genetic,
        "cross-entropy": CrossEntropy,
        "population-annealing": PopulationAnnealing,
        "order-search": OrderSearch,
    }
)


SEARCHES = frozenset(
    {
        *("auto", "islands", "annealing", "local-search", "genetic", "cross-entropy"),
        *("population-annealing", "order-search", "exact", "lns"),
    }
)
"""Methods that run until they are stopped."""

ON_REQUEST = (SEARCHES - {"auto"}) | {
    "baselines",
    *("metis-repaired", "kahip-repaired", "scotch-repaired", "mincut-repaired"),
}
"""Methods that a comparison runs only by name: the parts of `auto`, and variants."""


def find_method(
    name: str, further_methods: Mapping[str, Callable[[], Solver]] | None = None
) -> Solver:
    """The method of that name.

    Args:
        further_methods: Methods that are known in addition, e.g. trained policies.

    Raises:
        ConfigError: There is no method of that name.
    """
    further_methods = further_methods or {}
    if name in METHODS:
        return METHODS[name]()
    if name not in further_methods:
        known = [*METHODS, *further_methods]
        raise ConfigError(f"no method is named {name!r}: {nearest(name, known)}")
    return further_methods[name]()


def placement_name(method: str) -> str:
    """What a method's plan is called where our runtime runs it.

    Only a method that stands for another runtime gets another name.
    """
    return phase_name(METHODS[method]()) if method in METHODS else method
