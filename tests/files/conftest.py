"""The cast of the file tests: one noun of every kind, and a way to write a file of any content."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from placewright import (
    Call,
    Cluster,
    Constraints,
    Device,
    Graph,
    Plan,
    Problem,
    Result,
    Roofline,
    Table,
    Timeline,
    Workload,
    WorkloadPlan,
    WorkloadResult,
    evaluate,
)
from placewright.graph import Op

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def nouns(
    layers: Graph, shared_wire: Cluster, split_timeline: Timeline, split_result: Result
) -> dict[str, Any]:
    """One noun of every kind, with something in every field."""
    constraints = Constraints(
        pins={"layer*": "gpu0"},
        forbid={"w1": ("gpu1", "cpu")},
        colocate=(("w1", "layer1"), ("w2", "layer2")),
        limits={"gpu0": 900},
    )
    measured_on = Device("mine", model="P100", rates={"float32": 6.0})
    table = Table(("a", "b"), ("P100",), np.array([[1.5], [2.5]]), np.array([1.0]), measured_on)
    return {
        "graph": layers,
        "cluster": shared_wire,
        "costs": table,
        "constraints": constraints,
        "problem": Problem(
            layers, shared_wire, Roofline(0.5), constraints, "ready", "period", False
        ),
        "plan": split_result.plan,
        "timeline": split_timeline,
        "result": split_result,
        **_workload_nouns(layers, shared_wire),
    }


def _workload_nouns(layers: Graph, cluster: Cluster) -> dict[str, Any]:
    """A workload of two calls, its plan with everything that a plan can have, and its result."""
    other = Graph(
        "other",
        (*layers.ops[:2], Op("cache", "state", outputs=(3,)), Op("attend", inputs=((2, 0),))),
    )
    first, second = (Problem(graph, cluster, Roofline(0.5)) for graph in (layers, other))
    workload = Workload((Call("first", first, 2), Call("second", second, 0.5)))
    plans = [
        Plan.of(
            problem,
            problem.legalize(np.zeros(len(problem.graph), dtype=np.int32)),
            np.arange(len(problem.graph))[::-1],
            np.full(len(problem.graph), -1),
            {"gpu0": 2**20},
        )
        for problem in (first, second)
    ]
    plan = WorkloadPlan.of(workload, plans)
    result: WorkloadResult = evaluate(workload, plan)
    result = replace(result, options={"model": "other", "limit": ("1GiB",)}, found_by="hand")
    return {"workload": workload, "workload_plan": plan, "workload_result": result}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text, bytes or data as JSON to a file of this name, and say where it is."""

    def write(content: object, name: str = "file.json") -> Path:
        path = tmp_path / name
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
