"""Expert placements: the GPU on which practitioners put each module of a network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ModulePart = tuple[int, int]
"""The position of a module in its chain, and the index within a list."""


@dataclass(frozen=True)
class ExpertRule:
    """A rule to place a network: chains of modules, each cut into one segment per GPU.

    Args:
        rule: The rule in words.
        module_chains: Each lists modules in order. A list of modules counts as its entries: the
            chain ("stem", "blocks") is stem.0, stem.1, ..., blocks.0, and so on. The segments are
            contiguous and have about the same number of modules; with fewer modules than GPUs,
            the other GPUs stay empty.
        on_first_gpu: Modules that go to the first GPU.
        on_last_gpu: Modules that go to the GPU of the last segment.
    """

    rule: str
    module_chains: tuple[tuple[str, ...], ...] = ()
    on_first_gpu: tuple[str, ...] = ()
    on_last_gpu: tuple[str, ...] = ()

    def place(self, paths: Iterable[str], devices: int) -> dict[str, int]:
        """The GPU of each path, from 0; paths that the rule does not cover are left out."""
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
    """The position of a path in a chain; None for paths outside it and for a list itself."""
    for position, name in enumerate(module_chain):
        if path.startswith(f"{name}."):
            index = path.removeprefix(f"{name}.").partition(".")[0]
            return position, int(index) if index.isdigit() else 0
    return None


LAYER_PER_GPU = ExpertRule(
    "a layer per GPU; embedding with the first, softmax with the last",
    module_chains=(("layers",),),
    on_first_gpu=("embedding", "dropout"),
    on_last_gpu=("head",),
)
TRANSLATION = ExpertRule(
    "a layer per GPU; embeddings with the first, attention and softmax with the last",
    module_chains=(("encoder.layers",), ("decoder.layers",)),
    on_first_gpu=("encoder.embedding", "decoder.embedding"),
    on_last_gpu=("attention", "head"),
)
STACK_PER_GPU = ExpertRule(
    "a stack per GPU; embedding with the first, softmax with the last",
    module_chains=(("stacks",),),
    on_first_gpu=("embedding",),
    on_last_gpu=("head",),
)
ONE_GPU = ExpertRule("all on one GPU", on_first_gpu=("stem", "blocks", "head"))
CELLS = ExpertRule(
    "contiguous segments with about the same number of layers",
    module_chains=(("stem", "cells"),),
    on_last_gpu=("dropout", "head", "auxiliary"),
)
BLOCKS = ExpertRule(
    "contiguous segments of equally many blocks; embedding with the first, head with the last",
    module_chains=(("blocks",),),
    on_first_gpu=("embedding", "words", "positions", "dropout"),
    on_last_gpu=("norm", "head", "pooler", "masked", "next"),
)
TEXT_TO_TEXT = ExpertRule(
    "contiguous segments of encoder and of decoder with equally many blocks per GPU",
    module_chains=(("encoder.blocks",), ("decoder.blocks",)),
    on_first_gpu=("words", "encoder.bias", "decoder.bias"),
    on_last_gpu=("encoder.norm", "decoder.norm", "head"),
)
U_SHAPE = ExpertRule(
    "contiguous segments through the down, middle and up blocks",
    module_chains=(("down", "middle", "up"),),
    on_first_gpu=("time",),
    on_last_gpu=("norm", "head"),
)
TABLES = ExpertRule(
    "tables spread over the GPUs; the towers on the first",
    module_chains=(("tables",),),
    on_first_gpu=("bottom", "products", "top", "head"),
)
