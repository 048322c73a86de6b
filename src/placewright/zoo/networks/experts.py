"""Module paths and a number of GPUs in, the GPU where a person would put each out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Part = tuple[int, int]
"""The place of a name in its row, and the index after the name."""


@dataclass(frozen=True)
class Expert:
    """A rule by which people place a network: rows of parts, cut into one piece for each GPU.

    Args:
        rule: The rule in words.
        rows: Each names the modules that are cut, in order. A list of modules is as many parts as
            it has entries: with the row ("stem", "blocks"), stem.0, stem.1, ..., blocks.0, and so
            on. The pieces are contiguous and have about as many modules each; where there are fewer
            parts than GPUs, each is a piece, and the other GPUs stay empty.
        first: Modules that go to the first GPU.
        last: Modules that go to the GPU of the last piece.
    """

    rule: str
    rows: tuple[tuple[str, ...], ...] = ()
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    def place(self, paths: Iterable[str], devices: int) -> dict[str, int]:
        """The GPU of each path, from 0; a path that the rule is silent on is left out."""
        paths = sorted(set(paths))
        placed = {path: 0 for path in paths if _within(path, self.first)}
        for row in self.rows:
            parts = {path: part for path in paths if (part := _part(path, row))}
            sizes = Counter(parts.values())
            pieces = min(devices, len(sizes))
            middle, done = {}, 0.0
            for part in sorted(sizes):
                middle[part] = done + sizes[part] / 2
                done += sizes[part]
            placed |= {path: int(middle[part] * pieces / done) for path, part in parts.items()}
        end = max(placed.values(), default=0)
        return placed | {path: end for path in paths if _within(path, self.last)}


def _within(path: str, names: tuple[str, ...]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _part(path: str, row: tuple[str, ...]) -> Part | None:
    """The part that a path belongs to; the list itself, which is no part, belongs to none."""
    for place, name in enumerate(row):
        if path.startswith(f"{name}."):
            index = path.removeprefix(f"{name}.").partition(".")[0]
            return place, int(index) if index.isdigit() else 0
    return None


LAYER_PER_GPU = Expert(
    "a layer a GPU; embedding with the first, softmax with the last",
    rows=(("layers",),),
    first=("embedding", "dropout"),
    last=("head",),
)
TRANSLATION = Expert(
    "a layer a GPU; embeddings with the first, attention and softmax with the last",
    rows=(("encoder.layers",), ("decoder.layers",)),
    first=("encoder.embedding", "decoder.embedding"),
    last=("attention", "head"),
)
STACK_PER_GPU = Expert(
    "a stack a GPU; embedding with the first, softmax with the last",
    rows=(("stacks",),),
    first=("embedding",),
    last=("head",),
)
ONE_GPU = Expert("all on one GPU", first=("stem", "blocks", "head"))
CELLS = Expert(
    "contiguous parts with about as many layers each",
    rows=(("stem", "cells"),),
    last=("dropout", "head", "auxiliary"),
)
BLOCKS = Expert(
    "contiguous parts with as many blocks each; embedding with the first, head with the last",
    rows=(("blocks",),),
    first=("embedding", "words", "positions", "dropout"),
    last=("norm", "head", "pooler", "masked", "next"),
)
TEXT_TO_TEXT = Expert(
    "contiguous parts of encoder and decoder with as many blocks each on every GPU",
    rows=(("encoder.blocks",), ("decoder.blocks",)),
    first=("words", "encoder.bias", "decoder.bias"),
    last=("encoder.norm", "decoder.norm", "head"),
)
U_SHAPE = Expert(
    "contiguous parts on the way down, through the middle and up",
    rows=(("down", "middle", "up"),),
    first=("time",),
    last=("norm", "head"),
)
TABLES = Expert(
    "tables spread over the GPUs; the towers on the first",
    rows=(("tables",),),
    first=("bottom", "products", "top", "head"),
)
