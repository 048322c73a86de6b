"""A dry run: calls a model without computing, to learn which graphs it runs on which shapes.

Every graph returns zeros of the right shapes. So `generate` of transformers, or any other code that
calls the model, runs through its calls in no time, whatever caches it passes from one to the next;
weights may be empty. The graphs stay compiled, and later calls are served by them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import GraphError
from placewright.frontends.pytorch.aot_graph import output_nodes
from placewright.frontends.pytorch.shapes import Node
from placewright.runtime.dynamo.metadata_guards import bucket_tensors
from placewright.runtime.dynamo.static_graph import make_static

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from placewright.runtime.dynamo.backend import PlanBackend
    from placewright.runtime.dynamo.compiled_graph import CompiledGraph
    from placewright.runtime.program.program import Program


@dataclass(frozen=True, eq=False)
class DryCall:
    """A graph that ran, and the shapes of its arguments.

    Args:
        args: The arguments; tensors are on `meta`.
        number: Which call of a module it is part of: a call with graph breaks has several graphs.
        is_model: Whether that is a call of the model itself, not of a module of it.
    """

    graph: CompiledGraph
    args: tuple[Any, ...]
    number: int
    is_model: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for calls of one graph and shape."""
        shapes = (
            tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in self.args
        )
        return (id(self.graph), *shapes)

    def program(self) -> Program:
        """The program of this call, with numbers in place of symbolic sizes.

        Raises:
            GraphError: The graph cannot be run op by op.
        """
        from placewright.runtime.dynamo.compiled_graph import build_graph_program

        if not self.graph.is_symbolic and self.graph.program is not None:
            return self.graph.program
        module = make_static(self.graph.module, self.args)
        return build_graph_program(module, self.graph.inputs)


class DryRun:
    """The graphs that ran during a dry run, in order."""

    def __init__(self) -> None:
        self.calls: list[DryCall] = []
        self._number, self._is_model = -1, True
        self.bucket_tensors: set[int] = set()
        """The ids of the tensors of buckets in the current call; a plan says where they lie."""

    def begin_call(self, is_model: bool, kwargs: Mapping[str, Any]) -> None:
        """Note that a module is called."""
        self._number, self._is_model = self._number + 1, is_model
        self.bucket_tensors = bucket_tensors(kwargs)

    def run(self, graph: CompiledGraph, args: Sequence[Any]) -> list[torch.Tensor]:
        """Note a graph, and make its outputs of zeros.

        Raises:
            GraphError: The graph cannot be run op by op, so that there is nothing to plan.
        """
        if graph.program is None:
            raise GraphError(f"a graph of this call cannot be planned: {graph.reason}")
        shapes = tuple(_on_meta(value) for value in args)
        self.calls.append(DryCall(graph, shapes, self._number, self._is_model))
        scalars = graph.program.scalars
        if scalars is not None:
            scalars.bind(args)
        outputs = []
        for node, _ in output_nodes(graph.module.graph):
            value = node.meta.get("val") if isinstance(node, Node) else None
            if isinstance(value, torch.Tensor) and node not in graph.placeholders:
                sizes = [size if scalars is None else scalars.size(size) for size in value.shape]
                outputs.append(torch.zeros(sizes, dtype=value.dtype))
        return outputs


@contextlib.contextmanager
def record_calls(backend: PlanBackend) -> Iterator[DryRun]:
    """Let the graphs of a backend compute nothing inside the block."""
    run = DryRun()
    backend.dry_run = run
    try:
        yield run
    finally:
        backend.dry_run = None


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
