"""The payload: what is thinned and shortened keeps what matters, and fusion is shown as it ran."""

from __future__ import annotations

import json

import numpy as np
import pytest

from placewright import Plan, Problem, evaluate, solve, zoo
from placewright.cluster import Cluster
from placewright.reporting.memory import MemoryCurve
from placewright.reporting.payload import (
    page_data,
    shorten_names,
    thin_curve,
    tick_seconds,
)
from placewright.solvers import METHODS, RoundRobin, SingleDevices


@pytest.fixture
def content(diamond_problem, build_content):
    return build_content("diamond", diamond_problem, [solve(diamond_problem, SingleDevices())])


def test_the_baselines_are_added_once(diamond_problem, build_content):
    alone = build_content("d", diamond_problem, [solve(diamond_problem, RoundRobin())])
    assert alone.labels == ("round-robin", "single", "accelerate")
    assert (alone.answer, alone.single, alone.default) == (0, 1, 2)
    both = build_content("d", diamond_problem, alone.results)
    assert both.labels == alone.labels
    assert both.results[both.answer].objective_value == min(
        each.objective_value for each in both.results
    )


def test_a_method_that_stands_for_another_runtime_is_shown_on_its_terms(
    layers_problem, build_content
):
    result = solve(layers_problem, METHODS["accelerate"]())
    content = build_content("layers", layers_problem, [result])
    assert content.answer_step.timeline.step_time == result.step_time


def test_a_tick_keeps_nine_digits_of_the_longest_step(content):
    # the longest of all plans takes 22 s
    assert tick_seconds(content) == pytest.approx(1e-7)


def test_the_payload_is_strict_json_with_every_name_once(content):
    data = page_data(content)
    text = json.dumps(data, allow_nan=False)
    for op in content.problem.graph.ops:
        assert text.count(f'"{op.name}"') == 1
    assert data["sentence"].startswith("gpu0 does everything")
    assert [each["plan"] for each in data["methods"]] == [0, 1]


def test_the_split_diamonds_lanes_by_hand(diamond_problem, build_content):
    # gpu0: top 0-1, left 1-11, bottom 15-16; gpu1: right 3-13; transfers 1-3 and 13-15
    result = evaluate(diamond_problem, Plan.of(diamond_problem, [0, 0, 1, 0]))
    data = page_data(build_content("diamond", diamond_problem, [result]))
    plan, second = data["plans"][0], round(1 / data["tick"])
    lanes = [
        [each // second if at % 3 else each for at, each in enumerate(lane)]
        for lane in plan["lanes"]
    ]
    assert lanes == [[0, 0, 1, 1, 0, 10, 3, 4, 1], [2, 3, 10]]
    sends = [
        [lane[0], lane[1], lane[2], lane[3] // second, lane[4] // second] for lane in plan["sends"]
    ]
    assert sends == [[0, 1, 0, 1, 2], [2, 0, 0, 13, 2]]
    assert plan["path"] == [0, -1, 2, -2, 3]
    assert plan["step"] == 16 * second


def test_a_fused_group_is_drawn_once(diamond_problem, build_content):
    fused = Plan.of(diamond_problem, [0, 0, 0, 0], fusion=[-1, 5, 5, -1])
    result = evaluate(diamond_problem, fused)
    data = page_data(build_content("diamond", diamond_problem, [result]))
    step = data["plans"][0]
    assert step["lanes"][0][::3] == [0, 1, 3]  # top, left with right, bottom
    assert step["group"] == [0, 1, 1, 3]
    assert step["step"] * data["tick"] == pytest.approx(result.step_time)


def test_thinning_keeps_the_highest_the_lowest_and_the_ends():
    rng = np.random.default_rng(0)
    used = rng.integers(0, 10**9, 50_000)
    over = MemoryCurve(np.arange(50_000) * 1e-6, used, np.zeros(50_000, dtype=np.int64))
    keep = thin_curve(over, max_points=400)
    assert len(keep) <= 402
    assert {0, 49_999, int(used.argmax()), int(used.argmin())} <= set(keep.tolist())
    assert (np.diff(keep) > 0).all()
    few = MemoryCurve(over.time[:300], used[:300], over.copies[:300])
    assert thin_curve(few, max_points=400).tolist() == list(range(300))


def test_names_are_whole_unless_they_would_be_too_long_together():
    names = ["a" * 1000, "b"]
    assert shorten_names(names) == names
    many = [f"{at:05d}" + "x" * 1000 + f"{at:05d}" for at in range(5000)]
    cut = shorten_names(many)
    assert sum(map(len, cut)) < 1_000_000
    assert len(set(cut)) == 5000  # still told apart by their ends
    assert all("…" in name for name in cut)


def test_a_step_without_time_has_a_page(one_device, exact, build_content):
    problem = Problem(zoo.load("chain:ops=1"), Cluster.parse("cpu"))
    data = page_data(build_content("chain", problem, [solve(problem, SingleDevices())]))
    assert data["devices"][0]["name"] == "cpu"


def test_throughput_and_layers_are_no_warnings(build_content):
    problem = Problem(zoo.load("transformer:blocks=2,tokens=64"), Cluster.parse("2xV100+cpu"))
    layers = np.array(["blocks.1." in op.name for op in problem.graph.ops], dtype=np.int32)
    split = evaluate(problem, Plan.of(problem, problem.legalize(layers)), "split")
    data = page_data(build_content("transformer", problem, [split]))
    assert data["lead"] == []
    throughput, layers_line = data["lines"]
    assert throughput.startswith("Throughput: ")
    assert layers_line == "Layers: block 0 on gpu0; block 1 on gpu1."
    small = Problem(problem.graph, problem.cluster, limits={"gpu0": "100MiB"})
    on_one = evaluate(small, Plan.of(small, small.legalize(0 * layers)), "one")
    data = page_data(build_content("transformer", small, [on_one]))
    assert data["lead"][0].startswith("The plan does not fit: it is out of memory by ")
    assert not any(line.startswith("Throughput") for line in data["lines"])
