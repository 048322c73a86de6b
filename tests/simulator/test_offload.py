"""A model larger than the GPU: four plans that were measured on a real one, simulated.

16 transformer blocks (5.5 GiB of weights) at one token, on a GPU limited to 6 resident blocks and
a staging buffer of two blocks, the other 10 in host memory. One block takes 0.21 ms on the GPU
and 7.0 ms on the 16-core host; weights stream at 55 GB/s; activations are 16 KB.
"""

from __future__ import annotations

import numpy as np
import pytest

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    Op,
    Plan,
    Problem,
    Table,
    simulate,
)

BLOCKS = 16
BLOCK = int(5.5 * 2**30) // BLOCKS
MEASURED = {"cpu": 71e-3, "streamed": 67e-3, "cpu then streamed": 57e-3, "interleaved": 39e-3}
LAYOUT = {  # R resident, C computed on the CPU, S streamed
    "cpu": "R" * 6 + "C" * 10,
    "streamed": "R" * 6 + "S" * 10,
    "cpu then streamed": "R" * 6 + "C" * 5 + "S" * 5,
    "interleaved": "RCS" * 5 + "R",
}


@pytest.fixture(scope="module")
def offload() -> Problem:
    ops: list[Op] = []
    for at in range(BLOCKS):
        ops.append(Op(f"weight{at}", "weight", outputs=(BLOCK,)))
        before = ((len(ops) - 2, 0),) if at else ()
        ops.append(Op(f"block{at}", inputs=(*before, (len(ops) - 1, 0)), outputs=(16_000,)))
    gpu = Device("gpu", memory=8 * BLOCK + 2**20)
    cpu = Device("cpu", "cpu", memory=2**40)
    links = {("gpu", "cpu"): Link(55e9, 1e-5), ("cpu", "gpu"): Link(55e9, 1e-5)}
    seconds = [[0.21e-3, 7.0e-3] if op.kind == "op" else [0.0, 0.0] for op in ops]
    table = Table(tuple(op.name for op in ops), ("gpu", "cpu"), np.array(seconds))
    return Problem(Graph("offload", tuple(ops)), Cluster("one GPU", (gpu, cpu), links), table)


def step_time(problem: Problem, layout: str) -> float:
    device = []
    for letter in layout:
        weight = 0 if letter == "R" else 1
        device += [weight, 1 if letter == "C" else 0]
    timeline = simulate(problem, Plan.of(problem, device, staging={"gpu": 2 * BLOCK}))
    assert timeline.fits
    return timeline.step_time


@pytest.mark.parametrize("name", MEASURED)
def test_the_simulated_step_time_is_within_15_per_cent_of_the_measured_one(offload, name):
    assert step_time(offload, LAYOUT[name]) == pytest.approx(MEASURED[name], rel=0.15)


def test_the_plans_come_in_the_measured_order(offload):
    simulated = {name: step_time(offload, layout) for name, layout in LAYOUT.items()}
    assert sorted(simulated, key=simulated.__getitem__) == sorted(
        MEASURED, key=MEASURED.__getitem__
    )


def test_the_limit_is_what_makes_it_hard(offload):
    everything = [0] * len(offload.graph)
    assert not simulate(offload, Plan.of(offload, everything)).fits
    limited = Constraints(limits={"gpu": 0})
    tight = Problem(offload.graph, offload.cluster, offload.costs, limited)
    assert simulate(tight, Plan.of(tight, everything)).overflow > BLOCKS * BLOCK
