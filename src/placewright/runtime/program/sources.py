"""Source tensors of a program: weights, states, inputs, or random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from placewright.errors import ExecutionError, GraphError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.program.program import Program, ProgramSource

_INDEXING_KINDS = ("embedding", "gather", "scatter", "loss")  # kinds of op that read indices


def model_tensors(program: Program, model: torch.nn.Module) -> dict[int, torch.Tensor]:
    """The model's own tensor of each weight and stored state, by position.

    Raises:
        GraphError: The model has no tensor of that name, or one of another shape.
    """
    return {
        position: _model_tensor(program, source, model)
        for position, source in program.sources.items()
        if source.role != "input"
    }


def input_tensors(
    program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[int, torch.Tensor]:
    """The call's tensor of each input, by position.

    Raises:
        ExecutionError: One has another shape or dtype than captured: sizes are part of a program,
            which would compute something else without an error.
    """
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    tensors = {position: leaves[leaf] for position, leaf in program.input_leaves.items()}
    for position, tensor in tensors.items():
        expected = program.meta_tensors[position, 0]
        if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
            raise ExecutionError(
                f"input {program.graph.ops[position].name!r} is of shape {tuple(tensor.shape)} and "
                f"{tensor.dtype}: it was captured with {tuple(expected.shape)} and {expected.dtype}"
            )
    return tensors


def random_inputs(
    program: Program, position: int, device: torch.device | str, seed: int = 0
) -> list[torch.Tensor]:
    """Random inputs of an op, of the right shapes and layouts, so that it can be run alone.

    Numbers are normal; integers are valid indices of the tensor that the op indexes, or 0 and 1.
    """
    op = program.graph.ops[position]
    generator = torch.Generator().manual_seed(seed)
    rows = 2
    if op.kind in _INDEXING_KINDS:
        tables = [program.meta_tensors[tensor] for tensor in op.inputs]
        sizes = [table.shape for table in tables if table.is_floating_point() and table.dim() > 1]
        dimensions = {"embedding": slice(0, 1), "loss": slice(1, 2)}.get(op.kind, slice(None))
        rows = min((min(size[dimensions]) for size in sizes), default=1)
    return [
        random_tensor(program.meta_tensors[tensor], device, generator, max(1, rows))
        for tensor in op.inputs
    ]


def random_tensor(
    template: torch.Tensor, device: torch.device | str, generator: torch.Generator, rows: int = 2
) -> torch.Tensor:
    """A random tensor of a template's shape, layout and dtype."""
    shape, strides = (
        [int(size) for size in template.shape],
        [int(stride) for stride in template.stride()],
    )
    tensor = torch.empty_strided(shape, strides, dtype=template.dtype, device=device)
    flat = tensor.as_strided(
        (tensor.untyped_storage().nbytes() // template.dtype.itemsize,), (1,), 0
    )
    if template.dtype.is_floating_point or template.dtype.is_complex:
        kind = torch.complex64 if template.dtype.is_complex else torch.float32
        flat.copy_(torch.randn(len(flat), generator=generator, dtype=kind))
    else:
        high = 2 if template.dtype == torch.bool else rows
        flat.copy_(torch.randint(0, high, (len(flat),), generator=generator))
    return tensor


def run_on_one_device(
    program: Program,
    sources: Mapping[int, torch.Tensor],
    device: torch.device | str = "cpu",
    seed: int | None = None,
) -> dict[Tensor, torch.Tensor]:
    """Every tensor of the program, run in the graph's order on one device.

    States keep their values: a write makes a changed copy, which is among the tensors. Updates of
    weights are not run.
    """
    values: dict[Tensor, torch.Tensor] = {}
    for position, op in enumerate(program.graph.ops):
        if position in program.sources:
            values[position, 0] = sources[position].detach().to(device)
        elif op.kind != "optimizer":
            run = program.runner(position, device, seed=None if seed is None else seed + position)
            with torch.no_grad():
                outputs = run([values[tensor] for tensor in op.inputs])
            for output, value in enumerate(outputs):
                values[position, output] = value
    return values


def _model_tensor(program: Program, source: ProgramSource, model: torch.nn.Module) -> torch.Tensor:
    name = source.names[0]
    if name in program.capture.literals:
        return program.capture.literals[name]
    owner: Any = model
    for part in name.split("."):
        owner = getattr(owner, part, None)
    if not isinstance(owner, torch.Tensor):
        raise GraphError(
            f"the program reads {name!r}: expected a tensor of that name in the model, "
            f"found {type(owner).__name__}"
        )
    expected = program.meta_tensors[source.position, 0]
    if owner.shape != expected.shape and owner.numel() != expected.numel():
        raise GraphError(
            f"the model's {name!r} has shape {tuple(owner.shape)}: "
            f"the program was captured with {tuple(expected.shape)}"
        )
    return owner
