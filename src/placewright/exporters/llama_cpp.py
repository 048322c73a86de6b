"""A plan in, the flags of llama.cpp that come nearest to it out, for decoder models.

How llama.cpp places (`load_tensors`, as of 2026): the last `-ngl` of the layers, the output counted
as one more, are on accelerators, shared out in order in the proportions of `-ts`; the others and
the token embedding are on the host. `-ot` moves single weights, and a weight's op runs where the
weight is; a layer's KV cache stays with its layer.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import numpy as np

from placewright.exporters.base import (
    Ask,
    Exported,
    general_notes,
    priced,
    streamed,
)
from placewright.exporters.decoder_layers import (
    INPUT_SIDE,
    OUTPUT_SIDE,
    Layers,
    decoder_layers,
)
from placewright.exporters.device_names import is_host, named
from placewright.exporters.module_votes import majority
from placewright.graph import STATE, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

# What a weight's path inside its layer says → the name of the tensor in a GGUF file.
_TENSORS = (
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


def export(ask: Ask) -> Exported:
    """`-ngl`, `-ts`, `-dev` and `-ot`.

    Raises:
        PlanError: The graph is no decoder.
    """
    layers = decoder_layers(ask.problem.graph, "llama.cpp")
    names = named(ask, "CUDA{}", "CPU")
    host = ask.problem.cluster.host
    home = _layer_devices(ask, layers)
    output = int(majority(ask, np.where(layers.of == OUTPUT_SIDE, 0, -1), 1)[0])
    kept = _host_first(ask, home)
    accelerated = [int(at) for at in home[kept:] if not is_host(ask, int(at))]
    order, counts = _shares(ask, home[kept:], output)
    overrides: list[str] = []
    flags: list[str] = ["-ngl", str(len(home) - kept + 1 if accelerated else 0)]
    moved: dict[int, list[int]] = {}  # a device → layers among another's
    if accelerated:
        flags += ["-dev", ",".join(names[at] for at in order)]
        flags += ["-ts", ",".join(map(str, counts))] if len(order) > 1 else []
        base = np.repeat(order, counts)[: len(home) - kept]
        for layer, at in enumerate(base.tolist(), start=kept):
            if home[layer] != at:
                moved.setdefault(int(home[layer]), []).append(layer)
    single, unknown = _single(ask, layers, home)
    single = single if accelerated else {}
    for at, where in sorted(moved.items()):
        overrides.append(f"{_layers(where)}={names[at]}")
    # The first pattern that fits a tensor counts, so single tensors go before whole layers.
    overrides = [f"{pattern}={names[at]}" for pattern, at in _patterns(single)] + overrides
    last = order[-1] if accelerated else (host if host is not None else 0)
    if accelerated and output >= 0 and output != last:
        overrides.append(f"^output\\.weight={names[output]}")
        last = output
    flags += [word for override in overrides for word in ("-ot", override)]
    plan, cost, more = priced(ask, _as_run(ask, layers, home, single, last))
    caches = [layer for where in moved.values() for layer in where]
    notes = _notes(ask, layers, caches, unknown)
    return Exported(
        target="llama.cpp",
        text=shlex.join(flags) + "\n",
        data=flags,
        usage=f"llama-server -m MODEL.gguf {shlex.join(flags)}",
        notes=(*notes, *more),
        cost=cost,
        plan=plan,
    )


def _layer_devices(ask: Ask, layers: Layers) -> NDArray[np.int32]:
    """Each layer's device: where its cache is, or else where most of its time is planned."""
    cached = np.array([op.kind == STATE for op in ask.problem.graph.ops])
    inside = np.where(layers.of >= 0, layers.of, -1)
    cache = majority(ask, np.where(cached, inside, -1), layers.count)
    home = majority(ask, inside, layers.count)
    return np.where(cache >= 0, cache, np.maximum(home, 0)).astype(np.int32)


def _host_first(ask: Ask, home: NDArray[np.int32]) -> int:
    """How many of the first layers are on the host: what `-ngl` can say."""
    for layer, at in enumerate(home.tolist()):
        if not is_host(ask, at):
            return layer
    return len(home)


def _shares(ask: Ask, home: NDArray[np.int32], output: int) -> tuple[list[int], list[int]]:
    """The accelerators in the order of their layers, and how many layers each, the output last.

    A layer that lies among another's, or on the host, is counted with the stretch around it.
    """
    seen: list[int] = []
    count: dict[int, int] = {}
    now = None
    for at in home.tolist():
        if not is_host(ask, at) and (at not in count or at == now):
            now = at
        if now is None:
            continue
        if now not in count:
            seen.append(now)
            count[now] = 0
        count[now] += 1
    if not seen:
        return [], []
    count[seen[-1]] += 1  # the output
    return seen, [count[at] for at in seen]


def _single(
    ask: Ask, layers: Layers, home: NDArray[np.int32]
) -> tuple[dict[tuple[int, str], int], list[str]]:
    """Weights whose op is not where its layer is, as tensors of a file; and those without a name.

    All experts of a layer are one tensor, which goes where most of its bytes are.
    """
    graph, a = ask.problem.graph, ask.problem.arrays
    votes: dict[tuple[int, str], dict[int, int]] = {}
    unknown: list[str] = []
    for position, op in enumerate(graph.ops):
        layer = int(layers.of[position])
        readers = graph.readers.get((position, 0), ())
        outside = layer < 0 or not op.name.startswith(f"{layers.prefix}.{layer}.".lstrip("."))
        if op.kind != WEIGHT or outside or not readers:
            continue
        at = int(ask.plan.device[position if a.host[ask.plan.device[position]] else readers[0]])
        tensor = _tensor(op.name, layers.prefix)
        if tensor:
            places = votes.setdefault((layer, tensor), {})
            places[at] = places.get(at, 0) + int(a.resident[position])
        elif at != home[layer] and a.resident[position] > 0 and "norm" not in op.name:
            unknown.append(op.name)
    found = {key: max(places, key=lambda at: places[at]) for key, places in votes.items()}
    return {key: at for key, at in found.items() if at != home[key[0]]}, unknown


def _tensor(weight: str, prefix: str) -> str | None:
    """A weight's name in a GGUF file, without its layer and `.weight`."""
    inner = weight.removeprefix(f"{prefix}.").partition(".")[2].rpartition(".")[0]
    return next(
        (name for pattern, name in _TENSORS if re.search(rf"(^|[._]){pattern}", inner)), None
    )


def _patterns(single: Mapping[tuple[int, str], int]) -> list[tuple[str, int]]:
    """Regular expressions for tensors, layers with the same ones in one."""
    of_layer: dict[tuple[int, int], list[str]] = {}
    for (layer, tensor), at in sorted(single.items()):
        of_layer.setdefault((layer, at), []).append(tensor)
    alike: dict[tuple[str, int], list[int]] = {}
    for (layer, at), tensors in of_layer.items():
        alike.setdefault(("|".join(tensors), at), []).append(layer)
    return [(rf"{_layers(where)}({names})\.", at) for (names, at), where in alike.items()]


def _layers(numbers: list[int]) -> str:
    return rf"blk\.({'|'.join(map(str, sorted(numbers)))})\."


def _as_run(
    ask: Ask,
    layers: Layers,
    home: NDArray[np.int32],
    single: Mapping[tuple[int, str], int],
    output: int,
) -> NDArray[np.int32]:
    """Where llama.cpp runs each op: with its layer, or with its weight where that was moved."""
    graph = ask.problem.graph
    host = ask.problem.cluster.host
    device = np.where(layers.of >= 0, home[np.maximum(layers.of, 0)], output).astype(np.int32)
    if host is not None:
        device[layers.of == INPUT_SIDE] = host
    for position, op in enumerate(graph.ops):
        if op.kind != WEIGHT or layers.of[position] < 0:
            continue
        at = single.get((int(layers.of[position]), _tensor(op.name, layers.prefix) or ""))
        if at is not None:
            device[position] = at
            for reader in graph.readers.get((position, 0), ()):
                device[reader] = at
    return device


def _notes(ask: Ask, layers: Layers, caches: list[int], unknown: list[str]) -> list[str]:
    notes = general_notes(ask, "llama.cpp", streams=True)
    a = ask.problem.arrays
    before = (layers.of == INPUT_SIDE) & (a.turn | a.weight)
    if ask.problem.cluster.host is not None and (~a.host[ask.plan.device[before]]).any():
        notes.append("embedding: llama.cpp keeps the token embedding on the host")
    if caches:
        shown = ", ".join(map(str, sorted(caches)[:4])) + (", ..." if len(caches) > 4 else "")
        notes.append(
            f"cache: -ot moves the weights of layers {shown} and not their KV cache, which stays "
            "where -ngl and -ts put the layer; the figures count it as moved"
        )
    if unknown:
        notes.append(
            f"weights: llama.cpp's name for {unknown[0]!r} is not known"
            + (f", nor for {len(unknown) - 1} others" if len(unknown) > 1 else "")
            + ": it stays with its layer"
        )
    if streamed(ask).any():
        notes.append(
            "streaming: llama.cpp computes on the host what its weights are there for, and copies "
            "them only for batches of 32 tokens and more; the figures count the former"
        )
    return notes
