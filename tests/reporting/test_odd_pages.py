"""Pages of odd problems: whatever can be solved can be looked at, quietly and without a gap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placewright import Cluster, Graph, Op, Problem, solve, solvers, zoo
from placewright.problem import Constraints


def weights_alone() -> Problem:
    """Nothing that takes a turn."""
    return Problem(Graph("w", (Op("w", "weight", outputs=(8,)),)), Cluster.parse("P100+cpu"))


def no_time() -> Problem:
    """Views, which take none."""
    ops = (Op("x", "input", outputs=(0,)), Op("y", "view", inputs=((0, 0),), outputs=(0,)))
    return Problem(Graph("views", ops), Cluster.parse("P100+cpu"))


def one_op() -> Problem:
    return Problem(Graph("one", (Op("a", flops=1e9),)), Cluster.parse("P100"))


def host_alone() -> Problem:
    return Problem(zoo.load("diamond"), Cluster.parse("cpu"))


def many_devices() -> Problem:
    """40 devices, each linked to each."""
    return Problem(zoo.load("layered:ops=300"), Cluster.parse("5x(8xV100)@25GbE"))


def too_large() -> Problem:
    tight = Constraints(limits={"gpu0": 2**20, "cpu": 2**20})
    graph = zoo.load("chain:ops=30,weights=true")
    return Problem(graph, Cluster.parse("P100+cpu"), constraints=tight)


def pipeline() -> Problem:
    problem = Problem(zoo.load("branches:modules=3"), Cluster.parse("2xP100+cpu"))
    return replace(problem, objective="period", discipline="ready", overlap=False)


ODD = (weights_alone, no_time, one_op, host_alone, many_devices, too_large, pipeline)


@pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=[pytest.mark.slow] if at % 2 else []) for at, make in enumerate(ODD)],
    ids=lambda make: make.__name__,
)
def test_an_odd_problem_has_a_page(save_tab, make, build_content):
    problem = make()
    results = [solve(problem, each()) for each in (solvers.RoundRobin, solvers.METF)]
    tab = save_tab(build_content(make.__name__, problem, results))
    assert tab.text("h1") == f"{make.__name__} on {problem.cluster.name}"
    assert tab.text("#why").endswith(".")
    for text in (tab.text("main"), tab.text("#problem")):
        for word in ("NaN", "undefined", "Infinity", "null", "[object"):
            assert word not in text
    for chart in ("timeline-chart", "graph-chart"):
        for key in ("+", "ArrowRight", "-", "n", "p", "0"):
            tab.page.locator(f"#{chart}").press(key)
    tab.page.locator("#op-table").press("ArrowDown")
    assert tab.text("#chosen b")
    tab.page.locator("#theme").click()
    for at in range(len(tab.page.locator("#plan-shown option").all())):
        tab.page.locator("#plan-shown").select_option(index=at)
        tab.page.locator("#first-plan").select_option(index=at)
    tab.page.get_by_label("by time").check()
    tab.settle()


def test_the_least_busy_channels_are_shown_on_request(save_tab, build_content):
    problem = many_devices()
    tab = save_tab(build_content("many", problem, [solve(problem, solvers.RoundRobin())]))
    rows = "placewright.timeline.lanes.rows.filter(r => r.lane.kind === 'channel').length"
    every = tab.get("placewright.data.step(0).lanes.filter(l => l.kind === 'channel').length")
    assert every > 12
    assert tab.get(rows) == 12
    tab.page.get_by_label("All lanes").check()
    assert tab.get(rows) == every
