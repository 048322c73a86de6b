"""The memory bound on a model larger than the GPU (`tests/simulator/test_offload.py`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_offload import BLOCK, BLOCKS
from test_offload import offload as offload  # a fixture

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
    judge,
    simulate,
)
from placewright.solvers import bound
from placewright.solvers.bounds import Effort, every_bound


def at(problem: Problem, gpu: float, host: float) -> Problem:
    """The same with other seconds for a block on each device."""
    seconds = [[gpu, host] if op.kind == "op" else [0.0, 0.0] for op in problem.graph.ops]
    names = tuple(op.name for op in problem.graph.ops)
    return replace(problem, costs=Table(names, ("gpu", "cpu"), np.array(seconds)))


BEST = {  # tokens: seconds of a block on the GPU and on the host, a good plan, blocks of staging
    1: (0.21e-3, 7.0e-3, "RRRRRRRSCSCSCSCS", 1),
    512: (0.325e-3, 50e-3, "RRSRSRRRSSSRSSSS", 1),
    4096: (2.69e-3, 498e-3, "RRRSRRSSSSSSSRSS", 2),
}
"""Found by local search: R resident, C computed on the host, S streamed."""


def step_time(problem: Problem, layout: str, staging: int) -> float:
    device = [place for at in layout for place in (int(at != "R"), int(at == "C"))]
    timeline = simulate(problem, Plan.of(problem, device, staging={"gpu": staging * BLOCK}))
    assert timeline.fits
    return timeline.step_time


@pytest.mark.parametrize(("effort", "share"), [("quick", 0.86), ("thorough", 0.88)])
@pytest.mark.parametrize("tokens", BEST)
def test_streaming_and_computing_elsewhere_both_take_time(
    offload: Problem, tokens: int, effort: Effort, share: float
) -> None:
    gpu, host, layout, staging = BEST[tokens]
    problem = at(offload, gpu, host)
    best = step_time(problem, layout, staging)
    found = bound(problem, effort)
    assert found.name == "memory"
    assert share * best < found.seconds <= best


def test_without_the_limit_the_bound_is_the_chain(offload: Problem) -> None:
    roomy = replace(offload.cluster.devices[0], memory=2**40)
    cluster = replace(offload.cluster, devices=(roomy, offload.cluster.devices[1]))
    found = bound(replace(offload, cluster=cluster))
    assert (found.name, found.seconds) == ("critical path", pytest.approx(BLOCKS * 0.21e-3))
    assert bound(offload, fits_only=False).seconds == pytest.approx(BLOCKS * 0.21e-3)


def test_a_smaller_device_has_a_higher_bound(offload: Problem) -> None:
    limits = [{"gpu": blocks * BLOCK + 2**20} for blocks in (12, 8, 4, 1)]
    bounds = [
        bound(replace(offload, constraints=Constraints(limits=limit))).seconds for limit in limits
    ]
    assert bounds == sorted(bounds)
    # One block of room: at most 1 is there to stay, or all come one after another, 6.72 ms each
    assert bounds[-1] > BLOCKS // 2 * 6.7e-3


def test_the_period_has_a_memory_bound_too(offload: Problem) -> None:
    # 9 blocks are computed on the host, 7 ms each, or streamed, 6.72 ms each: 5 and 4 of them.
    found = bound(replace(offload, objective="period"))
    assert (found.name, found.seconds) == ("memory", pytest.approx(5 * 6.7209e-3, rel=1e-3))


def test_there_is_no_memory_bound_where_everything_fits(offload: Problem) -> None:
    roomy = replace(offload.cluster.devices[0], memory=2**40)
    cluster = replace(offload.cluster, devices=(roomy, offload.cluster.devices[1]))
    found = {each.name: each.seconds for each in every_bound(replace(offload, cluster=cluster))}
    assert found["memory"] == 0.0


def streaming_problem(ops: tuple[Op, ...], gpu_bytes: int) -> Problem:
    """A GPU on which each op takes 1 s, and a host 1000 times slower, 1 byte a second apart."""
    devices = (Device("gpu0", memory=gpu_bytes), Device("cpu", "cpu", memory=1000))
    links = {pair: Link(1.0) for pair in (("gpu0", "cpu"), ("cpu", "gpu0"))}
    seconds = np.array([[0.0, 0.0] if op.kind == "weight" else [1.0, 1000.0] for op in ops])
    table = Table(tuple(op.name for op in ops), ("gpu0", "cpu"), seconds)
    return Problem(Graph("streaming", ops), Cluster("pair", devices, links), table)


def test_a_weight_takes_the_bytes_that_are_sent_not_its_optimizer_state() -> None:
    # 2 bytes are sent in 2 s; the 8 bytes of state, and their 2 bytes, stay on the host.
    ops = (Op("w", "weight", outputs=(2,), resident=8), Op("op", inputs=((0, 0),)))
    problem = streaming_problem(ops, gpu_bytes=3)
    verdict = judge(problem, [[1, 0]])
    assert verdict.overflow[0] == 0
    assert verdict.step_time[0] == 3.0
    assert bound(problem).seconds <= 3.0
    assert bound(problem, "thorough").seconds <= 3.0


def test_each_weight_of_an_op_is_held_for_its_own_transfer() -> None:
    # The GPU holds w1 and a buffer for one weight: w2, then w3, take 10 s and an op of 1 s each.
    weights = tuple(Op(f"w{at}", "weight", outputs=(10,)) for at in (1, 2, 3))
    ops = (*weights, Op("a", inputs=((0, 0), (1, 0))), Op("b", inputs=((2, 0), (3, 0))))
    problem = streaming_problem(ops, gpu_bytes=20)
    verdict = judge(problem, [[0, 1, 1, 0, 0]], staging=[[10, -1]])
    assert verdict.overflow[0] == 0
    assert verdict.step_time[0] == 22.0
    assert bound(problem).seconds <= 22.0
    assert bound(problem, "thorough").seconds <= 22.0
