"""Every contiguous split of a small problem, by trying all placements; and problems to try."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from small_problems import all_placements

from placewright import Cluster, Device, Graph, Link, Op, Problem, simulator

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNLIMITED = 10**6


def contiguous_splits(problem: Problem) -> NDArray[np.int32]:
    """Placements in which data flows from device to device in one direction only.

    That is the definition, read off the ops: with an arrow from device to device for each tensor
    that a forward op hands to another, no arrows lead in a circle. Backward ops are with their
    forward ops, weights with their first readers.
    """
    a, graph = problem.arrays, problem.graph
    placements = all_placements(problem)
    placements = placements[(problem.legalize(placements) == placements).all(axis=1)]
    forward = [op.phase == "forward" for op in graph.ops]
    for at, op in enumerate(graph.ops):
        if not forward[at]:
            mate = graph.position[op.name.removesuffix(".backward")]
            placements = placements[placements[:, at] == placements[:, mate]]
    arrows = np.zeros((len(placements), a.devices, a.devices), dtype=bool)
    every = np.arange(len(placements))
    movable = a.allowed.sum(axis=1) > 1
    for at, op in enumerate(graph.ops):
        for source, _ in op.inputs:
            if all(a.scheduled[end] and forward[end] and movable[end] for end in (source, at)):
                arrows[every, placements[:, source], placements[:, at]] = True
    arrows[:, np.arange(a.devices), np.arange(a.devices)] = False
    ways = arrows.copy()
    for _ in range(a.devices):
        ways |= np.einsum("pij,pjk->pik", ways.astype(int), arrows.astype(int)) > 0
    circular = np.einsum("pii->p", ways.astype(int)) > 0
    return placements[~circular]


def best_contiguous(problem: Problem) -> tuple[int, float]:
    """(bytes over, objective) of the best contiguous split."""
    splits = contiguous_splits(problem)
    verdict = simulator.judge(problem, splits)
    at = verdict.best()
    return int(verdict.overflow[at]), float(verdict.value[at])


def even_cluster(
    speeds: list[float],
    host: bool = False,
    memory: int = UNLIMITED,
    bandwidth: float = 4.0,
    sharing: str = "private",
) -> Cluster:
    """Devices of these speeds, the last one a host if asked for; all links alike.

    Args:
        sharing: Whether each link has its own channel, or each sender, or each receiver, or all
            share one.
    """
    devices = tuple(
        Device(
            f"d{at}",
            "cpu" if host and at == len(speeds) - 1 else "gpu",
            memory=UNLIMITED if host and at == len(speeds) - 1 else memory,
            rates={"float32": speed},
            memory_bandwidth=1e30,
        )
        for at, speed in enumerate(speeds)
    )
    links = {}
    for one, other in itertools.permutations([device.name for device in devices], 2):
        words = {"private": "", "sender": f"from {one}", "receiver": f"to {other}", "one": "bus"}
        links[one, other] = Link(bandwidth, 0.125, words[sharing])
    return Cluster("even", devices, links)


def chain(rng: np.random.Generator, ops: int, resident: bool = False) -> Graph:
    """Ops in a row, each reading the one before."""
    return Graph(
        "chain",
        tuple(
            Op(
                f"op{at}",
                inputs=((at - 1, 0),) if at else (),
                outputs=(0 if resident else int(rng.integers(0, 9)),),
                flops=float(rng.integers(1, 9)) + float(rng.random()),
                resident=int(rng.integers(1, 9)) if resident else 0,
            )
            for at in range(ops)
        ),
    )


def training(rng: np.random.Generator, ops: int) -> Graph:
    """A forward chain with a skip, and a backward op for each op, in reverse."""
    forward = [
        Op(
            f"op{at}",
            inputs=tuple((source, 0) for source in {at - 1, max(at - 3, 0)} if 0 <= source < at),
            outputs=(int(rng.integers(1, 9)),),
            flops=float(rng.integers(1, 9)) + float(rng.random()),
        )
        for at in range(ops)
    ]
    backward = [
        Op(
            f"op{mate}.backward",
            inputs=((ops + at - 1, 0), (mate, 0)) if at else ((mate, 0),),
            outputs=(int(rng.integers(1, 9)),),
            flops=float(rng.integers(1, 9)) + float(rng.random()),
            phase="backward",
        )
        for at, mate in enumerate(reversed(range(ops)))
    ]
    return Graph("training", (*forward, *backward))
