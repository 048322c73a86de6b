"""A shape, a number of ops and a seed in, a made-up Graph with plausible costs out.

The same arguments give the same graph. About half of the ops are matrix products with much
arithmetic, the others touch each element once. With `weights`, each product reads a weight of its
own; the weights come on top of the number of ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.graph import WEIGHT, Graph, Op, Tensor
from placewright.zoo.arguments import check_counts, title

if TYPE_CHECKING:
    from numpy.typing import NDArray

ELEMENT = 4  # bytes of a float32
OUTPUT = (2**16, 2**23)  # bytes of a tensor, from and to
PARAMETERS = (2**16, 2**23)  # elements of a weight
ROWS = (2**4, 2**10)  # rows that a product multiplies with its weight

Sources = list[list[int]]
"""For each op, in topological order, the ops it reads."""


def chain(ops: int = 16, seed: int = 0, weights: bool = False) -> Graph:
    """Each op reads the one before it."""
    check_counts("chain", ops=ops)
    sources: Sources = [[op - 1] if op else [] for op in range(ops)]
    name = title("chain", ops=ops, seed=seed, weights=weights)
    return _graph(name, sources, _generator(seed), weights)


def diamond(ops: int = 4, seed: int = 0, weights: bool = False) -> Graph:
    """Two ops between a first and a last; more ops make a row of diamonds."""
    check_counts("diamond", ops=ops)
    name = title("diamond", ops=ops, seed=seed, weights=weights)
    return _graph(name, _forks(ops, branches=2, depth=1), _generator(seed), weights)


def fork_join(
    ops: int = 40, seed: int = 0, weights: bool = False, branches: int = 4, depth: int = 3
) -> Graph:
    """Branches of equal depth between a fork and a join, which forks again, and so on."""
    check_counts("fork-join", ops=ops, branches=branches, depth=depth)
    name = title("fork-join", ops=ops, seed=seed, weights=weights, branches=branches, depth=depth)
    return _graph(name, _forks(ops, branches, depth), _generator(seed), weights)


def layered(ops: int = 100, seed: int = 0, weights: bool = False, width: int = 8) -> Graph:
    """Layers of about `width` ops; an op reads some of the layer before, at times an older one."""
    check_counts("layered", ops=ops, width=width)
    rng = _generator(seed)
    widths = rng.integers(1, 2 * width, size=ops).tolist()
    counts = rng.integers(1, 4, size=ops).tolist()
    picks = rng.random((ops, 3)).tolist()
    skips, older = rng.random(ops) < 0.1, rng.random(ops)
    sources: Sources = []
    before = range(0)
    while len(sources) < ops:
        layer = range(len(sources), min(ops, len(sources) + widths[len(sources)]))
        for op in layer:
            read = [before[int(pick * len(before))] for pick in picks[op][: counts[op]] if before]
            if skips[op] and before.start:
                read.append(int(older[op] * before.start))
            sources.append(read)
        unread = set(before).difference(*sources[layer.start :])
        for op in sorted(unread):
            sources[layer[op % len(layer)]].append(op)
        before = layer
    sources = [sorted(set(read)) for read in sources]
    name = title("layered", ops=ops, seed=seed, weights=weights, width=width)
    return _graph(name, sources, rng, weights)


def series_parallel(
    ops: int = 100, seed: int = 0, weights: bool = False, parallel: float = 0.4
) -> Graph:
    """A first and a last op; each further op splits an edge in two, or goes around one."""
    check_counts("series-parallel", ops=ops)
    if not 0 <= parallel <= 1:
        raise ConfigError(
            f"series-parallel has parallel {parallel!r}: expected a share from 0 to 1"
        )
    rng = _generator(seed)
    picks, around = rng.random(ops), rng.random(ops) < parallel
    edges = [(0, 1)]
    after = [1, -1]  # the topological order as a linked list
    for op in range(2, ops):
        at = int(picks[op] * len(edges))
        source, target = edges[at]
        if around[op]:
            edges.append((source, op))
        else:
            edges[at] = (source, op)
        edges.append((op, target))
        after.append(after[source])  # straight after its source it is before its target
        after[source] = op
    position = [0] * max(ops, 2)
    op = 0
    for place in range(min(ops, len(after))):
        position[op] = place
        op = after[op]
    sources: Sources = [[] for _ in range(ops)]
    for source, target in edges if ops > 1 else ():
        sources[position[target]].append(position[source])
    name = title("series-parallel", ops=ops, seed=seed, weights=weights, parallel=parallel)
    return _graph(name, [sorted(read) for read in sources], rng, weights)


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise ConfigError(f"the seed is {seed!r}: expected a whole number >= 0")
    return np.random.default_rng(seed)


def _forks(ops: int, branches: int, depth: int) -> Sources:
    """Stages of a fork, branches and a join; the last stage takes what is left."""
    sources: Sources = [[]]
    while len(sources) < ops:
        fork = len(sources) - 1
        inner = min(branches * depth, ops - len(sources) - 1)
        ends = [fork] * min(branches, max(inner, 1))
        for op in range(inner):
            sources.append([ends[op % branches]])
            ends[op % branches] = len(sources) - 1
        sources.append(ends)
    return sources


def _graph(name: str, sources: Sources, rng: np.random.Generator, weights: bool) -> Graph:
    """Ops with drawn costs; the draws are the same with and without weights."""
    count = len(sources)
    product = rng.random(count) < 0.5
    elements = _spread(rng, OUTPUT, count) // ELEMENT
    parameters = _spread(rng, PARAMETERS, count)
    flops = np.where(product, 2 * parameters * _spread(rng, ROWS, count), elements).tolist()
    sizes, weight_sizes = (elements * ELEMENT).tolist(), (parameters * ELEMENT).tolist()
    ops: list[Op] = []
    made: list[int] = []
    for number, read in enumerate(sources):
        inputs: list[Tensor] = [(made[source], 0) for source in read]
        moved = sum(sizes[source] for source in read) + sizes[number]
        if product[number] and weights:
            inputs.append((len(ops), 0))
            moved += weight_sizes[number]
            ops.append(Op(f"op{number}.weight", WEIGHT, outputs=(weight_sizes[number],)))
        kind = "linear" if product[number] else "relu" if len(read) < 2 else "add"
        made.append(len(ops))
        ops.append(
            Op(
                f"op{number}",
                kind,
                tuple(inputs),
                (sizes[number],),
                flops=float(flops[number]),
                moved=moved,
            )
        )
    return Graph(name, tuple(ops))


def _spread(rng: np.random.Generator, ends: tuple[int, int], count: int) -> NDArray[np.int64]:
    """Whole numbers between two ends, spread evenly over the orders of magnitude."""
    low, high = np.log(ends)
    return np.exp(rng.uniform(low, high, size=count)).astype(np.int64)
