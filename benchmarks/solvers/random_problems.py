"""Random problems that are small enough to be solved exactly, one for each seed.

Up to 25 ops on two or three devices of different speeds; sending takes about as long as computing;
links have channels of their own, or those of one sender share one, or all share one; in about a
third of the problems memory keeps the ops from all being on the fastest device. No weights, so
nothing can be streamed.
"""

from __future__ import annotations

import itertools

import numpy as np

from placewright import Cluster, Constraints, Device, Graph, Link, Op, Problem, Table

SEEDS = range(200)
MOST_OPS, MOST_DEVICES = 25, 3


def random_problem(seed: int) -> Problem:
    """The problem of a seed: always the same."""
    rng = np.random.default_rng([2026, seed])
    ops, devices = int(rng.integers(8, MOST_OPS + 1)), int(rng.integers(2, MOST_DEVICES + 1))
    graph = _graph(rng, ops)
    speed = rng.uniform(0.4, 1.6, size=devices)
    work = rng.uniform(0.2, 1.8, size=ops)
    # Devices differ by a factor, and ops like some devices more than others.
    seconds = work[:, None] / speed * rng.uniform(0.7, 1.4, size=(ops, devices))
    names = [f"gpu{at}" for at in range(devices)]
    table = Table(tuple(op.name for op in graph.ops), tuple(names), seconds * 1e-3)
    total = sum(op.resident + sum(op.outputs) for op in graph.ops)
    scarce = rng.random() < 0.35
    memory = int(total * rng.uniform(0.5, 0.8)) if scarce else 10 * total
    cluster = Cluster(
        f"random{seed}",
        tuple(Device(name, memory=memory) for name in names),
        _links(rng, names),
    )
    return Problem(graph, cluster, table, Constraints())


def _graph(rng: np.random.Generator, ops: int) -> Graph:
    """Ops that read one to three of those shortly before them; sizes of about 1,000 bytes."""
    ops_so_far: list[Op] = []
    near = int(rng.integers(3, 9))
    for at in range(ops):
        sources = range(max(0, at - near), at)
        count = min(len(sources), int(rng.choice([0, 1, 1, 2, 2, 3])))
        reads = rng.choice(sources, size=count, replace=False) if count else ()
        ops_so_far.append(
            Op(
                f"op{at}",
                inputs=tuple((int(source), 0) for source in sorted(reads)),
                outputs=(int(rng.integers(200, 1800)),),
                resident=int(rng.integers(0, 2000)),
            )
        )
    return Graph("random", tuple(ops_so_far))


def _links(rng: np.random.Generator, names: list[str]) -> dict[tuple[str, str], Link]:
    """About 1,000 bytes in the time of an op, in all; one kind of channels for all links."""
    sharing = str(rng.choice(["private", "sender", "one"]))
    ratio = rng.uniform(0.2, 1.5)  # sending to computing
    links = {}
    for source, target in itertools.permutations(names, 2):
        channel = {"private": "", "sender": f"out {source}", "one": "bus"}[sharing]
        bandwidth = 1e6 / (ratio * rng.uniform(0.7, 1.4))
        links[source, target] = Link(bandwidth, 2e-5, channel)
    return links
