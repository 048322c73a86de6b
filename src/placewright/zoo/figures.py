"""Figures of the built-in models at their default sizes, also where none was captured yet.

Those of captured networks are shipped in `figures.json`; `record_figures` writes it again after a
change of a network or of a frontend.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.errors import PlacewrightError
from placewright.graph import INPUT, STATE, VIEW, WEIGHT
from placewright.zoo import ENTRIES
from placewright.zoo.capture import cached_graph

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placewright.graph import Graph
    from placewright.zoo import Entry
    from placewright.zoo.networks.network import ArgumentValue

FIGURES_FILE = Path(__file__).parent / "figures.json"
_DTYPE_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class GraphFigures:
    """Figures of a graph.

    Args:
        parameters: Elements of weights and states.
        flops: FLOPs of one step.
        resident: Bytes of weights and states.
        activations: Bytes of all tensors that a step computes.
    """

    ops: int
    tensors: int
    parameters: int
    flops: float
    resident: int
    activations: int

    @classmethod
    def of(cls, graph: Graph) -> GraphFigures:
        weights = [op for op in graph.ops if op.kind in (WEIGHT, STATE)]
        computed = [op for op in graph.ops if op.kind not in (WEIGHT, STATE, VIEW, INPUT)]
        return cls(
            ops=len(graph),
            tensors=sum(len(op.outputs) for op in graph.ops),
            parameters=sum(sum(op.outputs) // _DTYPE_BYTES.get(op.dtype, 4) for op in weights),
            flops=sum(op.flops for op in graph.ops),
            resident=sum(op.resident for op in graph.ops) + sum(sum(op.outputs) for op in weights),
            activations=sum(sum(op.outputs) for op in computed),
        )


def figures_of(entry: Entry, capture: bool = False) -> GraphFigures | None:
    """Figures of a built-in model at its default sizes; None where they are unknown.

    Args:
        capture: Capture the model if there is no graph of it in the cache.

    Raises:
        PlacewrightError: It cannot be captured.
    """
    if entry.network is None or capture:
        return GraphFigures.of(entry.build())
    graph = cached_graph(entry.network)
    if graph is not None:
        return GraphFigures.of(graph)
    arguments, figures = _shipped_figures().get(entry.name, (None, None))
    return figures if arguments == dict(entry.defaults) else None


def step_mode(entry: Entry) -> str:
    """What one step of a model does by default: training, inference, prefill or decode."""
    defaults = entry.defaults
    if entry.network is None:
        phases = {op.phase for op in entry.build().ops}
        return "training" if "backward" in phases else "inference"
    return "training" if defaults.get("training") else str(defaults.get("mode", "inference"))


def record_figures(names: Iterable[str] | None = None) -> None:
    """Capture networks and write their figures to the file; it takes minutes."""
    figures: dict[str, object] = {
        name: {"arguments": arguments, **asdict(each)}
        for name, (arguments, each) in _shipped_figures().items()
    }
    for name in names or [each.name for each in ENTRIES.values() if each.network is not None]:
        found = figures_of(ENTRIES[name], capture=True)
        if found is None:
            raise PlacewrightError(f"network {name!r} has no figures")
        figures[name] = {"arguments": dict(ENTRIES[name].defaults), **asdict(found)}
    FIGURES_FILE.write_text(json.dumps(figures, indent=1) + "\n")


@cache
def _shipped_figures() -> dict[str, tuple[dict[str, ArgumentValue], GraphFigures]]:
    """The arguments and figures of each network, by name."""
    try:
        data = json.loads(FIGURES_FILE.read_text())
    except FileNotFoundError:
        return {}
    return {name: (each.pop("arguments"), GraphFigures(**each)) for name, each in data.items()}
