"""Helpers of the tests of the PyTorch frontend: a small model, and queries of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
nn = torch.nn

if TYPE_CHECKING:
    from placewright.graph import Graph, Op


def log_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages of Placewright's logger, without those of PyTorch."""
    return [record.message for record in caplog.records if record.name == "placewright"]


def flops(graph: Graph, *kinds: str, phase: str | None = None) -> float:
    """FLOPs of a graph's ops of these kinds, by default of all."""
    return sum(
        op.flops
        for op in graph.ops
        if (not kinds or op.kind in kinds) and phase in (None, op.phase)
    )


def weight_bytes(graph: Graph) -> int:
    return sum(sum(op.outputs) for op in graph.ops if op.kind == "weight")


def op_named(graph: Graph, name: str) -> Op:
    return graph.ops[graph.position[name]]


def inputs_of(graph: Graph, name: str) -> list[str]:
    return [graph.ops[source].name for source, _ in op_named(graph, name).inputs]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))
