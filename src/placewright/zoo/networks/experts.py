"""Expert placements: the GPU on which a person would put each module of a network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ModulePart = tuple[int, int]
"""The place of a name in its row, and the index after the name."""


@dataclass(frozen=True)
class ExpertRule:
    """A rule by which people place a network: rows of parts, cut into one piece for each GPU.

    Args:
        rule: The rule in words.
        module_chains: Each names the modules that are cut, in order. A list of modules is as many parts as
            it has entries: with the row ("stem", "blocks"), stem.0, stem.1, ..., blocks.0, and so
            on. The pieces are contiguous and have about as many modules each; where there are fewer
            parts than GPUs, each is a piece, and the other GPUs stay empty.
        on_first_gpu: Modules that go to the first GPU.
        on_last_gpu: Modules that go to the GPU of the last piece.
    """

    rule: str
    module_chains: tuple[tuple[str, ...], ...] = ()
    on_first_gpu: tuple[str, ...] = ()
    on_last_gpu: tuple[str, ...] = ()

    def place(self, paths: Iterable[str], devices: int) -> dict[str, int]:
        """The GPU of each path, from 0; a path that the rule is silent on is left out."""
        paths = sorted(set(paths))
        gpu_of = {path: 0 for path in paths if _is_within(path, self.on_first_gpu)}
        for module_chain in self.module_chains:
            parts = {path: part for path in paths if (part := _module_part(path, module_chain))}
            sizes = Counter(parts.values())
            stage_count = min(devices, len(sizes))
            midpoints, total = {}, 0.0
            for part in sorted(sizes):
                midpoints[part] = total + sizes[part] / 2
                total += sizes[part]
            gpu_of |= {
                path: int(midpoints[part] * stage_count / total) for path, part in parts.items()
            }
        last_gpu = max(gpu_of.values(), default=0)
        return gpu_of | {path: last_gpu for path in paths if _is_within(path, self.on_last_gpu)}


def _is_within(path: str, names: tuple[str, ...]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _module_part(path: str, module_chain: tuple[str, ...]) -> ModulePart | None:
    """The part that a path belongs to; the list itself, which is no part, belongs to none."""
    for position, name in enumerate(module_chain):
        if path.startswith(f"{name}."):
            index = path.removeprefix(f"{name}.").partition(".")[0]
            return position, int(index) if index.isdigit() else 0
    return None


LAYER_PER_GPU = ExpertRule(
    "a layer a GPU; embedding with the first, softmax with the last",
    module_chains=(("layers",),),
    on_first_gpu=("embedding", "dropout"),
    on_last_gpu=("head",),
)
TRANSLATION = ExpertRule(
    "a layer a GPU; embeddings with the first, attention and softmax with the last",
    module_chains=(("encoder.layers",), ("decoder.layers",)),
    on_first_gpu=("encoder.embedding", "decoder.embedding"),
    on_last_gpu=("attention", "head"),
)
STACK_PER_GPU = ExpertRule(
    "a stack a GPU; embedding with the first, softmax with the last",
    module_chains=(("stacks",),),
    on_first_gpu=("embedding",),
    on_last_gpu=("head",),
)
ONE_GPU = ExpertRule("all on one GPU", on_first_gpu=("stem", "blocks", "head"))
CELLS = ExpertRule(
    "contiguous parts with about as many layers each",
    module_chains=(("stem", "cells"),),
    on_last_gpu=("dropout", "head", "auxiliary"),
)
BLOCKS = ExpertRule(
    "contiguous parts with as many blocks each; embedding with the first, head with the last",
    module_chains=(("blocks",),),
    on_first_gpu=("embedding", "words", "positions", "dropout"),
    on_last_gpu=("norm", "head", "pooler", "masked", "next"),
)
TEXT_TO_TEXT = ExpertRule(
    "contiguous parts of encoder and decoder with as many blocks each on every GPU",
    module_chains=(("encoder.blocks",), ("decoder.blocks",)),
    on_first_gpu=("words", "encoder.bias", "decoder.bias"),
    on_last_gpu=("encoder.norm", "decoder.norm", "head"),
)
U_SHAPE = ExpertRule(
    "contiguous parts on the way down, through the middle and up",
    module_chains=(("down", "middle", "up"),),
    on_first_gpu=("time",),
    on_last_gpu=("norm", "head"),
)
TABLES = ExpertRule(
    "tables spread over the GPUs; the towers on the first",
    module_chains=(("tables",),),
    on_first_gpu=("bottom", "products", "top", "head"),
)
