"""Placewright: the fastest placement of a neural network on a set of devices, found and proven."""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_HOME = {
    "Op": "graph",
    "Graph": "graph",
    "Device": "cluster",
    "Link": "cluster",
    "Cluster": "cluster",
    "CostModel": "costs",
    "Roofline": "costs",
    "Table": "costs",
    "Constraints": "problem",
    "Problem": "problem",
    "Plan": "plan",
    "Timeline": "timeline",
    "Result": "result",
    "PlacewrightError": "errors",
    "load": "files",
    "save": "files",
    "simulate": "simulator",
    "judge": "simulator",
    "from_workload": "frontends",
    "solve": "solvers",
    "Search": "solvers",
    "MaxTime": "solvers",
    "MaxEvaluations": "solvers",
    "NoImprovement": "solvers",
    "Gap": "solvers",
}
_ROOMS = ("frontends", "report", "simulator", "solvers", "transforms", "zoo")

__all__ = [*_HOME, *_ROOMS]


def __getattr__(name: str) -> object:
    """Public names load on first use, so that `import placewright` costs next to nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"placewright.{_HOME[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"placewright.{name}")
    raise AttributeError(f"module 'placewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
