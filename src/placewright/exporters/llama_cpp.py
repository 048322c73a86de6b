"""Exports a plan as the nearest flags of llama.cpp, for decoder models.

How llama.cpp places a model (`load_tensors`, as of 2026): the last `-ngl` layers, with the output
as one more layer, are on accelerators, divided in order in the proportions of `-ts`; the other
layers and the token embedding are on the host. `-ot` moves single weights, and an op runs where its
weight is; a layer's KV cache stays with its layer.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import numpy as np

from placewright.exporters.base import (
    ExportedPlan,
    ExportRequest,
    evaluate_export,
    general_notes,
    streamed_weights,
)
from placewright.exporters.decoder_layers import (
    INPUT_SIDE,
    OUTPUT_SIDE,
    DecoderLayers,
    find_layers,
)
from placewright.exporters.device_names import is_host, target_names
from placewright.exporters.module_votes import majority_devices
from placewright.graph import STATE, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

# A part of a weight's path inside its layer → the name of the tensor in a GGUF file.
_GGUF_NAMES = (
    (r"experts?\..*(gate|w1)", "ffn_gate_exps"),
    (r"experts?\..*(up|w3)", "ffn_up_exps"),
    (r"experts?\..*(down|w2)", "ffn_down_exps"),
    (r"(router|block_sparse_moe\.gate|mlp\.gate)$", "ffn_gate_inp"),
    (r"(q_proj|query|wq|q)$", "attn_q"),
    (r"(k_proj|key|wk|k)$", "attn_k"),
    (r"(v_proj|value|wv|v)$", "attn_v"),
    (r"(qkv|c_attn|qkv_proj|query_key_value)$", "attn_qkv"),
    (r"(o_proj|out_proj|wo|attn\.c_proj|attention\.(o|output|projection|dense))$", "attn_output"),
    (r"(gate_proj|w1|gate)$", "ffn_gate"),
    (r"(up_proj|w3|up|c_fc|fc1)$", "ffn_up"),
    (r"(down_proj|w2|down|mlp\.c_proj|fc2)$", "ffn_down"),
)


def export(request: ExportRequest) -> ExportedPlan:
    """`-ngl`, `-ts`, `-dev` and `-ot`.

    Raises:
        PlanError: The graph is not a decoder.
    """
    layers = find_layers(request.problem.graph, "llama.cpp")
    names = target_names(request, "CUDA{}", "CPU")
    host = request.problem.cluster.host
    layer_device = _layer_devices(request, layers)
    planned_output = int(
        majority_devices(request, np.where(layers.op_layer == OUTPUT_SIDE, 0, -1), 1)[0]
    )
    host_layers = _leading_host_layers(request, layer_device)
    accelerated = [int(at) for at in layer_device[host_layers:] if not is_host(request, int(at))]
    order, counts = _device_shares(request, layer_device[host_layers:], planned_output)
    overrides: list[str] = []
    flags: list[str] = ["-ngl", str(len(layer_device) - host_layers + 1 if accelerated else 0)]
    moved_layers: dict[int, list[int]] = {}  # a device → its layers among those of another
    if accelerated:
        flags += ["-dev", ",".join(names[at] for at in order)]
        flags += ["-ts", ",".join(map(str, counts))] if len(order) > 1 else []
        base_devices = np.repeat(order, counts)[: len(layer_device) - host_layers]
        for layer, at in enumerate(base_devices.tolist(), start=host_layers):
            if layer_device[layer] != at:
                moved_layers.setdefault(int(layer_device[layer]), []).append(layer)
    moved_weights, unknown = _moved_weights(request, layers, layer_device)
    moved_weights = moved_weights if accelerated else {}
    for at, numbers in sorted(moved_layers.items()):
        overrides.append(f"{_layer_pattern(numbers)}={names[at]}")
    # The first pattern that matches a tensor counts, so single tensors precede whole layers.
    overrides = [
        f"{pattern}={names[at]}" for pattern, at in _weight_patterns(moved_weights)
    ] + overrides
    output_device = order[-1] if accelerated else (host if host is not None else 0)
    if accelerated and planned_output >= 0 and planned_output != output_device:
        overrides.append(f"^output\\.weight={names[planned_output]}")
        output_device = planned_output
    flags += [word for override in overrides for word in ("-ot", override)]
    plan, cost, extra = evaluate_export(
        request, _executed_placement(request, layers, layer_device, moved_weights, output_device)
    )
    cache_layers = [layer for numbers in moved_layers.values() for layer in numbers]
    notes = _notes(request, layers, cache_layers, unknown)
    return ExportedPlan(
        target="llama.cpp",
        text=shlex.join(flags) + "\n",
        data=flags,
        usage=f"llama-server -m MODEL.gguf {shlex.join(flags)}",
        notes=(*notes, *extra),
        cost=cost,
        plan=plan,
    )


def _layer_devices(request: ExportRequest, layers: DecoderLayers) -> NDArray[np.int32]:
    """Each layer's device: where its cache is, or else where most of its time is planned."""
    is_cache = np.array([op.kind == STATE for op in request.problem.graph.ops])
    op_layer = np.where(layers.op_layer >= 0, layers.op_layer, -1)
    cache_device = majority_devices(request, np.where(is_cache, op_layer, -1), layers.count)
    compute_device = majority_devices(request, op_layer, layers.count)
    return np.where(cache_device >= 0, cache_device, np.maximum(compute_device, 0)).astype(np.int32)


def _leading_host_layers(request: ExportRequest, layer_device: NDArray[np.int32]) -> int:
    """The number of first layers on the host, which `-ngl` can express."""
    for layer, at in enumerate(layer_device.tolist()):
        if not is_host(request, at):
            return layer
    return len(layer_device)


def _device_shares(
    request: ExportRequest, layer_device: NDArray[np.int32], output: int
) -> tuple[list[int], list[int]]:
    """The accelerators in the order of their layers, with their layer counts, the output last.

    A layer inside another device's segment, or on the host, counts as part of that segment.
    """
    order: list[int] = []
    count: dict[int, int] = {}
    current = None
    for at in layer_device.tolist():
        if not is_host(request, at) and (at not in count or at == current):
            current = at
        if current is None:
            continue
        if current not in count:
            order.append(current)
            count[current] = 0
        count[current] += 1
    if not order:
        return [], []
    count[order[-1]] += 1  # the output
    return order, [count[at] for at in order]


def _moved_weights(
    request: ExportRequest, layers: DecoderLayers, layer_device: NDArray[np.int32]
) -> tuple[dict[tuple[int, str], int], list[str]]:
    """Weights on another device than their layer, as tensors of a file; and those without a name.

    All experts of a layer are one tensor, which goes where most of its bytes are.
    """
    graph, a = request.problem.graph, request.problem.arrays
    votes: dict[tuple[int, str], dict[int, int]] = {}
    unknown: list[str] = []
    for position, op in enumerate(graph.ops):
        layer = int(layers.op_layer[position])
        readers = graph.readers.get((position, 0), ())
        is_outside = layer < 0 or not op.name.startswith(f"{layers.prefix}.{layer}.".lstrip("."))
        if op.kind != WEIGHT or is_outside or not readers:
            continue
        at = int(
            request.plan.placement[
                position if a.is_host[request.plan.placement[position]] else readers[0]
            ]
        )
        tensor = _gguf_name(op.name, layers.prefix)
        if tensor:
            device_bytes = votes.setdefault((layer, tensor), {})
            device_bytes[at] = device_bytes.get(at, 0) + int(a.resident[position])
        elif at != layer_device[layer] and a.resident[position] > 0 and "norm" not in op.name:
            unknown.append(op.name)
    devices = {
        key: max(device_bytes, key=lambda at: device_bytes[at])
        for key, device_bytes in votes.items()
    }
    return {key: at for key, at in devices.items() if at != layer_device[key[0]]}, unknown


def _gguf_name(weight: str, prefix: str) -> str | None:
    """A weight's name in a GGUF file, without its layer and `.weight`."""
    inner = weight.removeprefix(f"{prefix}.").partition(".")[2].rpartition(".")[0]
    return next(
        (name for pattern, name in _GGUF_NAMES if re.search(rf"(^|[._]){pattern}", inner)), None
    )


def _weight_patterns(moved_weights: Mapping[tuple[int, str], int]) -> list[tuple[str, int]]:
    """Regular expressions for tensors; layers with equal tensors share one."""
    tensors_by_layer: dict[tuple[int, int], list[str]] = {}
    for (layer, tensor), at in sorted(moved_weights.items()):
        tensors_by_layer.setdefault((layer, at), []).append(tensor)
    layers_by_tensors: dict[tuple[str, int], list[int]] = {}
    for (layer, at), tensors in tensors_by_layer.items():
        layers_by_tensors.setdefault(("|".join(tensors), at), []).append(layer)
    return [
        (rf"{_layer_pattern(numbers)}({names})\.", at)
        for (names, at), numbers in layers_by_tensors.items()
    ]


def _layer_pattern(numbers: list[int]) -> str:
    return rf"blk\.({'|'.join(map(str, sorted(numbers)))})\."


def _executed_placement(
    request: ExportRequest,
    layers: DecoderLayers,
    layer_device: NDArray[np.int32],
    moved_weights: Mapping[tuple[int, str], int],
    output_device: int,
) -> NDArray[np.int32]:
    """The device on which llama.cpp runs each op: its layer's, or its moved weight's."""
    graph = request.problem.graph
    host = request.problem.cluster.host
    device = np.where(
        layers.op_layer >= 0, layer_device[np.maximum(layers.op_layer, 0)], output_device
    ).astype(np.int32)
    if host is not None:
        device[layers.op_layer == INPUT_SIDE] = host
    for position, op in enumerate(graph.ops):
        if op.kind != WEIGHT or layers.op_layer[position] < 0:
            continue
        at = moved_weights.get(
            (int(layers.op_layer[position]), _gguf_name(op.name, layers.prefix) or "")
        )
        if at is not None:
            device[position] = at
            for reader in graph.readers.get((position, 0), ()):
                device[reader] = at
    return device


def _notes(
    request: ExportRequest, layers: DecoderLayers, cache_layers: list[int], unknown: list[str]
) -> list[str]:
    notes = general_notes(request, "llama.cpp", can_stream=True)
    a = request.problem.arrays
    is_embedding = (layers.op_layer == INPUT_SIDE) & (a.scheduled | a.is_weight)
    if (
        request.problem.cluster.host is not None
        and (~a.is_host[request.plan.placement[is_embedding]]).any()
    ):
        notes.append("embedding: llama.cpp keeps the token embedding on the host")
    if cache_layers:
        preview = ", ".join(map(str, sorted(cache_layers)[:4])) + (
            ", ..." if len(cache_layers) > 4 else ""
        )
        notes.append(
            f"cache: -ot moves the weights of layers {preview} and not their KV cache, which stays "
            "where -ngl and -ts put the layer; the figures count it as moved"
        )
    if unknown:
        notes.append(
            f"weights: llama.cpp's name for {unknown[0]!r} is not known"
            + (f", nor for {len(unknown) - 1} others" if len(unknown) > 1 else "")
            + ": it stays with its layer"
        )
    if streamed_weights(request).any():
        notes.append(
            "streaming: llama.cpp computes on the host the ops whose weights are there, and copies "
            "them only for batches of 32 tokens and more; the figures count the former"
        )
    return notes
