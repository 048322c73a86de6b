"""Placewright finds the fastest placement of a neural network on a set of devices."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from placewright.version import __version__ as __version__

if TYPE_CHECKING:
    from placewright.cluster import Cluster as Cluster
    from placewright.costs import CostModel as CostModel
    from placewright.costs import Roofline as Roofline
    from placewright.costs import Table as Table
    from placewright.device import Device as Device
    from placewright.device import Link as Link
    from placewright.errors import PlacewrightError as PlacewrightError
    from placewright.exporters import export as export
    from placewright.files import load as load
    from placewright.files import save as save
    from placewright.frontends import from_jax as from_jax
    from placewright.frontends import from_onnx as from_onnx
    from placewright.frontends import from_python as from_python
    from placewright.frontends import from_tensorflow as from_tensorflow
    from placewright.frontends import from_torch as from_torch
    from placewright.frontends import from_workload as from_workload
    from placewright.graph import Graph as Graph
    from placewright.graph import Op as Op
    from placewright.plan import Plan as Plan
    from placewright.problem import Constraints as Constraints
    from placewright.problem import Problem as Problem
    from placewright.result import Result as Result
    from placewright.runtime import apply as apply
    from placewright.simulator import judge as judge
    from placewright.simulator import simulate as simulate
    from placewright.simulator import simulate_in_flight as simulate_in_flight
    from placewright.solvers import Gap as Gap
    from placewright.solvers import MaxEvaluations as MaxEvaluations
    from placewright.solvers import MaxTime as MaxTime
    from placewright.solvers import NoImprovement as NoImprovement
    from placewright.solvers import Search as Search
    from placewright.solvers import solve as solve
    from placewright.timeline import Timeline as Timeline

_EXPORTS = {
    "cluster": ("Cluster",),
    "costs": ("CostModel", "Roofline", "Table"),
    "device": ("Device", "Link"),
    "errors": ("PlacewrightError",),
    "files": ("load", "save"),
    "frontends": (
        "from_jax",
        "from_onnx",
        "from_python",
        "from_tensorflow",
        "from_torch",
        "from_workload",
    ),
    "graph": ("Graph", "Op"),
    "plan": ("Plan",),
    "problem": ("Constraints", "Problem"),
    "result": ("Result",),
    "runtime": ("apply",),
    "exporters": ("export",),
    "simulator": ("judge", "simulate", "simulate_in_flight"),
    "solvers": ("Gap", "MaxEvaluations", "MaxTime", "NoImprovement", "Search", "solve"),
    "timeline": ("Timeline",),
}
_SUBPACKAGES = (
    *(
        "explanations",
        "frontends",
        "policies",
        "profiling",
        "exporters",
        "reporting",
        "runtime",
        "simulator",
        "solvers",
        "training",
    ),
    *("transforms", "zoo"),
)

__all__ = [*(name for names in _EXPORTS.values() for name in names), *_SUBPACKAGES]


def __getattr__(name: str) -> object:
    """Public names load on first use, so that `import placewright` costs next to nothing."""
    for module, names in _EXPORTS.items():
        if name in names:
            return getattr(importlib.import_module(f"placewright.{module}"), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"placewright.{name}")
    raise AttributeError(f"module 'placewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
