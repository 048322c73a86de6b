"""Problems small enough to try every plan of, by seed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from all_plans import all_orders, all_placements
from strategies import needed_staging

from placewright import Cluster, Constraints, Device, Graph, Link, Op, Problem, Roofline, judge

if TYPE_CHECKING:
    from placewright.problem import Discipline, Objective


def random_graph(rng: np.random.Generator, ops: int) -> Graph:
    """Some weights, a view, an input, and ops that read any of what came before."""
    made: list[Op] = []
    for at in range(ops):
        sources = [source for source in range(at) if rng.random() < 0.4]
        kind = str(rng.choice(["op", "op", "op", "weight", "input", "view"]))
        if kind == "view" and not sources:
            kind = "op"
        reads = () if kind in ("weight", "input") else tuple((source, 0) for source in sources)
        made.append(
            Op(
                f"op{at}",
                kind=kind,
                inputs=reads[:1] if kind == "view" else reads,
                outputs=(int(rng.integers(0, 9)),),
                flops=float(rng.integers(0, 9)) + float(rng.random()) / 3,
                resident=int(rng.integers(0, 5)),
                workspace=int(rng.integers(0, 5)),
                aliases=((0, 0),) if kind == "view" else (),
                colocate=str(rng.choice(["left", "right"])) if rng.random() < 0.3 else None,
            )
        )
    return Graph("random", tuple(made))


def random_cluster(rng: np.random.Generator, devices: int) -> Cluster:
    """GPUs of different speeds and a host; some links share a wire, some clusters an issuer."""
    issuer = "thread" if rng.random() < 0.3 else None
    made = tuple(
        Device(
            "cpu" if at == devices - 1 else f"gpu{at}",
            "cpu" if at == devices - 1 else "gpu",
            memory=int(rng.integers(5, 80)),
            rates={"float32": float(rng.choice([1.0, 1.0, 2.0, 7.0]))},
            memory_bandwidth=1e30,
            launch_overhead=float(rng.choice([0.0, 0.5])),
            issuer=issuer,
        )
        for at in range(devices)
    )
    names = [device.name for device in made]
    links = {
        pair: Link(float(rng.integers(1, 5)), float(rng.random()), str(rng.choice(["", "wire"])))
        for pair in itertools.permutations(names, 2)
    }
    return Cluster("random", made, links)


def random_problem(
    seed: int, discipline: Discipline = "in order", objective: Objective = "step", ops: int = 6
) -> Problem:
    """A graph on two or three devices, with a forbidden device and a colocation now and then."""
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, ops), random_cluster(rng, int(rng.integers(2, 4)))
    forbid = {"op1": ("gpu0",)} if rng.random() < 0.3 and graph.ops[1].kind != "input" else {}
    return Problem(
        graph,
        cluster,
        Roofline(compute=1, memory=1),
        Constraints(forbid=forbid),
        discipline,
        objective,
        overlap=bool(rng.random() < 0.7),
    )


def optimum(problem: Problem, with_staging: bool = False) -> tuple[int, float]:
    """(bytes over, value) of the best plan of all: every placement in every order.

    Args:
        with_staging: Also with staging buffers: just enough for any op, and more than enough.
    """
    orders = all_orders(problem)
    best = (np.iinfo(np.int64).max, np.inf)
    for placement in all_placements(problem):
        device = np.repeat(placement[None], len(orders), axis=0)
        stagings = [-np.ones(problem.arrays.devices, dtype=np.int64)]
        if with_staging:
            least = [needed_staging(problem, placement, d) for d in range(problem.arrays.devices)]
            stagings += [np.array(least), np.array(least) + 1000]
        for staging in stagings:
            verdict = judge(problem, device, orders, np.repeat(staging[None], len(orders), axis=0))
            at = verdict.best()
            best = min(best, (int(verdict.overflow[at]), float(verdict.value[at])))
    return best
