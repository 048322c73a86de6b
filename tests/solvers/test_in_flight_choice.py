"""A pipeline of limited depth gets a plan that is short at that depth."""

from __future__ import annotations

import pytest

import placewright as pw
from placewright.errors import ConfigError
from placewright.simulator import simulate_in_flight
from placewright.solvers import InFlightChoice
from placewright.solvers.in_flight_choice import NEARLY_BEST


@pytest.fixture(scope="module")
def problem():
    graph = pw.zoo.load("transformer:blocks=4,tokens=64")
    return pw.Problem(graph, pw.Cluster.parse("2xP100"), objective="period")


def interval(problem, plan, steps):
    return simulate_in_flight(problem, plan, steps).interval


@pytest.mark.parametrize("steps", [2, 6])
def test_the_plan_is_no_longer_between_steps_than_the_one_of_the_shortest_period(problem, steps):
    stop = pw.MaxEvaluations(3_000)
    shortest = pw.solve(problem, stop=stop, select="best")
    chosen = pw.solve(problem, stop=stop, select=InFlightChoice(steps))
    assert chosen.fits
    most = NEARLY_BEST * interval(problem, shortest.plan, steps)
    assert interval(problem, chosen.plan, steps) <= most
    single = pw.solve(problem, pw.solvers.SingleDevices())
    assert interval(problem, chosen.plan, steps) <= interval(problem, single.plan, steps)
    assert chosen.notes[0].startswith(f"with {steps} steps in flight: one every ")


def test_one_step_in_flight_is_no_pipeline():
    with pytest.raises(ConfigError, match="1 steps in flight: expected at least 2"):
        InFlightChoice(1)
