"""The memory bound on a model larger than the GPU (`tests/simulator/test_offload.py`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_offload import BLOCK, BLOCKS
from test_offload import offload as offload  # a fixture

from placewright import Constraints, Plan, Problem, Table, simulate
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
