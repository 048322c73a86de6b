"""Captures the calls of a mix: a dry run of the model, and the program of each of its calls."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.deployment.model_states import unchanged_states
from placewright.errors import GraphError
from placewright.plan import Plan
from placewright.runtime.garbage_collection import rare_collections
from placewright.runtime.placed_model import PlacedModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.deployment.call_mix import Calls, Generate
    from placewright.runtime.program.program import Program


@dataclass(frozen=True, eq=False)
class CapturedCall:
    """A call as a program.

    Args:
        count: How often it is made.
    """

    name: str
    program: Program
    count: float

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.program.graph.ops)


def begin_capture(
    model: torch.nn.Module,
    cluster: Cluster,
    device_map: Mapping[str, str] | None = None,
    cuda_graphs: bool | None = None,
) -> PlacedModel:
    """Let a model's calls be captured for a cluster; `remove` ends it.

    Until there is a plan, all weights are where they are.
    """
    names = [
        *(name for name, _ in model.named_parameters(remove_duplicate=False)),
        *(name for name, _ in model.named_buffers(remove_duplicate=False)),
    ]
    devices = tuple(device.name for device in cluster.devices)
    host = next((at for at, device in enumerate(cluster.devices) if device.kind == "cpu"), 0)
    placement = np.full(len(names), host, dtype=np.int32)
    plan = Plan(tuple(names), devices, placement)
    placed = PlacedModel(plan, model, device_map, cuda_graphs=cuda_graphs)
    placed.install()
    return placed


def capture_calls(
    placed: PlacedModel, mix: Generate | Calls, written_weights: Sequence[torch.Tensor] = ()
) -> list[CapturedCall]:
    """The calls of a mix, each with its program.

    Args:
        written_weights: The weights that the calls write to. Graphs do not in a dry run, but what
            Python runs between them does.

    Raises:
        GraphError: A call cannot be captured.
    """
    mix.prepare(placed)
    states = unchanged_states(placed.model, written_weights)
    with empty_weights(placed.model), states, rare_collections():
        shapes = mix.call_shapes(placed.model, placed.backend)
        if not shapes:
            raise GraphError("the calls of the workload compute nothing")
        return [CapturedCall(shape.name, shape.call.program(), shape.count) for shape in shapes]


@contextlib.contextmanager
def empty_weights(model: torch.nn.Module) -> Iterator[None]:
    """Let tensors on `meta` have memory that is never touched, so that the model can be called."""
    replaced: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    copies: dict[int, torch.Tensor] = {}
    for module in model.modules():
        tables: tuple[Any, Any] = module._parameters, module._buffers
        for table in tables:
            for name, tensor in table.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in copies:
                    data = torch.empty_like(tensor, device="cpu")
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    copies[id(tensor)] = (
                        torch.nn.Parameter(data, tensor.requires_grad) if is_parameter else data
                    )
                replaced.append((table, name, tensor))
                table[name] = copies[id(tensor)]
    try:
        yield
    finally:
        for table, name, tensor in replaced:
            table[name] = tensor
