"""Op signatures: equal ops share a text of kind, shapes, dtypes and attributes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from placewright.graph import INPUT, STATE, WEIGHT
from placewright.profiling.sample_inputs import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from placewright.runtime.program.program import Program

STORED_KINDS = (WEIGHT, STATE, INPUT)
"""Kinds that exist before the step: nothing is run for them."""


def equal_ops(
    program: Program, cache_states: Sequence[object] | None = None
) -> dict[str, list[int]]:
    """The positions of all ops that are run, by signature.

    Args:
        cache_states: Which tensors of each op are cold (`cache_model`), as part of the signature.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for position, op in enumerate(program.graph.ops):
        if op.kind not in STORED_KINDS:
            suffix = "" if cache_states is None else f"|{cache_states[position]}"
            groups[signature(program, position) + suffix].append(position)
    return dict(groups)


def writes_in_place(program: Program, position: int) -> bool:
    """Whether the runtime lets an op write into its input: a cache, a running mean."""
    return bool(program.graph.ops[position].aliases)


def signature(program: Program, position: int) -> str:
    """What an op's time depends on: the op, its arguments, and the layout of its inputs."""
    op = program.graph.ops[position]
    input_layouts = ";".join(layout(program.meta_tensors[tensor]) for tensor in op.inputs)
    weight_flags = "".join(
        "w" if program.graph.ops[source].kind in (WEIGHT, STATE) else "-" for source, _ in op.inputs
    )
    prefix = f"{op.kind}|{weight_flags}|{'in place' if writes_in_place(program, position) else ''}"
    node = program.builder.op_nodes.get(position)
    if node is None:  # an update, a write, the loss's own gradient
        rule = program.rule.name if program.rule and op.kind == "optimizer" else ""
        return f"{prefix}|{rule}|{op.phase}|{input_layouts}"
    names = {
        source: layout(source.meta["val"])
        for source in node.all_input_nodes
        if hasattr(source.meta.get("val"), "stride")
    }
    args = describe(list(node.args), names) + describe(dict(node.kwargs), names)
    return f"{prefix}|{node.target}|{args}|{input_layouts}"


def layout(value: torch.Tensor) -> str:
    """Shape, strides and dtype as text."""
    sizes = "x".join(str(int(size)) for size in value.shape)
    steps = ",".join(str(int(step)) for step in value.stride())
    return f"{str(value.dtype).removeprefix('torch.')}[{sizes}@{steps}]"
