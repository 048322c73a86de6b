"""Plans, results and timelines in files: by hand or by machine, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import placewright
from placewright import Plan, Problem, Result, Timeline, load, save
from placewright.errors import ConfigError, FileError, PlacewrightError, PlanError
from placewright.files import from_data, to_data

Data = dict[str, Any]
Write = Callable[..., Path]
PLAN = {"placewright": "plan", "version": 2}


def test_a_plan_may_be_written_by_hand(write: Write) -> None:
    text = (
        '{"placewright": "plan", "version": 2, "placement": {"a": "gpu1", "b": "cpu", "c": "gpu1"}}'
    )
    plan = load(write(text), kind="plan")
    assert plan.ops == ("a", "b", "c")
    assert plan.device_names == ("gpu1", "cpu")
    assert plan.placement.tolist() == [0, 1, 0]
    assert (plan.graph, plan.cluster) == ("", "")


def test_a_plan_keeps_its_fusion_and_an_empty_staging(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, [0, 0, 1, 0], fusion=[7, 7, -1, -1], staging=[-1, -1])
    data = to_data(plan)
    assert data["fusion"] == {"top": 7, "left": 7}
    assert data["staging"] == {}
    assert from_data(data) == plan


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ({}, ConfigError, "the file has no 'placement': add it"),
        ({"placement": ["gpu0"]}, ConfigError, "placement is ['gpu0']: expected an object"),
        ({"placement": {"a": 0}}, ConfigError, "placement['a'] is 0: expected text"),
        ({"placements": {}}, ConfigError, "the file has an unknown key 'placements': did you mean"),
        (
            {"placement": {"a": "gpu0", "b": "gpu0"}, "priority": {"a": 1}},
            PlanError,
            "op 'b' has no priority: give one to every op or to none",
        ),
        (
            {"placement": {"a": "gpu0"}, "priority": {"a": 1, "aa": 1}},
            PlanError,
            "op 'aa' has a priority but no device: add it under placement, or remove its priority",
        ),
        (
            {"placement": {"a": "gpu0"}, "priority": {"a": "first"}},
            ConfigError,
            "priority['a'] is 'first': expected a number",
        ),
        (
            {"placement": {"a": "gpu0"}, "fusion": {"b": 1}},
            PlanError,
            "the plan's fusion names 'b', which the plan does not have: known: a",
        ),
        (
            {"placement": {"a": "gpu0"}, "fusion": {"a": 2**31}},
            ConfigError,
            "fusion['a'] is 2147483648: expected a whole number within 32 bits",
        ),
        (
            {"placement": {"a": "gpu0"}, "staging": {"gpu1": 1}},
            PlanError,
            "the plan's staging names 'gpu1', which the plan does not have: did you mean 'gpu0'?",
        ),
        (
            {"placement": {"a": "gpu0"}, "staging": {"gpu0": -7}},
            PlanError,
            "the plan stages -7 bytes on 'gpu0': expected 0 to 2**50 bytes, or -1 for none",
        ),
    ],
)
def test_a_malformed_plan_file_is_refused(
    body: Data, error: type[PlacewrightError], message: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        from_data(PLAN | body)


def test_staging_may_be_written_with_a_unit() -> None:
    plan = from_data(PLAN | {"placement": {"a": "gpu0"}, "staging": {"gpu0": "2 MiB"}})
    assert plan.staging.tolist() == [2 * 2**20]


def test_a_result_will_do_where_a_plan_is_wanted(tmp_path: Path, split_result: Result) -> None:
    save(split_result, tmp_path / "result.json")
    assert load(tmp_path / "result.json", kind="plan") == split_result.plan
    assert isinstance(load(tmp_path / "result.json"), Result)


def test_a_results_file_holds_all_that_a_person_asks(split_result: Result) -> None:
    data = to_data(split_result)
    assert data["method"] == "heft"
    assert data["placewright_version"] == placewright.__version__
    assert data["gap"] == pytest.approx(16 / 12 - 1)
    assert data["fits"] is True
    assert data["devices"][1] == {
        "name": "gpu1",
        "ops": 1,
        "busy": 0.01,
        "peak": 0,
        "limit": 2**30,
        "reserve": 2**20,
    }
    assert data["plan"]["placement"] == {
        "top": "gpu0",
        "left": "gpu0",
        "right": "gpu1",
        "bottom": "gpu0",
    }
    assert data["plan"]["staging"] == {"gpu1": 8}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"objective": "speed"}, ConfigError, "objective is 'speed': expected 'step' or 'period'"),
        ({"seed": 1.5}, ConfigError, "seed is 1.5: expected a whole number"),
        ({"fits": 1}, ConfigError, "fits is 1: expected true or false"),
        ({"step_time": "slow"}, ConfigError, "step_time is 'slow': expected a number"),
        (
            {"history": [[1, 2]]},
            ConfigError,
            "history[0] is [1, 2]: expected [evaluations, seconds",
        ),
        ({"devices": [{"name": "a"}]}, ConfigError, "devices[0] has no 'ops': add it"),
        ({"plan": 7}, FileError, "plan does not say what it holds"),
        (
            {"plan": {"placewright": "graph", "version": 2}},
            FileError,
            "plan is of kind 'graph': exp",
        ),
        ({"plan": PLAN}, ConfigError, "plan has no 'placement': add it"),
    ],
)
def test_a_malformed_result_says_where(
    split_result: Result, changes: Data, error: type[PlacewrightError], message: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        from_data(to_data(split_result) | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": [0.0]}, "the timeline's start has 1 entries: expected 4, one per op"),
        ({"peak": []}, "the timeline's peak has 0 entries: expected 2, one per device"),
        ({"peak": [1, "2"]}, "peak is '2': expected a whole number"),
        (
            {"memory": {"device": [0], "time": [0, 1], "used": [0]}},
            "the timeline's time has 2 entries: expected 1, one per row",
        ),
        (
            {"memory": {"device": [2], "time": [0], "used": [0]}},
            "the timeline names device 2: its plan has 2 devices",
        ),
        (
            {"memory": {"device": [2**31], "time": [0], "used": [0]}},
            "memory.device is 2147483648: expected a whole number within 32 bits",
        ),
        ({"memory": {}}, "memory has no 'device': add it"),
    ],
)
def test_a_malformed_timeline_says_where(
    split_timeline: Timeline, changes: Data, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        from_data(to_data(split_timeline) | changes)
