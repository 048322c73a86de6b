"""Times one op in isolation, with its inputs as cold as in a step."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placewright.graph import VIEW, WEIGHT
from placewright.profiling.op_signatures import writes_in_place
from placewright.profiling.timing import time_call
from placewright.runtime.huge_pages import use_huge_pages
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.graph import Graph, Op
    from placewright.profiling.cache_model import CacheState
    from placewright.profiling.timing import Timing
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice

MAX_COPIES, MAX_COPY_BYTES = 256, 1 << 30
"""The most copies of cold inputs, which calls cycle through so that none is cached."""
SPARE_BUFFERS = 3
"""Output buffers that are allocated in addition to those that are kept."""


def measure_op(
    program: Program, position: int, device: RealDevice, seconds: float, cache_state: CacheState
) -> Timing:
    """Time one op of a program; to be called within `device.run`.

    Inputs that are cold in a step have several copies, which calls cycle through; others have one.
    Outputs are kept for a while where a step keeps them, so that the next call writes elsewhere.
    """
    run = program.runner(position, device.torch_device, writes_in_place(program, position))
    input_sets = _input_sets(program, position, device, cache_state)
    buffers = (
        _output_buffers(program.graph.ops[position], device, run(input_sets[0]))
        if cache_state.cold_outputs
        else None
    )

    def call(at: int) -> None:
        outputs = run(input_sets[at % len(input_sets)])
        if buffers is not None:
            buffers.append(outputs)

    timing = time_call(device, call, seconds, as_in_step=True)
    if device.is_gpu and program.graph.ops[position].kind == VIEW:
        return replace(timing, seconds=0.0)  # a GPU does nothing for a view
    if device.is_gpu:
        return replace(timing, workspace=_workspace_bytes(lambda: run(input_sets[0]), device))
    return timing


def _workspace_bytes(call: Callable[[], Any], device: RealDevice) -> int:
    """Bytes of a GPU that a call needs in addition to its outputs, such as cuDNN's workspace."""
    torch = load_torch()
    torch.cuda.synchronize(device.index)
    torch.cuda.reset_peak_memory_stats(device.index)
    before = torch.cuda.memory_allocated(device.index)
    outputs = call()
    torch.cuda.synchronize(device.index)
    peak, after = (
        torch.cuda.max_memory_allocated(device.index),
        torch.cuda.memory_allocated(device.index),
    )
    del outputs
    return max(0, int(peak - max(after, before)))


def _output_buffers(op: Op, device: RealDevice, outputs: Any) -> deque[Any] | None:
    """Memory for an op's outputs, many times over, touched once; None if it makes none."""
    size = sum(op.outputs)
    if not size or op.aliases:
        return None
    count = _copy_count(size, device)
    # More than are kept: the first call writes to free ones, and may need workspace.
    return deque(
        ([_buffer_like(output) for output in outputs] for _ in range(count + SPARE_BUFFERS)),
        maxlen=count,
    )


def _buffer_like(value: Any) -> Any:
    """Memory for another such tensor, with a margin for the allocator's rounding."""
    torch = load_torch()
    size = value.untyped_storage().nbytes()
    return torch.empty(size + size // 32 + 4096, dtype=torch.uint8, device=value.device).fill_(0)


def _copy_count(size: int, device: RealDevice) -> int:
    """How many copies of this size it takes until none is cached when it is used again."""
    return max(1, min(MAX_COPIES, math.ceil(2 * device.cache / size), MAX_COPY_BYTES // size))


def _input_sets(
    program: Program, position: int, device: RealDevice, cache_state: CacheState
) -> list[list[Any]]:
    """Sets of an op's inputs, which calls cycle through."""
    from placewright.profiling.sample_inputs import (
        group_rows,
        index_limits,
        needs_unique_indices,
        sample_ends,
        sample_like,
    )

    graph = program.graph
    op, node = graph.ops[position], program.builder.op_nodes.get(position)
    limits: dict[int, int] = {}
    rows: dict[int, int] = {}
    if node is not None:
        for found, numbers in ((limits, index_limits(node)), (rows, group_rows(node))):
            for source, number in numbers.items():
                tensors = program.builder.node_tensors.get(source)
                if tensors and tensors[0] in op.inputs:
                    found[op.inputs.index(tensors[0])] = number
    is_distinct = node is not None and needs_unique_indices(node)
    cold_inputs = [at for at, is_cold in enumerate(cache_state.cold_inputs) if is_cold]
    size = sum(graph.ops[op.inputs[at][0]].outputs[op.inputs[at][1]] for at in cold_inputs)
    copies = _copy_count(size, device) if size else 1

    def sample(at: int) -> Any:
        if at in rows:
            return sample_ends(program.meta_tensors[op.inputs[at]], device.torch_device, rows[at])
        return sample_like(
            program.meta_tensors[op.inputs[at]], device.torch_device, limits.get(at), is_distinct
        )

    first_set = [sample(at) for at in range(len(op.inputs))]
    further_sets = [
        [
            _strided_clone(first_set[at]) if at in cold_inputs else first_set[at]
            for at in range(len(first_set))
        ]
        for _ in range(copies - 1)
    ]
    input_sets = [first_set, *further_sets]
    if not device.is_gpu:  # as the runtime stores weights
        weights = [at for at in cold_inputs if _is_weight(graph, op.inputs[at][0])]
        for values in input_sets:
            for at in weights:
                use_huge_pages(values[at])
    return input_sets


def _is_weight(graph: Graph, position: int) -> bool:
    """Whether an op is a weight, or a view of one."""
    while graph.ops[position].kind == VIEW and graph.ops[position].inputs:
        position = graph.ops[position].inputs[0][0]
    return graph.ops[position].kind == WEIGHT


def _strided_clone(value: Any) -> Any:
    """A copy of a tensor and its storage, with its strides; drawing again would take longer."""
    flat = value.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)
    return flat.clone().as_strided(value.shape, value.stride())
