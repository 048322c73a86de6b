"""An op of a program in, a text out that equal ops share: same kind, shapes, dtypes, attributes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from placewright.graph import INPUT, STATE, WEIGHT
from placewright.profiling.sample_inputs import described

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from placewright.runtime.program.program import Program

STORED = (WEIGHT, STATE, INPUT)
"""Kinds that are there before the step: nothing is run for them."""


def equal_ops(program: Program, cold: Sequence[object] | None = None) -> dict[str, list[int]]:
    """The positions of all ops that are run, by what they share.

    Args:
        cold: What else tells ops apart: which of their tensors are cold (`coldness`).
    """
    found: dict[str, list[int]] = defaultdict(list)
    for position, op in enumerate(program.graph.ops):
        if op.kind not in STORED:
            more = "" if cold is None else f"|{cold[position]}"
            found[signature(program, position) + more].append(position)
    return dict(found)


def in_place(program: Program, position: int) -> bool:
    """Whether the runtime lets an op write into what it reads: a cache, a running mean."""
    return bool(program.graph.ops[position].aliases)


def signature(program: Program, position: int) -> str:
    """What decides how long an op takes: the op, its arguments, and the layout of what it reads."""
    op = program.graph.ops[position]
    reads = ";".join(layout(program.values[tensor]) for tensor in op.inputs)
    stored = "".join(
        "w" if program.graph.ops[source].kind in (WEIGHT, STATE) else "-" for source, _ in op.inputs
    )
    head = f"{op.kind}|{stored}|{'in place' if in_place(program, position) else ''}"
    node = program.draft.made_by.get(position)
    if node is None:  # an update, a write, the loss's own gradient
        rule = program.rule.name if program.rule and op.kind == "optimizer" else ""
        return f"{head}|{rule}|{op.phase}|{reads}"
    names = {
        source: layout(source.meta["val"])
        for source in node.all_input_nodes
        if hasattr(source.meta.get("val"), "stride")
    }
    args = described(list(node.args), names) + described(dict(node.kwargs), names)
    return f"{head}|{node.target}|{args}|{reads}"


def layout(value: torch.Tensor) -> str:
    """Shape, steps in memory and dtype, in a word."""
    sizes = "x".join(str(int(size)) for size in value.shape)
    steps = ",".join(str(int(step)) for step in value.stride())
    return f"{str(value.dtype).removeprefix('torch.')}[{sizes}@{steps}]"
