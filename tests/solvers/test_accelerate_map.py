"""Accelerate: the default that people use today."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Device, Graph, Link, Op, Problem, Table
from placewright.solvers import Accelerate, Streamed, solve

BLOCKS, BLOCK = 16, int(5.5 * 2**30) // 16


def chain_of_blocks(gpus: int = 1, room: int = 7) -> Problem:
    """16 blocks that take 0.21 ms on a GPU with room for some, as measured on one H200."""
    ops: list[Op] = []
    for at in range(BLOCKS):
        ops.append(Op(f"weight{at}", "weight", outputs=(BLOCK,)))
        before = ((len(ops) - 2, 0),) if at else ()
        ops.append(Op(f"block{at}", inputs=(*before, (len(ops) - 1, 0)), outputs=(16_000,)))
    devices = [Device(f"gpu{at}", memory=room * BLOCK + 2**20) for at in range(gpus)]
    devices.append(Device("cpu", "cpu", memory=2**40))
    names = [device.name for device in devices]
    links = {(s, t): Link(55e9, 1e-5) for s in names for t in names if s != t}
    seconds = [[0.21e-3, 7.0e-3] if op.kind == "op" else [0.0, 0.0] for op in ops]
    table = Table(tuple(op.name for op in ops), ("gpu", "cpu"), np.array(seconds))
    return Problem(Graph("blocks", tuple(ops)), Cluster("test", tuple(devices), links), table)


def test_it_takes_what_was_measured_on_a_real_gpu() -> None:
    problem = chain_of_blocks()
    result = solve(problem, Accelerate())
    # Six blocks stay, one block of room is left for copies, ten are copied at 6.3 GB/s.
    assert result.plan.placement[0::2].tolist() == [0] * 6 + [1] * 10
    assert result.plan.placement[1::2].tolist() == [0] * 16
    assert result.step_time == pytest.approx(16 * 0.21e-3 + 10 * BLOCK / 6.3e9, rel=0.01)
    assert result.step_time == pytest.approx(591e-3, rel=0.01)
    assert result.fits


def test_streaming_with_prefetch_is_much_faster() -> None:
    problem = chain_of_blocks()
    slow, quick = solve(problem, Accelerate()), solve(problem, Streamed())
    assert slow.step_time > 7 * quick.step_time


def test_it_fills_one_accelerator_after_another() -> None:
    result = solve(chain_of_blocks(gpus=2, room=9), Accelerate())
    assert result.plan.placement[0::2].tolist() == [0] * 8 + [1] * 8
    assert result.plan.placement[1::2].tolist() == [0] * 8 + [1] * 8


def test_a_model_that_fits_stays_on_one_device() -> None:
    result = solve(chain_of_blocks(room=17), Accelerate())
    assert set(result.plan.placement.tolist()) == {0}
    assert result.plan.staging is not None
    assert result.plan.staging.tolist() == [-1, -1]
