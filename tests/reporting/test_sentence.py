"""The sentence: each kind of plan gets its reason, with figures that are the step's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from placewright.reporting.sentence import answer_sentence

from placewright import Plan, Problem, solve
from placewright.problem import Constraints
from placewright.reporting import build_comparison
from placewright.solvers import Baselines, SingleDevices


class Given:
    name = "given"

    def __init__(self, plan):
        self.plan = plan

    def run(self, search):
        search.judge_plan(self.plan)


def said(problem, device, **more):
    result = solve(problem, Given(Plan.of(problem, device, **more)))
    return answer_sentence(build_comparison("g", problem, [result]))


def test_a_split_says_what_it_saves_and_what_it_waits_for(diamond_problem):
    # 16 s against 22 s; 12 of 16 s on the path are ops, 10 of them on gpu1, and 4 s are transfers
    assert said(diamond_problem, [0, 0, 1, 0]) == (
        "The work is shared by gpu0 and gpu1, with 4 B sent a step: that takes 27 % less time than "
        "gpu0 alone; the critical path is 62 % gpu1 computing, 12 % gpu0 computing, 12 % transfers "
        "over gpu0->gpu1 and 12 % transfers over gpu1->gpu0."
    )


def test_one_device_says_how_much_could_be_saved(fork_join, slow_link, exact):
    problem = Problem(fork_join, slow_link, exact)
    problem = problem.with_arrays(transfer=problem.arrays.transfer / 10)
    found = answer_sentence(build_comparison("g", problem, [solve(problem, Baselines())]))
    # 22 s on one device; what must be sent for less takes at least 17.3 s
    assert found.startswith("Everything runs on gpu0: of ")
    assert "plans tried none is faster, and no plan can save more than 21 %" in found
    alone = answer_sentence(build_comparison("g", problem, [solve(problem, SingleDevices())]))
    assert alone.startswith("Everything runs on gpu0, and no plan can save more than 21 %")


def test_streaming_says_from_where_and_why(layers_problem):
    narrow = replace(layers_problem, constraints=Constraints(limits={"gpu0": 90, "cpu": 120}))
    found = said(narrow, [1, 1, 0, 1, 1, 0], staging={"gpu0": 50})
    assert "100 B of weights are streamed from cpu while gpu0 computes" in found
    assert "transfers over cpu->gpu0" in found
    tight = replace(layers_problem, constraints=Constraints(limits={"gpu0": 90, "cpu": 110}))
    found = said(tight, [1, 1, 0, 1, 1, 0], staging={"gpu0": 50})
    assert found.startswith("No single device holds the model (")


def test_a_plan_that_does_not_fit_says_so(layers_problem):
    tight = replace(layers_problem, constraints=Constraints(limits={"gpu0": 10, "cpu": 10}))
    assert said(tight, [1, 0, 0, 0, 0, 0]).startswith("No plan tried fits: this one is nearest, ")


def test_a_pipeline_names_its_busiest(diamond_problem):
    piped = replace(diamond_problem, objective="period")
    found = said(piped, [0, 0, 1, 0])
    assert found.endswith("; gpu0 is the busiest, with 12 s of each period.")


@pytest.mark.parametrize("device", [[0, 0, 0, 0], [1, 1, 1, 1]])
def test_equal_devices_are_as_fast_as_each_other(diamond_problem, device):
    assert said(diamond_problem, device).startswith(f"Everything runs on gpu{device[0]}")
