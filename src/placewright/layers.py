"""Layer groups: where a plan puts the layers of a model, in a line.

Layers are the modules of a model: its numbered blocks (`layers.0`, `layers.1`, …) and the modules
beside them. Those that a plan treats alike are one group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placewright.graph import Graph, Op
    from placewright.plan import Plan
    from placewright.problem import Problem

_Treatment = tuple[tuple[str, ...], bool, tuple[str, ...], bool]
"""What layers of one group have in common: devices, mixed, sources, all weights streamed."""
_NUMBERED_MODULE = re.compile(r"(?:(.*?)\.)?(\d+)(?:\.|$)")
_MIN_SHARE = 0.02  # of a layer's computing time, from which on a device is named
_MAX_LABELS = 6  # of one group that are spelled out
_MAX_DEPTH = 4  # of module paths, where nothing is numbered


@dataclass(frozen=True)
class LayerGroup:
    """Layers that a plan places alike.

    Args:
        layers: The layers in words: `layers 0–11 and head`.
        modules: Their module paths, in the graph's order.
        devices: The devices that compute them, the one with most of the time first.
        mixed: Whether other devices run small parts of them.
        sources: The devices that weights are copied from in each step.
        weight_bytes: Bytes of the weights that their ops read.
        streamed_bytes: Bytes of these that are copied in each step.
    """

    layers: str
    modules: tuple[str, ...]
    devices: tuple[str, ...]
    mixed: bool
    sources: tuple[str, ...]
    weight_bytes: int
    streamed_bytes: int

    def __str__(self) -> str:
        mostly = "mostly " if self.mixed else ""
        text = f"{self.layers} {mostly}on {_join(self.devices)}"
        if not self.streamed_bytes:
            return text
        amount = (
            "weights"
            if self.streamed_bytes >= self.weight_bytes
            else f"{format_bytes(self.streamed_bytes)} of weights"
        )
        return f"{text} with {amount} streamed from {_join(self.sources)}"


def layer_groups(problem: Problem, plan: Plan) -> tuple[LayerGroup, ...]:
    """Where a plan puts the layers, in the graph's order; () if the graph has no modules."""
    layers = _layers(problem.graph)
    a, placement = problem.arrays, plan.placement
    seconds = a.compute[np.arange(a.ops), placement] * a.scheduled
    source = a.producer[a.inputs]
    is_read = a.scheduled[a.reader] & a.is_weight[source]
    weights: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at in np.flatnonzero(is_read).tolist():
        weights[int(a.reader[at])].append((int(source[at]), int(a.inputs[at])))
    names = plan.device_names
    groups: dict[_Treatment, list[str]] = {}
    sizes: dict[_Treatment, list[int]] = defaultdict(lambda: [0, 0])
    for path, ops in layers.items():
        time = np.bincount(placement[ops], seconds[ops], len(names))
        total = float(time.sum())
        if total <= 0:
            continue
        order = np.argsort(-time, kind="stable").tolist()
        devices = tuple(names[device] for device in order if time[device] >= _MIN_SHARE * total)
        mixed = bool(np.count_nonzero(time) > len(devices))
        read = {
            (tensor, int(placement[op])): (weight, op)
            for op in ops
            for weight, tensor in weights.get(op, ())
        }
        remote = {
            key: names[placement[weight]]
            for key, (weight, op) in read.items()
            if placement[weight] != placement[op]
        }
        sources = tuple(dict.fromkeys(remote.values()))
        all_remote = bool(remote) and len(remote) == len(read)
        group = (devices, mixed, sources, all_remote)
        groups.setdefault(group, []).append(path)
        sizes[group][0] += sum(int(a.sizes[tensor]) for tensor, _ in read)
        sizes[group][1] += sum(int(a.sizes[tensor]) for tensor, _ in remote)
    return tuple(
        LayerGroup(
            _label(paths, layers), tuple(paths), devices, mixed, sources, *sizes[key]
        )
        for key, paths in groups.items()
        for devices, mixed, sources, _ in [key]
    )  # fmt: skip


def _layers(graph: Graph) -> dict[str, list[int]]:
    """The ops of each layer by its module path, in order of their first op."""
    modules = [_module_of(op) for op in graph.ops]
    blocks = [_NUMBERED_MODULE.match(module) for module in modules]
    prefixes = {match[1] or "" for match in blocks if match}
    depth = min((prefix.count(".") + 1 for prefix in prefixes if prefix), default=1)
    if not prefixes:  # as deep as it takes to see more than one layer
        while depth < _MAX_DEPTH and len({_cut(module, depth) for module in modules if module}) < 2:
            depth += 1
    layers: dict[str, list[int]] = {}
    for op, (module, match) in enumerate(zip(modules, blocks, strict=True)):
        if module:
            path = module[: match.end(2)] if match else _cut(module, depth)
            layers.setdefault(path, []).append(op)
    return layers


def _label(paths: Sequence[str], layers: Iterable[str]) -> str:
    """Layers in words: consecutive numbers as ranges, names without what all have in common."""
    families = {_split(path)[0] for path in layers}
    ends = [family.rpartition(".")[2] for family in families]
    numbers: dict[str, list[int | None]] = {}
    for path in paths:
        family, number = _split(path)
        numbers.setdefault(family, []).append(number)
    labels = []
    for family, members in numbers.items():
        end = family.rpartition(".")[2]
        name = family if not end or ends.count(end) > 1 else end
        blocks = sorted(number for number in members if number is not None)
        if blocks:
            noun = name or "layers"
            is_plural = noun.endswith("s") and not noun.endswith("ss")
            noun = noun[:-1] if len(blocks) == 1 and is_plural else noun
            labels.append(f"{noun} {_ranges(blocks)}")
        if None in members:
            labels.append(name)
    if len(labels) > _MAX_LABELS:
        labels = [*labels[: _MAX_LABELS - 1], f"{len(labels) - _MAX_LABELS + 1} others"]
    return _join(labels)


def _split(path: str) -> tuple[str, int | None]:
    """A path without its number, and the number, if it ends in one."""
    family, _, end = path.rpartition(".")
    return (family, int(end)) if end.isdecimal() else (path, None)


def _ranges(numbers: list[int]) -> str:
    """Such as `0–3, 5, 7–9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in runs]
    if len(texts) > _MAX_LABELS:
        count = sum(last - first + 1 for first, last in runs[_MAX_LABELS - 1 :])
        texts = [*texts[: _MAX_LABELS - 1], f"{count} others"]
    return ", ".join(texts)


def _module_of(op: Op) -> str:
    """An op's module; a block that is one op is named in the op's own name."""
    end = op.name.removeprefix(f"{op.module}.") if op.module else ""
    return op.name if end.isdecimal() else op.module


def _cut(module: str, depth: int) -> str:
    return ".".join(module.split(".")[:depth])


def _join(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
