"""The cast of the file tests: one noun of every kind, and a way to write a file of any content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Problem,
    Result,
    Roofline,
    Table,
    Timeline,
)

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
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text, bytes or data as JSON to a file of this name, and say where it is."""

    def write(content: object, name: str = "file.json") -> Path:
        path = tmp_path / name
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
