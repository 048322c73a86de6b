"""A plan in, the number of layers on each pipeline stage of vLLM out, for decoder models."""

from __future__ import annotations

import numpy as np

from placewright.errors import PlanError
from placewright.exporters.base import (
    Ask,
    Exported,
    general_notes,
    priced,
)
from placewright.exporters.decoder_layers import decoder_layers
from placewright.exporters.device_names import is_host, numbered
from placewright.exporters.module_votes import (
    loads,
    runs,
    stretches,
)


def export(ask: Ask) -> Exported:
    """`VLLM_PP_LAYER_PARTITION`, and the devices in the order of the stages.

    Raises:
        PlanError: The graph is no decoder, or the plan has none of it on an accelerator.
    """
    layers = decoder_layers(ask.problem.graph, "vLLM")
    layer = layers.folded()
    a = ask.problem.arrays
    group = np.where(a.turn | a.weight, layer, -1)
    weight = loads(ask, group, layers.count)
    hosted = [at for at in range(a.devices) if is_host(ask, at)]
    weight[:, hosted] = 0
    if not weight.any():
        raise PlanError("the plan computes on the host alone: vLLM's stages are accelerators")
    chosen = stretches(weight)
    stages = runs(chosen.tolist())
    numbers = numbered(ask)
    order = [ask.names.get(ask.plan.devices[at], str(numbers[at])) for at, _ in stages]
    counts = [length for _, length in stages]
    wanted = np.where(a.turn, chosen[layer], ask.plan.device)
    plan, cost, more = priced(ask, wanted, weights_follow=True)
    notes = general_notes(ask, "vLLM")
    wrong = int((a.turn & (wanted != ask.plan.device)).sum())
    if wrong:
        notes.append(
            f"layers: vLLM keeps a layer on one accelerator, and layers in their order; {wrong} of "
            f"{int(a.turn.sum())} ops are on another device than planned"
        )
    partition = ",".join(map(str, counts))
    data = {
        "VLLM_PP_LAYER_PARTITION": partition,
        "CUDA_VISIBLE_DEVICES": ",".join(order),
        "pipeline_parallel_size": len(counts),
    }
    return Exported(
        target="vllm",
        text=f"export CUDA_VISIBLE_DEVICES={data['CUDA_VISIBLE_DEVICES']}\n"
        f"export VLLM_PP_LAYER_PARTITION={partition}\n",
        data=data,
        usage=f"vllm serve MODEL --pipeline-parallel-size {len(counts)}",
        notes=(*notes, *more),
        cost=cost,
        plan=plan,
    )
