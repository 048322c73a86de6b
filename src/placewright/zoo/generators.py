"""Random graphs with plausible costs, from a topology, a number of ops and a seed.

Equal arguments give equal graphs. About half of the ops are compute-heavy matrix products, the
others are element-wise. With `weights`, each product reads a weight of its own; the weights are not
counted in the number of ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.graph import WEIGHT, Graph, Op, Tensor
from placewright.zoo.arguments import check_counts, title

if TYPE_CHECKING:
    from numpy.typing import NDArray

ELEMENT_BYTES = 4  # bytes of a float32
OUTPUT_BYTES = (2**16, 2**23)  # smallest and largest bytes of a tensor
WEIGHT_ELEMENTS = (2**16, 2**23)  # elements of a weight
PRODUCT_ROWS = (2**4, 2**10)  # rows of a product

Sources = list[list[int]]
"""For each op, in topological order, the ops it reads."""


def chain(ops: int = 16, seed: int = 0, weights: bool = False) -> Graph:
    """Each op reads the one before it."""
    check_counts("chain", ops=ops)
    sources: Sources = [[op - 1] if op else [] for op in range(ops)]
    name = title("chain", ops=ops, seed=seed, weights=weights)
    return _random_graph(name, sources, _rng(seed), weights)


def diamond(ops: int = 4, seed: int = 0, weights: bool = False) -> Graph:
    """Two ops between a first and a last; more ops make a chain of diamonds."""
    check_counts("diamond", ops=ops)
    name = title("diamond", ops=ops, seed=seed, weights=weights)
    return _random_graph(name, _fork_join_sources(ops, branches=2, depth=1), _rng(seed), weights)


def fork_join(
    ops: int = 40, seed: int = 0, weights: bool = False, branches: int = 4, depth: int = 3
) -> Graph:
    """Branches of equal depth between a fork and a join, which forks again, and so on."""
    check_counts("fork-join", ops=ops, branches=branches, depth=depth)
    name = title("fork-join", ops=ops, seed=seed, weights=weights, branches=branches, depth=depth)
    return _random_graph(name, _fork_join_sources(ops, branches, depth), _rng(seed), weights)


def layered(ops: int = 100, seed: int = 0, weights: bool = False, width: int = 8) -> Graph:
    """Layers of about `width` ops; an op reads some of the previous layer, or an older op."""
    check_counts("layered", ops=ops, width=width)
    rng = _rng(seed)
    widths = rng.integers(1, 2 * width, size=ops).tolist()
    counts = rng.integers(1, 4, size=ops).tolist()
    picks = rng.random((ops, 3)).tolist()
    skips, older = rng.random(ops) < 0.1, rng.random(ops)
    sources: Sources = []
    previous = range(0)
    while len(sources) < ops:
        layer = range(len(sources), min(ops, len(sources) + widths[len(sources)]))
        for op in layer:
            reads = [
                previous[int(pick * len(previous))] for pick in picks[op][: counts[op]] if previous
            ]
            if skips[op] and previous.start:
                reads.append(int(older[op] * previous.start))
            sources.append(reads)
        unread_ops = set(previous).difference(*sources[layer.start :])
        for op in sorted(unread_ops):
            sources[layer[op % len(layer)]].append(op)
        previous = layer
    sources = [sorted(set(reads)) for reads in sources]
    name = title("layered", ops=ops, seed=seed, weights=weights, width=width)
    return _random_graph(name, sources, rng, weights)


def series_parallel(
    ops: int = 100, seed: int = 0, weights: bool = False, parallel: float = 0.4
) -> Graph:
    """A first and a last op; each further op splits an edge in two, or doubles one."""
    check_counts("series-parallel", ops=ops)
    if not 0 <= parallel <= 1:
        raise ConfigError(
            f"series-parallel has parallel {parallel!r}: expected a share from 0 to 1"
        )
    rng = _rng(seed)
    picks, is_parallel = rng.random(ops), rng.random(ops) < parallel
    edges = [(0, 1)]
    next_op = [1, -1]  # the topological order as a linked list
    for op in range(2, ops):
        at = int(picks[op] * len(edges))
        source, target = edges[at]
        if is_parallel[op]:
            edges.append((source, op))
        else:
            edges[at] = (source, op)
        edges.append((op, target))
        next_op.append(next_op[source])  # directly after its source, so before its target
        next_op[source] = op
    position = [0] * max(ops, 2)
    op = 0
    for rank in range(min(ops, len(next_op))):
        position[op] = rank
        op = next_op[op]
    sources: Sources = [[] for _ in range(ops)]
    for source, target in edges if ops > 1 else ():
        sources[position[target]].append(position[source])
    name = title("series-parallel", ops=ops, seed=seed, weights=weights, parallel=parallel)
    return _random_graph(name, [sorted(reads) for reads in sources], rng, weights)


def _rng(seed: int) -> np.random.Generator:
    if seed < 0:
        raise ConfigError(f"the seed is {seed!r}: expected a whole number >= 0")
    return np.random.default_rng(seed)


def _fork_join_sources(ops: int, branches: int, depth: int) -> Sources:
    """Stages of a fork, branches and a join; the last stage takes the remaining ops."""
    sources: Sources = [[]]
    while len(sources) < ops:
        fork = len(sources) - 1
        branch_ops = min(branches * depth, ops - len(sources) - 1)
        branch_ends = [fork] * min(branches, max(branch_ops, 1))
        for op in range(branch_ops):
            sources.append([branch_ends[op % branches]])
            branch_ends[op % branches] = len(sources) - 1
        sources.append(branch_ends)
    return sources


def _random_graph(name: str, sources: Sources, rng: np.random.Generator, weights: bool) -> Graph:
    """Ops with random costs, which are the same with and without weights."""
    count = len(sources)
    is_product = rng.random(count) < 0.5
    elements = _log_uniform(rng, OUTPUT_BYTES, count) // ELEMENT_BYTES
    parameters = _log_uniform(rng, WEIGHT_ELEMENTS, count)
    flops = np.where(
        is_product, 2 * parameters * _log_uniform(rng, PRODUCT_ROWS, count), elements
    ).tolist()
    sizes, weight_sizes = (elements * ELEMENT_BYTES).tolist(), (parameters * ELEMENT_BYTES).tolist()
    ops: list[Op] = []
    op_position: list[int] = []
    for number, reads in enumerate(sources):
        inputs: list[Tensor] = [(op_position[source], 0) for source in reads]
        moved = sum(sizes[source] for source in reads) + sizes[number]
        if is_product[number] and weights:
            inputs.append((len(ops), 0))
            moved += weight_sizes[number]
            ops.append(Op(f"op{number}.weight", WEIGHT, outputs=(weight_sizes[number],)))
        kind = "linear" if is_product[number] else "relu" if len(reads) < 2 else "add"
        op_position.append(len(ops))
        ops.append(
            Op(
                f"op{number}",
                kind,
                tuple(inputs),
                (sizes[number],),
                flops=float(flops[number]),
                bytes_moved=moved,
            )
        )
    return Graph(name, tuple(ops))


def _log_uniform(
    rng: np.random.Generator, limits: tuple[int, int], count: int
) -> NDArray[np.int64]:
    """Log-uniform whole numbers between two bounds."""
    low, high = np.log(limits)
    return np.exp(rng.uniform(low, high, size=count)).astype(np.int64)
