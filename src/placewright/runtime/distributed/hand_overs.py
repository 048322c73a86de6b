"""Hand-overs: the tensors of a step that change ranks, and what is left for each rank to do.

A tensor goes to another rank once, however many of that rank's devices read it. The step's inputs
come from rank 0, and its outputs go there: `results` stands for the caller among the devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.errors import PlanError
from placewright.graph import INPUT, STATE
from placewright.runtime.instructions import DeviceInstructions, Instructions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Graph, Tensor
    from placewright.runtime.distributed.host_ranks import HostRanks


@dataclass(frozen=True)
class HandOver:
    """A tensor that goes from one rank to another in every step.

    Args:
        targets: The devices of the target rank that read it; the number after the last device
            stands for the caller on rank 0.
        stage: How often its data have changed ranks before, at most.
        is_input: Whether it is an input of the step, on its way to its own device.
    """

    tensor: Tensor
    source: int
    target: int
    targets: tuple[int, ...]
    stage: int
    is_input: bool = False


@dataclass(frozen=True)
class RankInstructions:
    """What one rank does in a step.

    Args:
        local: The instructions of its devices; those of other ranks are empty.
        hand_overs: Those of all ranks, in the order that all ranks keep to.
        results: The device number that stands for the caller.
        stored_outputs: Outputs of this rank that no op computes: inputs, weights and their views.
        has_writes: Whether an op of this rank writes into a tensor that exists already.
    """

    local: Instructions
    hand_overs: tuple[HandOver, ...]
    results: int
    stored_outputs: tuple[Tensor, ...]
    has_writes: bool


def divide_instructions(
    graph: Graph, instructions: Instructions, host_ranks: HostRanks, rank: int, stages: int
) -> RankInstructions:
    """The part of a rank, and the hand-overs of all ranks.

    Args:
        stages: How many stages are kept apart; later ones share the last.

    Raises:
        PlanError: The plan streams weights, or has the states of a model on other ranks.
    """
    ranks, results = host_ranks.ranks, len(host_ranks.ranks)
    _check_changes(graph, instructions, host_ranks)
    targets = _remote_targets(graph, instructions, ranks, results)
    stage_of = _stages(graph, instructions, ranks)
    index_of = {position: index for index, position in enumerate(instructions.order)}
    hand_overs = []
    for tensor in sorted(targets, key=lambda key: (index_of.get(key[0], -1), key)):
        for (source, target, is_input), devices in sorted(targets[tensor].items()):
            stage = 0 if is_input else min(stage_of[tensor[0]], stages - 1)
            hand_overs.append(
                HandOver(tensor, source, target, tuple(sorted(devices)), stage, is_input)
            )
    local = _local_part(instructions, ranks, rank, results)
    has_writes = any(
        instruction.in_place for device in local.per_device for instruction in device.sequence
    )
    computed = set(instructions.order)
    stored_outputs = tuple(
        tensor
        for device in local.per_device
        for tensor in device.outputs
        if rank != 0 and tensor[0] not in computed
    )
    return RankInstructions(local, tuple(hand_overs), results, stored_outputs, has_writes)


def _remote_targets(
    graph: Graph, instructions: Instructions, ranks: Sequence[int], results: int
) -> dict[Tensor, dict[tuple[int, int, bool], set[int]]]:
    """Of each tensor that changes ranks: source, target, whether it is an input, and devices."""
    targets: dict[Tensor, dict[tuple[int, int, bool], set[int]]] = {}

    def add(tensor: Tensor, source: int, device: int, is_input: bool = False) -> None:
        target = 0 if device == results else ranks[device]
        if source != target:
            by_rank = targets.setdefault(tensor, {})
            by_rank.setdefault((source, target, is_input), set()).add(device)

    for device, part in enumerate(instructions.per_device):
        for tensor, target in part.sends:
            add(tensor, ranks[device], target)
        for instruction in part.sequence:
            for output, target in instruction.sends:
                add((instruction.position, output), ranks[device], target)
        for tensor in part.outputs:
            add(tensor, ranks[device], results)
        for tensor in part.inputs:
            add(tensor, 0, device, is_input=True)
    return targets


def _stages(graph: Graph, instructions: Instructions, ranks: Sequence[int]) -> dict[int, int]:
    """How often the data of each op have changed ranks, at most, before it runs.

    A device runs its ops in order, so an op is no earlier than the one before it on its device.
    """
    rank_of = [ranks[device] for device in instructions.placement]
    stages = {
        position: int(op.kind == INPUT and rank_of[position] != 0)
        for position, op in enumerate(graph.ops)
    }
    reached = dict.fromkeys(instructions.placement, 0)
    for position in instructions.order:
        device = instructions.placement[position]
        sources = [source for source, _ in graph.ops[position].inputs]
        before = [stages[source] + (rank_of[source] != rank_of[position]) for source in sources]
        stages[position] = reached[device] = max([reached[device], *before])
    return stages


def _local_part(
    instructions: Instructions, ranks: Sequence[int], rank: int, results: int
) -> Instructions:
    """The instructions of a rank's devices; its outputs also go to rank 0.

    An op need not wait until an op of another rank has read: that rank has a copy of its own.
    """
    rank_of = [ranks[device] for device in instructions.placement]
    per_device = []
    for device, part in enumerate(instructions.per_device):
        if ranks[device] != rank:
            per_device.append(DeviceInstructions())
            continue
        sequence = []
        for instruction in part.sequence:
            outputs = [
                output
                for position, output in part.outputs
                if rank != 0 and position == instruction.position
            ]
            sequence.append(
                replace(
                    instruction,
                    sends=[*instruction.sends, *((output, results) for output in outputs)],
                    waits_for=[op for op in instruction.waits_for if rank_of[op] == rank],
                    notifies=[target for target in instruction.notifies if ranks[target] == rank],
                )
            )
        per_device.append(replace(part, sequence=sequence))
    return replace(instructions, per_device=tuple(per_device))


def _check_changes(graph: Graph, instructions: Instructions, host_ranks: HostRanks) -> None:
    ranks = host_ranks.ranks
    rank_of = [ranks[device] for device in instructions.placement]
    for position, op in enumerate(graph.ops):
        if op.kind == STATE and rank_of[position] != 0:
            device = host_ranks.device_names[instructions.placement[position]]
            raise PlanError(
                f"state {op.name!r} is on {device!r}: what a call changes must be on rank 0, "
                "where the caller is; place it there"
            )
        weight = op.inputs[0][0] if op.kind == "optimizer" else position
        if rank_of[weight] != rank_of[position]:
            raise PlanError(
                f"{op.name!r} is on another rank than its weight: place a weight's update on the "
                "weight's device"
            )
        for source, _ in op.inputs:
            if graph.ops[source].kind == STATE and rank_of[position] != 0:
                raise PlanError(
                    f"op {op.name!r} reads state {graph.ops[source].name!r} from another rank: "
                    "place the ops that read states on rank 0"
                )
    for part in instructions.per_device:
        for copy in () if part.staging is None else part.staging.copies:
            if rank_of[copy.tensor[0]] != rank_of[copy.reader]:
                raise PlanError(
                    f"weight {graph.ops[copy.tensor[0]].name!r} is streamed from another rank: "
                    "plan without staging between hosts"
                )
