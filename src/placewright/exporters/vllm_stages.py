"""Exports a plan as the number of layers on each pipeline stage of vLLM, for decoder models."""

from __future__ import annotations

import numpy as np

from placewright.errors import PlanError
from placewright.exporters.base import (
    ExportedPlan,
    ExportRequest,
    evaluate_export,
    general_notes,
)
from placewright.exporters.decoder_layers import find_layers
from placewright.exporters.device_names import device_numbers, is_host
from placewright.exporters.module_votes import (
    contiguous_devices,
    group_loads,
    run_lengths,
)


def export(request: ExportRequest) -> ExportedPlan:
    """`VLLM_PP_LAYER_PARTITION`, and the devices in the order of the stages.

    Raises:
        PlanError: The graph is not a decoder, or the plan uses no accelerator.
    """
    layers = find_layers(request.problem.graph, "vLLM")
    op_layer = layers.clamped()
    a = request.problem.arrays
    group = np.where(a.scheduled | a.is_weight, op_layer, -1)
    load = group_loads(request, group, layers.count)
    hosts = [at for at in range(a.devices) if is_host(request, at)]
    load[:, hosts] = 0
    if not load.any():
        raise PlanError("the plan computes on the host only: vLLM's stages are accelerators")
    layer_device = contiguous_devices(load)
    stages = run_lengths(layer_device.tolist())
    numbers = device_numbers(request)
    order = [request.names.get(request.plan.device_names[at], str(numbers[at])) for at, _ in stages]
    counts = [length for _, length in stages]
    placement = np.where(a.scheduled, layer_device[op_layer], request.plan.placement)
    plan, cost, extra = evaluate_export(request, placement, weights_follow=True)
    notes = general_notes(request, "vLLM")
    moved_count = int((a.scheduled & (placement != request.plan.placement)).sum())
    if moved_count:
        notes.append(
            f"layers: vLLM keeps a layer on one accelerator, and layers in their order; "
            f"{moved_count} of {int(a.scheduled.sum())} ops are on another device than planned"
        )
    partition = ",".join(map(str, counts))
    data = {
        "VLLM_PP_LAYER_PARTITION": partition,
        "CUDA_VISIBLE_DEVICES": ",".join(order),
        "pipeline_parallel_size": len(counts),
    }
    return ExportedPlan(
        target="vllm",
        text=f"export CUDA_VISIBLE_DEVICES={data['CUDA_VISIBLE_DEVICES']}\n"
        f"export VLLM_PP_LAYER_PARTITION={partition}\n",
        data=data,
        usage=f"vllm serve MODEL --pipeline-parallel-size {len(counts)}",
        notes=(*notes, *extra),
        cost=cost,
        plan=plan,
    )
