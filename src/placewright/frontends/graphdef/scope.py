"""GraphDefScope: the names within a GraphDef or a function of it, and their values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.graph_builder import GraphBuilder, TensorValue

CALL_OPS = ("PartitionedCall", "StatefulPartitionedCall")

# Names of the outputs of ops with several, as function bodies use them.
OUTPUT_NAMES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        ("y", "batch_mean", "batch_variance", *(f"reserve_space_{at}" for at in (1, 2, 3))),
    ),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"),
        ("x_backprop", "scale_backprop", "offset_backprop", "reserve_space_3", "reserve_space_4"),
    ),
    **dict.fromkeys(("TopK", "TopKV2"), ("values", "indices")),
    "Unique": ("y", "idx"),
    "MaxPoolWithArgmax": ("output", "argmax"),
    "BroadcastGradientArgs": ("r0", "r1"),
    "Switch": ("output_false", "output_true"),
    "Merge": ("output", "value_index"),
    "LSTMBlockCell": ("i", "cs", "f", "o", "ci", "co", "h"),
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"),
        ("loss", "backprop"),
    ),
}


@dataclass
class GraphDefScope:
    """The nodes of the graph, or of one call of a function.

    Args:
        path: The path of the call, for the names of its nodes.
        values: The outputs of each node; None if their shapes are unknown.
        control_values: The control tensor of each node that has one.
        control_sources: Nodes with outgoing control edges.
        constants: Nodes of known values, which become a weight as soon as an op reads them.
    """

    builder: GraphBuilder
    path: str = ""
    is_function: bool = False
    values: dict[str, list[TensorValue | None] | None] = field(default_factory=dict)
    control_values: dict[str, TensorValue] = field(default_factory=dict)
    control_sources: set[str] = field(default_factory=set)
    constants: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Leave generated names of calls out of the names of ops."""
        steps = [
            step for step in self.path.split("/") if step.rstrip("_0123456789") not in CALL_OPS
        ]
        self.name_prefix = "".join(f"{step}/" for step in steps if step)

    def child(self, builder: GraphBuilder, path: str) -> GraphDefScope:
        """The scope of a function whose ops go into this builder."""
        return GraphDefScope(builder, path, is_function=True)

    def name(self, node: Any) -> str:
        """A node's name in the graph."""
        return self.name_prefix + str(node.name)


def parse_reference(reference: str, ops: Mapping[str, str], is_function: bool) -> tuple[str, int]:
    """The node and the output of an input reference, without its `^`."""
    name, _, output_text = reference.removeprefix("^").partition(":")
    if not output_text:
        return name, 0
    if not is_function:
        return name, int(output_text) if output_text.isdecimal() else -1
    output, _, number = output_text.partition(":")
    output_names = OUTPUT_NAMES.get(ops.get(name, ""), ())
    base = output_names.index(output) if output in output_names else 0
    return name, base + (int(number) if number.isdecimal() else 0)
