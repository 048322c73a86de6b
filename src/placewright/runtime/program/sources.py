"""A program and its model in, the tensors that its sources stand for out; or made-up ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from placewright.errors import ExecutionError, GraphError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.program.program import Program, Source

_TABLES = ("embedding", "gather", "scatter", "loss")  # kinds of op that read places in a table


def stored(program: Program, model: torch.nn.Module) -> dict[int, torch.Tensor]:
    """The model's own tensor of each weight and stored state, by position.

    Raises:
        GraphError: The model has no tensor of that name, or one of another shape.
    """
    return {
        position: _stored(program, source, model)
        for position, source in program.sources.items()
        if source.role != "input"
    }


def given(
    program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[int, torch.Tensor]:
    """The call's tensor of each input, by position.

    Raises:
        ExecutionError: One is of another shape or dtype than captured: sizes are part of a program,
            which would give something else, and no error.
    """
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    found = {position: leaves[leaf] for position, leaf in program.inputs.items()}
    for position, tensor in found.items():
        like = program.values[position, 0]
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise ExecutionError(
                f"input {program.graph.ops[position].name!r} is of shape {tuple(tensor.shape)} and "
                f"{tensor.dtype}: it was captured with {tuple(like.shape)} and {like.dtype}"
            )
    return found


def made_up(
    program: Program, position: int, device: torch.device | str, seed: int = 0
) -> list[torch.Tensor]:
    """Tensors for an op to read, of the right shapes and layouts, so that it can be run alone.

    Numbers are normal; whole numbers are places in the table that the op reads, or 0 and 1.
    """
    op = program.graph.ops[position]
    generator = torch.Generator().manual_seed(seed)
    rows = 2
    if op.kind in _TABLES:
        tables = [program.values[tensor] for tensor in op.inputs]
        sizes = [t.shape for t in tables if t.is_floating_point() and t.dim() > 1]
        place = {"embedding": slice(0, 1), "loss": slice(1, 2)}.get(op.kind, slice(None))
        rows = min((min(size[place]) for size in sizes), default=1)
    return [
        made_up_tensor(program.values[tensor], device, generator, max(1, rows))
        for tensor in op.inputs
    ]


def made_up_tensor(
    like: torch.Tensor, device: torch.device | str, generator: torch.Generator, rows: int = 2
) -> torch.Tensor:
    """A tensor of this shape, layout and dtype with numbers in it."""
    shape, steps = [int(size) for size in like.shape], [int(step) for step in like.stride()]
    made = torch.empty_strided(shape, steps, dtype=like.dtype, device=device)
    flat = made.as_strided((made.untyped_storage().nbytes() // like.dtype.itemsize,), (1,), 0)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        kind = torch.complex64 if like.dtype.is_complex else torch.float32
        flat.copy_(torch.randn(len(flat), generator=generator, dtype=kind))
    else:
        most = 2 if like.dtype == torch.bool else rows
        flat.copy_(torch.randint(0, most, (len(flat),), generator=generator))
    return made


def run_alone(
    program: Program,
    sources: Mapping[int, torch.Tensor],
    device: torch.device | str = "cpu",
    seed: int | None = None,
) -> dict[Tensor, torch.Tensor]:
    """Every tensor of the program, run in the graph's order on one device, changing nothing.

    States keep their values: what would be written is made as a copy, to be found among the
    tensors. Only updates of weights are not run.
    """
    values: dict[Tensor, torch.Tensor] = {}
    for position, op in enumerate(program.graph.ops):
        if position in program.sources:
            values[position, 0] = sources[position].detach().to(device)
        elif op.kind != "optimizer":
            run = program.runner(position, device, seed=None if seed is None else seed + position)
            with torch.no_grad():
                made = run([values[tensor] for tensor in op.inputs])
            for output, value in enumerate(made):
                values[position, output] = value
    return values


def _stored(program: Program, source: Source, model: torch.nn.Module) -> torch.Tensor:
    name = source.names[0]
    if name in program.captured.literals:
        return program.captured.literals[name]
    owner: Any = model
    for part in name.split("."):
        owner = getattr(owner, part, None)
    if not isinstance(owner, torch.Tensor):
        raise GraphError(
            f"the program reads {name!r}: expected a tensor of that name in the model, "
            f"found {type(owner).__name__}"
        )
    expected = program.values[source.position, 0]
    if owner.shape != expected.shape and owner.numel() != expected.numel():
        raise GraphError(
            f"the model's {name!r} has shape {tuple(owner.shape)}: "
            f"the program was captured with {tuple(expected.shape)}"
        )
    return owner
