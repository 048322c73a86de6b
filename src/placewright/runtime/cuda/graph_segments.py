"""Graph segments: runs of GPU ops that are captured as one CUDA graph, and what they read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.runtime.cuda.graph_memory import MAX_TAIL_OPS
from placewright.runtime.instructions import ENV

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from placewright.graph import Tensor
    from placewright.runtime.cuda.issuer import Issuer
    from placewright.runtime.instructions import Instruction
    from placewright.runtime.staging_layout import Staging

DeviceTensor = tuple[int, "Tensor"]
"""A device and a tensor that it holds."""
MIN_OPS = 6  # the fewest ops that are worth a graph
_BUFFER_PARTS = 3  # of a staging buffer: one is read while the next two are filled


@dataclass
class GraphSegment:
    """A run of ops that are captured as one graph.

    Args:
        start: Its first op's index in the issuer's order.
        op_indices: Its ops, all of one device; empty for a whole step, which has all.
        streaming_indices: Those of them that read streamed weights.
        notifying_indices: Those of them that send tensors, or that another device waits for.
        inputs: The fixed tensors for inputs that no graph computes, by device.
        outputs: Tensors that it computes and that not only graphs read, by device.
        step_ops: How many ops of a step it has, over all devices, if it begins with the step: then
            copies into staging buffers are part of it. 0 for a run of one device.
        required_inputs: Tensors that must arrive before a whole step, by device.
        producers: Starts of the runs that compute its inputs, where only graphs read these.
    """

    start: int
    op_indices: list[int]
    streaming_indices: list[int] = field(default_factory=list)
    notifying_indices: list[int] = field(default_factory=list)
    graph: Any = None
    inputs: dict[DeviceTensor, torch.Tensor] = field(default_factory=dict)
    outputs: dict[DeviceTensor, torch.Tensor] = field(default_factory=dict)
    step_ops: int = 0
    required_inputs: list[DeviceTensor] = field(default_factory=list)
    producers: set[int] = field(default_factory=set)


def find_segments(issuer: Issuer) -> list[GraphSegment]:
    """The longest runs of ops of one device that synchronise with others only at their ends."""
    instructions = [
        (number, issuer.jobs[number].instructions.sequence[index]) for number, index in issuer.order
    ]
    if issuer.is_single_gpu:
        instructions = instructions[
            : _capture_length(issuer, [instruction for _, instruction in instructions])
        ]
        produced = {instruction.position for _, instruction in instructions}
        required = [
            (number, tensor)
            for number, instruction in instructions
            for tensor in instruction.remote_inputs
            if tensor[0] not in produced
        ]
        return [
            GraphSegment(
                0, [], step_ops=len(instructions), required_inputs=list(dict.fromkeys(required))
            )
        ]
    segments: list[GraphSegment] = []
    windows = {
        number: _PrefetchWindow(cuda_device.job.instructions.staging)
        for number, cuda_device in issuer.cuda_devices.items()
    }
    last_run: tuple[int, bool] | None = None  # device, and whether its run is closed
    for order_index, (number, instruction) in enumerate(instructions):
        if instruction.large_output or instruction.large_transfer:
            last_run = None
            windows[number].add(instruction.position)
            continue
        index = issuer.order[order_index][1]
        starts_segment = bool(instruction.remote_inputs or instruction.waits_for) or not windows[
            number
        ].fits(instruction.position)
        if last_run is None or last_run != (number, False) or starts_segment:
            segments.append(GraphSegment(order_index, []))
            windows[number].begin()
        segments[-1].op_indices.append(index)
        is_streaming = windows[number].add(instruction.position)
        if is_streaming:
            segments[-1].streaming_indices.append(index)
        if is_streaming or instruction.sends or instruction.notifies:
            segments[-1].notifying_indices.append(index)
        last_run = number, bool(instruction.sends or instruction.notifies)
    return [segment for segment in segments if len(segment.op_indices) >= MIN_OPS]


def _capture_length(issuer: Issuer, instructions: Sequence[Instruction]) -> int:
    """How many ops of a step are captured: all, or those before its large outputs.

    Ops at its end that stream weights are captured, since their copies are.
    """
    first_output = next(
        (index for index, instruction in enumerate(instructions) if instruction.large_output),
        len(instructions),
    )
    streaming_ops = {
        op
        for cuda_device in issuer.cuda_devices.values()
        if cuda_device.staging
        for op in cuda_device.staging.arrival_events
    }
    tail = instructions[first_output:]
    is_short = (
        first_output > 0
        and len(tail) <= MAX_TAIL_OPS
        and not any(instruction.waits_for for instruction in tail)
    )
    return (
        first_output
        if is_short and not any(instruction.position in streaming_ops for instruction in tail)
        else len(instructions)
    )


def captured_indices(issuer: Issuer, segments: Iterable[GraphSegment], number: int) -> set[int]:
    """The indices of a device's ops that are part of graphs."""
    return {
        index
        for segment in segments
        if issuer.order[segment.start][0] == number
        for index in segment.op_indices
    }


def persistent_tensors(
    issuer: Issuer, segments: Iterable[GraphSegment], number: int
) -> set[Tensor]:
    """Tensors of a device that are not only read by graphs; the memory of others can be reused.

    Tensors that are sent stay: their copy may end later than the next graph begins.
    """
    captured = captured_indices(issuer, segments, number)
    instructions = issuer.jobs[number].instructions
    persistent = set(instructions.outputs)
    for index, instruction in enumerate(instructions.sequence):
        persistent |= {(instruction.position, output) for output, _ in instruction.sends}
        if index not in captured:
            persistent |= {key for location, key in instruction.inputs if location == ENV}
    return persistent


def segment_reads(issuer: Issuer, segment: GraphSegment) -> list[DeviceTensor]:
    """The tensors that a run of ops reads and does not compute."""
    number = issuer.order[segment.start][0]
    op_order = issuer.order[: segment.step_ops] or [(number, at) for at in segment.op_indices]
    instructions = [
        (number, issuer.jobs[number].instructions.sequence[index]) for number, index in op_order
    ]
    produced = {instruction.position for _, instruction in instructions}
    reads = {
        (number, key): None
        for number, instruction in instructions
        for location, key in instruction.inputs
        if location == ENV and key[0] not in produced
    }
    return list(reads)


class _PrefetchWindow:
    """How many streamed weights a run of ops may wait for before it begins.

    Their copies must have been issued by then, so none may need the buffer space of another op of
    the run. They take only a part of the buffer, so that the next copies run in the meantime.
    """

    def __init__(self, staging: Staging | None) -> None:
        self.limit = 0 if staging is None else staging.capacity // _BUFFER_PARTS
        self.readers_before: dict[int, int] = {}
        self.op_bytes: Counter[int] = Counter()
        for copy in () if staging is None else staging.copies:
            self.readers_before[copy.reader] = max(
                copy.readers_before, self.readers_before.get(copy.reader, 0)
            )
            self.op_bytes[copy.reader] += copy.size
        self.readers = self.readers_at_start = self.bytes = 0

    def begin(self) -> None:
        """Begin a run."""
        self.readers_at_start, self.bytes = self.readers, 0

    def fits(self, op: int) -> bool:
        """Whether an op may be part of the run."""
        if op not in self.readers_before:
            return True
        return (
            self.readers_before[op] <= self.readers_at_start
            and self.bytes + self.op_bytes[op] <= self.limit
        )

    def add(self, op: int) -> bool:
        """Add an op to the run; whether it reads streamed weights."""
        self.readers += op in self.readers_before
        self.bytes += self.op_bytes[op]
        return op in self.readers_before
