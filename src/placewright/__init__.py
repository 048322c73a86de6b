"""Placewright finds the fastest placement of a neural network on a set of devices.

    problem = pw.Problem(pw.from_torch(model, x), pw.Cluster.parse("V100+cpu"))
    result = pw.solve(problem, budget="30s")

`solve` finds a plan, `evaluate` simulates one that exists, `compare` runs every method, `explain`
says what binds a plan, `profile` measures a model on this machine, `apply` runs a plan, `verify`
checks that, `export` writes a plan for another runtime, and `report`, `plot` and `diff` show plans.
`place` puts a model on this machine in one call: it measures, plans, verifies and applies.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from placewright.version import __version__ as __version__

if TYPE_CHECKING:
    from placewright import explanations as explanations
    from placewright import exporters as exporters
    from placewright import frontends as frontends
    from placewright import policies as policies
    from placewright import profiling as profiling
    from placewright import reporting as reporting
    from placewright import runtime as runtime
    from placewright import simulator as simulator
    from placewright import solvers as solvers
    from placewright import store as store
    from placewright import training as training
    from placewright import transforms as transforms
    from placewright import units as units
    from placewright import workers as workers
    from placewright import zoo as zoo
    from placewright.cluster import Cluster as Cluster
    from placewright.costs import CostModel as CostModel
    from placewright.costs import Roofline as Roofline
    from placewright.costs import Table as Table
    from placewright.deployment.call_mix import Calls as Calls
    from placewright.deployment.call_mix import Generate as Generate
    from placewright.deployment.call_mix import Train as Train
    from placewright.deployment.model_placement import place as place
    from placewright.device import Device as Device
    from placewright.device import Link as Link
    from placewright.errors import PlacewrightError as PlacewrightError
    from placewright.explanations import Explanation as Explanation
    from placewright.explanations import MemoryFit as MemoryFit
    from placewright.explanations import explain as explain
    from placewright.explanations import fits as fits
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
    from placewright.plan_diff import PlanDiff as PlanDiff
    from placewright.plan_diff import diff as diff
    from placewright.problem import Constraints as Constraints
    from placewright.problem import Problem as Problem
    from placewright.profiling.model_profile import Profile as Profile
    from placewright.profiling.model_profile import profile as profile
    from placewright.reporting import plot as plot
    from placewright.reporting import report as report
    from placewright.result import Result as Result
    from placewright.runtime import apply as apply
    from placewright.runtime import verify as verify
    from placewright.simulator import judge as judge
    from placewright.simulator import simulate as simulate
    from placewright.simulator import simulate_in_flight as simulate_in_flight
    from placewright.solvers import Comparison as Comparison
    from placewright.solvers import Gap as Gap
    from placewright.solvers import MaxEvaluations as MaxEvaluations
    from placewright.solvers import MaxTime as MaxTime
    from placewright.solvers import NoImprovement as NoImprovement
    from placewright.solvers import Search as Search
    from placewright.solvers import compare as compare
    from placewright.solvers import evaluate as evaluate
    from placewright.solvers import solve as solve
    from placewright.timeline import Timeline as Timeline
    from placewright.workers import Workers as Workers
    from placewright.workers import open_workers as open_workers
    from placewright.workload import Call as Call
    from placewright.workload import Workload as Workload
    from placewright.workload_plan import WorkloadPlan as WorkloadPlan
    from placewright.workload_result import WorkloadResult as WorkloadResult

_EXPORTS = {
    "cluster": ("Cluster",),
    "costs": ("CostModel", "Roofline", "Table"),
    "deployment.call_mix": ("Calls", "Generate", "Train"),
    "deployment.model_placement": ("place",),
    "device": ("Device", "Link"),
    "errors": ("PlacewrightError",),
    "explanations": ("Explanation", "MemoryFit", "explain", "fits"),
    "exporters": ("export",),
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
    "plan_diff": ("PlanDiff", "diff"),
    "problem": ("Constraints", "Problem"),
    "profiling.model_profile": ("Profile", "profile"),
    "reporting": ("plot", "report"),
    "result": ("Result",),
    "runtime": ("apply", "verify"),
    "simulator": ("judge", "simulate", "simulate_in_flight"),
    "solvers": (
        "Comparison",
        "Gap",
        "MaxEvaluations",
        "MaxTime",
        "NoImprovement",
        "Search",
        "compare",
        "evaluate",
        "solve",
    ),
    "timeline": ("Timeline",),
    "workers": ("Workers", "open_workers"),
    "workload": ("Call", "Workload"),
    "workload_plan": ("WorkloadPlan",),
    "workload_result": ("WorkloadResult",),
}
_SUBMODULES = (
    "explanations",
    "exporters",
    "frontends",
    "policies",
    "profiling",
    "reporting",
    "runtime",
    "simulator",
    "solvers",
    "store",
    "training",
    "transforms",
    "units",
    "workers",
    "zoo",
)

__all__ = [*(name for names in _EXPORTS.values() for name in names), *_SUBMODULES]


def __getattr__(name: str) -> object:
    """Public names load on first use, so that `import placewright` costs next to nothing."""
    for module, names in _EXPORTS.items():
        if name in names:
            return getattr(importlib.import_module(f"placewright.{module}"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"placewright.{name}")
    raise AttributeError(f"module 'placewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
