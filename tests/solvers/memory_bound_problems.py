"""Problems whose weights do not fit the fast devices, by seed, and plans that stream them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from small_problems import all_placements
from strategies import needed_room

from placewright import Cluster, Device, Graph, Link, Op, Problem, Table, judge

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Discipline, Objective


def tight_problem(seed: int, discipline: Discipline, objective: Objective) -> Problem:
    """Two to four ops with weights, on small GPUs, some of them equal, and a slow roomy host."""
    rng = np.random.default_rng(seed)
    ops: list[Op] = []
    made: list[int] = []
    sizes = (5, 6) if rng.random() < 0.5 else (1, 9)  # alike, as in the layers of one network
    for at in range(int(rng.integers(2, 5))):
        weights = []
        for _ in range(1 if rng.random() < 0.7 else 2):
            ops.append(Op(f"weight{len(ops)}", "weight", outputs=(int(rng.integers(*sizes)),)))
            weights.append((len(ops) - 1, 0))
        if made and rng.random() < 0.2:
            weights.append((0, 0))  # a weight that several ops read
        reads = [(made[-1], 0)] if made and rng.random() < 0.85 else []
        if len(made) > 1 and rng.random() < 0.3:
            reads.append((made[0], 0))
        inputs = tuple(dict.fromkeys(reads + weights))
        ops.append(Op(f"op{at}", inputs=inputs, outputs=(1,), workspace=int(rng.integers(0, 2))))
        made.append(len(ops) - 1)
    total = sum(op.outputs[0] for op in ops if op.kind == "weight")
    count = 2 if len(ops) > 6 else int(rng.integers(2, 4))
    issuer = "thread" if rng.random() < 0.3 else None
    equal = rng.random() < 0.6
    devices: list[Device] = []
    for at in range(count):
        memory = int(total * rng.choice([0.5, 0.7, 1.0])) + int(rng.integers(1, 6))
        launch = float(rng.choice([0.0, 0.3]))
        if at == count - 1:
            devices.append(Device("cpu", "cpu", memory=1000, launch_overhead=launch, issuer=issuer))
        elif at and equal:
            devices.append(
                Device(
                    f"gpu{at}", memory=devices[0].memory, launch_overhead=devices[0].launch_overhead
                )
            )
        else:
            devices.append(Device(f"gpu{at}", memory=memory, launch_overhead=launch, issuer=issuer))
    names = [device.name for device in devices]
    links = {
        pair: Link(float(rng.choice([1, 2, 4, 20])), float(rng.choice([0, 0.3])), wire)
        for pair in itertools.permutations(names, 2)
        for wire in [str(rng.choice(["", "wire"]))]
    }
    seconds = np.zeros((len(ops), count))
    for op in made:
        seconds[op] = rng.integers(0, 4, size=count)
        seconds[op, -1] += rng.integers(0, 9)
        if equal:
            seconds[op, :-1] = seconds[op, 0]
    table = Table(tuple(op.name for op in ops), tuple(names), seconds)
    return Problem(
        Graph("tight", tuple(ops)),
        Cluster("tight", tuple(devices), links),
        table,
        discipline=discipline,
        objective=objective,
        overlap=bool(rng.random() < 0.6),
    )


def optima(problem: Problem, seed: int, most: int = 800) -> tuple[float, float]:
    """The best objective of all plans tried, and of those that fit (infinite if none does).

    Every placement, or many of them; no staging, just enough of it, more of it, and on some devices
    only; the graph's order and another.
    """
    a, rng = problem.arrays, np.random.default_rng(seed)
    placements = all_placements(problem)
    if len(placements) > most:
        placements = placements[rng.permutation(len(placements))[:most]]
    need = np.array(
        [[needed_room(problem, row, place) for place in range(a.devices)] for row in placements]
    )
    rooms: list[NDArray[np.int64] | None] = [None, need, need + rng.integers(0, 4), 2 * need]
    rooms.append(np.where(rng.random(need.shape) < 0.5, need, -1))
    other = np.tile(rng.permutation(a.ops).astype(float), (len(placements), 1))
    verdicts = [
        judge(problem, placements, priority, staging)
        for staging in rooms
        for priority in (None, other)
    ]
    values = np.concatenate([verdict.value for verdict in verdicts])
    fits = np.concatenate([verdict.overflow == 0 for verdict in verdicts])
    return float(values.min()), float(values[fits].min(initial=np.inf))
