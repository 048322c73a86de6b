"""Small valid documents that the fuzzers start from, all built here or by helpers of the tests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    Op,
    Plan,
    Problem,
    Roofline,
    Table,
    solve,
    solvers,
)
from placewright.files import to_data
from placewright.simulator import simulate


@cache
def problem() -> Problem:
    """Two layers with weights, a view and a branch, on two GPUs and a host."""
    graph = Graph(
        "layers",
        (
            Op("x", kind="input", outputs=(8,)),
            Op("w1", kind="weight", outputs=(50,)),
            Op("layer1", "matmul", ((0, 0), (1, 0)), (8, 4), flops=4, module="a.b", workspace=3),
            Op("w2", kind="weight", outputs=(50,)),
            Op("w2.t", kind="view", outputs=(50,), inputs=((3, 0),), aliases=((0, 0),)),
            Op("layer2", "matmul", ((2, 0), (4, 0)), (8,), flops=4, phase="backward"),
            Op("add", "add", ((2, 1), (5, 0)), (8,), flops=1, runs_on=("gpu", "cpu")),
        ),
    )
    names = ("gpu0", "gpu1", "cpu")
    devices = tuple(
        Device(
            name,
            name.rstrip("01"),
            "P100",
            memory=1000,
            reserve=10,
            rates={"float32": 2.0},
            memory_bandwidth=1e30,
        )
        for name in names
    )
    links = {(a, b): Link(2.0, 0.1, f"{a}-out") for a in names for b in names if a != b}
    constraints = Constraints(
        pins={"x": "cpu"},
        forbid={"w1": ("cpu",)},
        colocate=(("w1", "layer1"),),
        limits={"gpu0": 900},
    )
    return Problem(graph, Cluster("wire", devices, links), Roofline(0.5), constraints)


@cache
def documents() -> dict[str, Any]:
    """Plain data of every kind of file."""
    whole = problem()
    result = solve(whole, solvers.METHODS["heft"]())
    options = {"model": "layers.json", "on": "2xP100", "objective": "step", "pin": ("x=cpu",)}
    result = replace(result, options=options)
    plan = Plan.of(whole, result.plan.placement, np.arange(float(len(whole.graph)))[::-1])
    device = Device("mine", model="P100", rates={"float32": 6.0}, memory_bandwidth=1e30)
    ops = tuple(op.name for op in whole.graph.ops)
    table = Table(ops, ("P100",), np.linspace(0.0, 1.0, len(ops))[:, None], np.ones(1), device)
    nouns = {
        "graph": whole.graph,
        "cluster": whole.cluster,
        "costs": table,
        "constraints": whole.constraints,
        "problem": whole,
        "plan": plan,
        "timeline": simulate(whole, plan),
        "result": result,
    }
    return {kind: to_data(noun) for kind, noun in nouns.items()}
