"""The names within a GraphDef or a function of it, and what they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.graph_builder import Draft, Value

CALLS = ("PartitionedCall", "StatefulPartitionedCall")

# The outputs of ops that have several, as function bodies name them.
OUTPUTS: Mapping[str, Sequence[str]] = {
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
class Scope:
    """The nodes of the graph, or of one call of a function.

    Args:
        path: Where it stands, for names within it.
        values: What each node makes, None where that is not known.
        done: The control tensor of each node that has one.
        waited: Nodes that others wait for.
        constants: Nodes whose values are known and not in the draft until an op reads them.
    """

    draft: Draft
    path: str = ""
    functional: bool = False
    values: dict[str, list[Value | None] | None] = field(default_factory=dict)
    done: dict[str, Value] = field(default_factory=dict)
    waited: set[str] = field(default_factory=set)
    constants: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Calls that have no name of their own do not show in names of the graph."""
        steps = [step for step in self.path.split("/") if step.rstrip("_0123456789") not in CALLS]
        self.shown = "".join(f"{step}/" for step in steps if step)

    def inner(self, draft: Draft, path: str) -> Scope:
        """The scope of a function whose ops go into this draft."""
        return Scope(draft, path, functional=True)

    def name(self, node: Any) -> str:
        """A node's name in the graph."""
        return self.shown + str(node.name)


def parse(reference: str, ops: Mapping[str, str], functional: bool) -> tuple[str, int]:
    """The node and the output that an input names, `^` aside."""
    name, _, rest = reference.removeprefix("^").partition(":")
    if not rest:
        return name, 0
    if not functional:
        return name, int(rest) if rest.isdecimal() else -1
    output, _, number = rest.partition(":")
    known = OUTPUTS.get(ops.get(name, ""), ())
    base = known.index(output) if output in known else 0
    return name, base + (int(number) if number.isdecimal() else 0)
