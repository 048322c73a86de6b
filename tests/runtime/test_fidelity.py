"""Predicted against measured: figures by hand, resuming, and where the error comes from."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem, Roofline, Table, zoo
from placewright.errors import FileError
from placewright.profiling.fidelity import (
    MeasuredRun,
    append_row,
    compare_plans,
    error_breakdown,
    fidelity_row,
    read_rows,
    row_key,
    spearman,
    summarise,
)
from placewright.profiling.host_sensitivity import scale_host
from placewright.profiling.varied import diverse_plans
from placewright.reporting.scatter import scatter_svg
from placewright.simulator import judge, simulate


@pytest.fixture
def plans(diamond_problem):
    """The diamond on either device, and split in two: 22, 22 and 16 s."""
    return [
        (str(device), Plan.of(diamond_problem, device))
        for device in ([0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0])
    ]


def test_errors_are_shares_of_what_was_measured(diamond_problem, plans):
    took = {0: 20.0, 1: 22.0, 2: 10.0}  # off by +10 %, 0 and +60 %
    rows = [
        fidelity_row(diamond_problem, name, plan, MeasuredRun(took[at], peak={"gpu0": 10 * at}))
        for at, (name, plan) in enumerate(plans)
    ]
    assert [row.predicted for row in rows] == [22, 22, 16]
    assert rows[2].relative_error == pytest.approx(0.6)
    found = summarise(rows)
    assert (found.plans, found.failed) == (3, 0)
    assert found.error == pytest.approx(0.1)
    peak = [row.predicted_peak["gpu0"] for row in rows]
    assert found.memory_error == pytest.approx(
        np.median([abs(peak[1] - 10) / 10, abs(peak[2] - 20) / 20])
    )


def test_a_slower_host_is_told_from_a_wrong_prediction():
    graph = zoo.load("chain")
    cluster = Cluster.parse("P100+cpu")
    seconds = Roofline().op_seconds(graph, cluster)
    models = tuple(device.model for device in cluster.devices)
    table = Table(tuple(op.name for op in graph.ops), models, seconds)
    problem = Problem(graph, cluster, table)
    plan = Plan.of(problem, problem.legalize(np.ones(len(graph), dtype=int)))
    twice = simulate(scale_host(problem, 2.0), plan).step_time
    row = fidelity_row(problem, "on the host", plan, MeasuredRun(twice, pace=2.0))
    assert row.paced == twice > row.predicted
    found = summarise([row, row])
    assert found.adjusted_error == 0
    assert found.error == pytest.approx(1 - row.predicted / twice)


def test_a_plan_that_could_not_be_run_is_counted_apart(diamond_problem, plans):
    rows = compare_plans(
        diamond_problem, plans, lambda plan: MeasuredRun(math.inf, error="out of memory"), None
    )
    found = summarise(rows)
    assert (found.plans, found.failed) == (0, 3)
    assert math.isnan(found.error)


@pytest.mark.parametrize(
    ("one", "other", "rank"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 0.5),
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5)),
    ],
)
def test_rank_correlation_is_spearmans(one, other, rank):
    assert spearman(np.array(one), np.array(other)) == pytest.approx(rank)


def test_what_the_file_holds_is_not_measured_again(diamond_problem, plans, tmp_path):
    path, measured = tmp_path / "rows.jsonl", []

    def measure(plan):
        measured.append(plan)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return MeasuredRun(20.0, ops={"left": (1.0, 12.0)})

    with pytest.raises(KeyboardInterrupt):
        compare_plans(diamond_problem, plans, measure, path)
    path.write_text(path.read_text() + '{"model": "dia')  # cut off in the middle
    rows = compare_plans(diamond_problem, plans, measure, path)
    assert len(measured) == 4
    assert len(rows) == len(plans)
    assert compare_plans(diamond_problem, plans, measure, path) == rows
    assert len(measured) == 4


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("hello\n{}\n")
    with pytest.raises(FileError, match=r"rows.jsonl: line 1 is no row of a fidelity report"):
        read_rows(path)


def test_a_row_comes_back_as_it_was_written(diamond_problem, plans, tmp_path):
    path = tmp_path / "rows.jsonl"
    row = fidelity_row(diamond_problem, *plans[0], MeasuredRun(math.inf, error="a\nb"))
    append_row(row, path)
    (again,) = read_rows(path)
    assert (again.measured, again.error, again.key) == (math.inf, "a\nb", row.key)
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_other_costs_are_another_row(diamond_problem, plans):
    slower = diamond_problem.with_arrays(compute=diamond_problem.arrays.compute * 2)
    assert row_key(slower, plans[0][1]) != row_key(diamond_problem, plans[0][1])


def test_the_error_is_laid_at_the_door_of_the_op_that_took_longer(diamond_problem):
    plan = Plan.of(diamond_problem, [0, 0, 1, 0])
    timeline = simulate(diamond_problem, plan)
    ops = diamond_problem.graph.ops
    ran = {
        op.name: (float(timeline.start[at]), float(timeline.end[at])) for at, op in enumerate(ops)
    }
    exact = error_breakdown(diamond_problem, timeline, MeasuredRun(timeline.step_time, ops=ran))
    assert all(row["predicted"] == row["measured"] for row in exact)
    ran["left"] = (1.0, 15.0)  # 14 s, not 10
    ran["bottom"] = (19.0, 20.0)
    rows = error_breakdown(diamond_problem, timeline, MeasuredRun(20.0, ops=ran))
    worst = next(row for row in rows if row["what"] == "op")
    assert (worst["name"], worst["predicted"], worst["measured"]) == ("left", 10.0, 14.0)
    gaps = {row["device"]: row for row in rows if row["what"] == "gaps"}
    # gpu0 ran 1 + 10 + 1 of 16 s as predicted, and 1 + 14 + 1 of 20 s
    assert (gaps["gpu0"]["predicted"], gaps["gpu0"]["measured"]) == (4.0, 4.0)


def test_varied_plans_differ_fit_and_come_again_with_the_seed():
    graph = zoo.load("transformer:blocks=4,tokens=64,width=256")
    weights = sum(sum(op.outputs) for op in graph.ops if op.kind == "weight")
    problem = Problem(graph, Cluster.parse("P100+cpu"))
    assert weights < problem.arrays.capacity[0]
    found = diverse_plans(problem, 12, seed=1, evaluations=200)
    assert len(found) == len({plan for _, plan in found}) == 12
    names = [name for name, _ in found]
    assert names[:2] == ["all on gpu0", "all on cpu"]
    streamed = [plan for name, plan in found if name.startswith("streamed at random")]
    assert streamed
    for plan in streamed:
        need = problem.arrays.required_staging(plan.placement)[0]
        assert 0 <= need <= plan.staging[0]
    times = [
        judge(problem, plan.placement, plan.priority, plan.staging).step_time[0]
        for _, plan in found
    ]
    assert max(times) > 1.5 * min(times)
    again = diverse_plans(problem, 12, seed=1, evaluations=200)
    assert [name for name, _ in again] == names
    assert all(one == other for (_, one), (_, other) in zip(found, again, strict=True))


def test_the_scatter_is_a_picture_with_a_mark_a_plan():
    points = {"a <b>": [("x", 1e-3, 1.1e-3), ("y", 2e-2, 1e-2)], "c": [("z", 1.0, math.inf)]}
    root = ET.fromstring(scatter_svg(points))
    marks = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(marks) == 2
    assert "a <b>, x: 1 ms predicted, 1.1 ms measured" in marks[0][0].text
    # 1.1 ms stands right of 1 ms, and larger predictions stand higher
    assert float(marks[1].get("cx")) > float(marks[0].get("cx"))
    assert float(marks[1].get("cy")) < float(marks[0].get("cy"))
    assert ET.fromstring(scatter_svg({})) is not None
