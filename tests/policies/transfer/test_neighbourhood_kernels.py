"""Diffusion kernels: which groups are near each other, and path positions."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Device, Graph, Link, Op, Problem, Roofline
from placewright.policies import grouping as made
from placewright.policies.transfer.neighbourhood_kernels import (
    NEIGHBOURHOODS,
    diffusion_kernels,
    path_positions,
)
from placewright.scheduling.batched_schedules import ScheduleOrder

torch = pytest.importorskip("torch")


def fork() -> Problem:
    """`first` is read by `left` and `right`, and both by `last`; all take 1 s."""
    ops = (
        Op("first", flops=1, outputs=(3,)),
        Op("left", flops=1, outputs=(1,), inputs=((0, 0),)),
        Op("right", flops=1, outputs=(1,), inputs=((0, 0),)),
        Op("last", flops=1, outputs=(1,), inputs=((1, 0), (2, 0))),
    )
    devices = tuple(
        Device(f"gpu{d}", "gpu", memory=1000, rates={"float32": 1.0}, memory_bandwidth=1e30)
        for d in range(2)
    )
    wires = {("gpu0", "gpu1"): Link(1.0), ("gpu1", "gpu0"): Link(1.0)}
    return Problem(Graph("fork", ops), Cluster("two", devices, wires), Roofline(1, 1))


def course_of(problem: Problem) -> ScheduleOrder:
    grouping = made.group_ops(problem, "op", 100)
    return ScheduleOrder.of(problem, grouping, made.legal_devices(problem, grouping))


def test_neighbours_of_a_fork():
    found = dict(zip(NEIGHBOURHOODS, diffusion_kernels(course_of(fork())), strict=True))
    np.testing.assert_allclose(found["sources"][3], [0, 0.5, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(found["readers"][0], [0, 0.5, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(found["same source"][1], [0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(found["same reader"][2], [0, 1, 0, 0], atol=1e-6)
    assert (found["sources"][0] == 0).all()  # it reads from nobody
    for sense in found.values():
        sums = sense.sum(axis=1)
        assert (np.isclose(sums, 1, atol=1e-5) | (sums == 0)).all()
        assert (np.diag(sense) == 0).all()


def test_ways_through_a_fork():
    """1 s each and a byte a second: the longest way is 1 + 3 + 1 + 1 + 1 = 7 s."""
    begin, end = path_positions(course_of(fork()))
    np.testing.assert_allclose(begin, np.array([1, 5, 5, 7]) / 7)
    np.testing.assert_allclose(end, np.ones(4))  # all are on a longest way
