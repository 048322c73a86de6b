"""Results and timelines: what they say of a plan, beyond the figures they are made of."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from placewright import Plan, Problem

if TYPE_CHECKING:
    from placewright import Result, Timeline


def test_the_gap_is_a_share_of_the_bound(split_result: Result) -> None:
    assert split_result.gap == pytest.approx(16 / 12 - 1)


def test_the_gap_to_a_bound_of_zero_is_infinite_unless_reached(split_result: Result) -> None:
    assert replace(split_result, bound=0.0).gap == math.inf
    assert replace(split_result, bound=0.0, step_time=0.0).gap == 0


def test_value_and_gap_follow_the_objective(split_result: Result) -> None:
    assert split_result.objective_value == 0.016
    piped = replace(split_result, objective="period")
    assert (piped.objective_value, piped.gap) == (0.012, 0.0)


def test_results_compare_by_bytes_over_and_then_by_time(split_result: Result) -> None:
    slower = replace(split_result, step_time=20.0)
    too_big = replace(split_result, step_time=1.0, overflow=1)
    ranked = sorted([too_big, slower, split_result], key=lambda one: one.key)
    assert ranked == [split_result, slower, too_big]
    assert (split_result.fits, too_big.fits) == (True, False)


def test_a_result_prints_itself(split_result: Result) -> None:
    assert str(split_result).splitlines() == [
        "step time 16 ms, lower bound 12 ms (critical path), gap 33.3 %; heft, 1,234 evaluations",
        "  gpu0             3 ops  busy      12 ms  peak 512 MiB of 1 GiB",
        "  gpu1             1 ops  busy      10 ms  peak 0 B of 1 GiB",
    ]
    assert repr(split_result) == f"<Result: {str(split_result).splitlines()[0]}>"


def test_a_result_that_does_not_fit_says_by_how_much(split_result: Result) -> None:
    big = replace(split_result, overflow=3 * 2**29, objective="period")
    headline = "does not fit: out of memory by 1.5 GiB; period 12 ms if it did; heft, "
    assert str(big).startswith(headline)
    assert "gap" not in str(big)


def test_a_timeline_adds_up_each_devices_ops(split_timeline: Timeline) -> None:
    # gpu0: top 1, left 10, bottom 1; gpu1: right 10
    assert split_timeline.busy.tolist() == [12.0, 10.0]


def test_a_fused_group_is_busy_once(split_timeline: Timeline, diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, [0, 0, 1, 0], fusion=[0, 0, -1, -1])
    # top and left run from 0 to 11 as one, and bottom takes 1
    fused = replace(
        split_timeline,
        plan=plan,
        start=np.array([0.0, 0, 3, 15]),
        end=np.array([11.0, 11, 13, 16]),
    )
    assert fused.busy.tolist() == [12.0, 10.0]


def test_a_device_without_ops_is_never_busy(
    split_timeline: Timeline, diamond_problem: Problem
) -> None:
    alone = replace(split_timeline, plan=Plan.of(diamond_problem, [0] * 4))
    assert alone.busy.tolist() == [22.0, 0.0]


def test_overflow_is_the_bytes_over_on_every_device_together(split_timeline: Timeline) -> None:
    assert (split_timeline.overflow, split_timeline.fits) == (0, True)
    tight = replace(split_timeline, capacity=np.array([5, 1], dtype=np.int64))
    assert (tight.overflow, tight.fits) == ((6 - 5) + (4 - 1), False)
    brim = replace(split_timeline, capacity=np.array([6, 4], dtype=np.int64))
    assert brim.fits


def test_a_timeline_shows_its_time_and_transfers(split_timeline: Timeline) -> None:
    assert len(split_timeline.transfers) == 2
    assert repr(split_timeline) == "Timeline(16 s, 2 transfers, fits=True)"
