"""What the page says first, and how it is read: facts, command, axes, widths, CSV, panel."""

from __future__ import annotations

import csv
import io
import re
import shlex
from dataclasses import replace

import pytest

from placewright import Cluster, Problem, Table, solve, solvers, zoo
from placewright.reporting.heading import command_text, costs_text, link_rows
from placewright.units import format_bytes, format_seconds


def test_limits_objective_costs_seed_and_date_stand_above_the_answer(open_tab, small):
    tab = open_tab(small)
    facts = dict(
        zip(
            tab.page.locator("#facts dt").all_inner_texts(),
            tab.page.locator("#facts dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["memory limits"] == "gpu0 4 GiB"
    assert facts["objective"] == "time of one step"
    assert facts["op times"] == "estimated (roofline)"
    assert facts["seed"] == "0"
    assert facts["made"] == small.content.date
    assert tab.page.locator("#command").is_hidden()  # a program built the problem


def test_the_cluster_has_a_card(open_tab, small):
    tab = open_tab(small)
    rows = [
        [cell.inner_text() for cell in row.locator("td").all()]
        for row in tab.page.locator("#device-table tbody tr").all()
    ]
    device = small.content.problem.cluster.devices[0]
    assert rows[0][:5] == ["gpu0", "V100", format_bytes(device.memory), "4 GiB", "4 GiB"]
    assert rows[0][5] == f"{device.rates['float32'] / 1e12:.4g} T"
    assert [row[0] for row in rows] == ["gpu0", "cpu"]
    link = small.content.problem.cluster.links["gpu0", "cpu"]
    links = tab.text("#links")
    assert f"{link.bandwidth / 1e9:.4g} GB/s, {format_seconds(link.latency)}" in links


def test_the_command_can_be_copied_and_names_every_option(save_tab, build_content):
    problem = Problem(zoo.load("branches"), Cluster.parse("2xP100+cpu"))
    options = {"model": "my model.py:build", "on": "2xP100+cpu", "training": True}
    options |= {"limit": ("gpu0=8GiB", "gpu1=4GiB")}
    result = replace(solve(problem, solvers.HEFT(), seed=3), options=options)
    content = build_content("branches", problem, [result])
    command = command_text(content)
    assert command is not None
    assert shlex.split(command) == [
        *("placewright", "place", "my model.py:build", "--on", "2xP100+cpu", "--training"),
        *("--limit", "gpu0=8GiB", "--limit", "gpu1=4GiB", "--method", "heft", "--seed", "3"),
    ]
    tab = save_tab(content)
    assert tab.text("#command code") == command
    tab.page.get_by_role("button", name="Copy").click()
    tab.until("document.querySelector('#command button').textContent === 'Copied'")
    assert tab.get("getSelection().toString()") == command


def test_a_method_that_no_command_names_has_no_command(build_content):
    problem = Problem(zoo.load("diamond"), Cluster.parse("2xP100"))
    result = replace(solve(problem, solvers.HEFT()), options={"model": "diamond"}, solver="mine")
    assert command_text(build_content("diamond", problem, [result])) is None


def test_links_of_equal_figures_share_a_row():
    cluster = Cluster.parse("4xP100+cpu")
    rows = link_rows(cluster)
    assert sum(row["count"] for row in rows) == 5 * 4
    assert len(rows) == len({(link.bandwidth, link.latency) for link in cluster.links.values()})


def test_measured_times_are_called_measured():
    table = Table(columns=("P100",), seconds=[[1.0]], ops=("a",), machine="box")
    assert costs_text(table) == "measured on box"


def test_memory_has_an_axis_that_reaches_to_the_limit_or_to_the_peak(open_tab, small):
    tab = open_tab(small)
    ticks = "placewright.memory.charts.map(c => c.chart.ticks)"
    top = "placewright.memory.charts.map(c => c.chart.scale()[0])"
    tab.settle()
    gpu, cpu = tab.get(ticks)
    assert [format_bytes(size) for size in gpu] == ["0 B", "2 GiB", "4 GiB"]
    assert [format_bytes(size) for size in cpu] == ["0 B", "128 GiB", "256 GiB"]
    tab.page.get_by_label("to peak").check()
    tab.settle()
    peaks = [use.peak for use in small.content.results[small.content.answer].devices]
    for highest, peak in zip(tab.get(top), peaks, strict=True):
        assert peak <= highest <= 1.5 * peak
    for sizes, peak in zip(tab.get(ticks), peaks, strict=True):
        assert 2 <= len(sizes) <= 5
        assert sizes[-1] > peak / 3


def test_memory_and_devices_share_no_colour(open_tab, small):
    style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
    for theme in ("light", "dark"):
        tab = open_tab(small, theme)
        shades = [tab.get(style.format(name)) for name in ("steady", "passing")]
        for shade in shades:  # greys: the channels are near each other
            channels = [int(shade[at : at + 2], 16) for at in (1, 3, 5)]
            assert max(channels) - min(channels) < 32
        assert not {*shades} & {*tab.get("placewright.data.devices.map(d => d.colour)")}


def test_idle_lanes_are_folded_until_requested_or_chosen(open_tab, medium, small):
    tab = open_tab(small)
    names = "placewright.timeline.lanes.rows.map(r => r.lane.name)"
    assert "cpu" not in tab.get(names)
    tab.page.get_by_label("All lanes").check()
    assert "cpu" in tab.get(names)
    busy = open_tab(medium)
    length = busy.get("placewright.data.step(0).length")
    for spent in busy.get("placewright.timeline.lanes.rows.map(r => r.lane.busy)"):
        assert spent > 5e-4 * length


def test_stored_ops_are_hidden_until_requested_or_chosen(open_tab, small):
    tab, content = open_tab(small), small.content
    scheduled = int(content.problem.arrays.scheduled.sum())
    assert tab.text("#op-count") == f"{scheduled} ops"
    timeline = content.answer_step.timeline
    longest = (timeline.end - timeline.start).max()
    first = tab.get("placewright.ops.order[0]")
    assert timeline.end[first] - timeline.start[first] == pytest.approx(longest)
    weight = content.problem.graph.position["blocks.0.mlp.up.weight"]
    tab.page.get_by_label("Weights and inputs").check()
    assert tab.text("#op-count") == "289 ops"
    tab.page.get_by_label("Weights and inputs").uncheck()
    tab.page.locator("#op-filter").fill("blocks.0.mlp.up")
    tab.page.locator("#op-table .row:not(.head)").first.click()
    tab.page.locator("#chosen").get_by_role("button", name="blocks.0.mlp.up.weight").click()
    tab.settle()
    assert tab.page.get_by_label("Weights and inputs").is_checked()
    assert tab.text("#op-table .chosen").startswith("blocks.0.mlp.up.weight")
    assert tab.get("placewright.state.op") == weight


def test_the_table_is_saved_as_csv_in_seconds_and_bytes(open_tab, small):
    tab, content = open_tab(small), small.content
    tab.page.locator("#op-filter").fill("blocks.3.mlp")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Save CSV").click()
    assert download.value.suggested_filename == "ops.csv"
    text = download.value.path().read_text()
    tab.asked = tab.asked[:1]  # the file that was made, not fetched
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(tab.get("placewright.ops.order"))
    timeline, graph = content.answer_step.timeline, content.problem.graph
    tick = tab.get("placewright.data.tick")  # the page counts in these
    for row in rows:
        op = graph.position[row["op"]]
        assert float(row["duration_s"]) == pytest.approx(
            timeline.end[op] - timeline.start[op], abs=2 * tick
        )
        assert int(row["output_bytes"]) == sum(graph.ops[op].outputs)
        assert (
            row["device"]
            == content.answer_step.plan.device_names[content.answer_step.plan.placement[op]]
        )


def test_a_crowded_critical_path_has_no_crossings_until_zoomed(open_tab, medium):
    tab = open_tab(medium)
    tab.settle()
    assert tab.get("placewright.timeline.lanes.pathCrossings") == 0
    for _ in range(30):  # closer, until some have space
        tab.get("placewright.timeline.zoom(1.5)")
        tab.settle()
        if tab.get("placewright.timeline.lanes.pathCrossings"):
            break
    crossings = tab.get("placewright.timeline.lanes.pathCrossings")
    width = tab.get("placewright.timeline.lanes.surface.width")
    assert 0 < crossings * 14 < width


@pytest.mark.parametrize("width", [1366, 800, 390])
def test_the_panel_covers_nothing_at_any_width(open_tab, small, width):
    tab = open_tab(small)
    tab.page.set_viewport_size({"width": width, "height": 850})
    tab.page.locator("#op-table .row:not(.head)").first.click()
    tab.settle()
    panel = tab.page.locator("#chosen").bounding_box()
    tab.page.locator("#op-table").scroll_into_view_if_needed()
    main = tab.page.locator("main").bounding_box()
    if width > 1000:
        assert main["x"] + main["width"] <= panel["x"] + 1
    else:  # below, with space to scroll the page's end above it
        assert panel["y"] + panel["height"] == pytest.approx(850, abs=2)
        assert panel["height"] <= 0.45 * 850
        tab.get("scrollTo(0, document.body.scrollHeight)")
        last = tab.page.locator("#plans").bounding_box()
        assert last["y"] + last["height"] <= panel["y"] + 1
    assert tab.page.locator("#tip").is_hidden()


@pytest.mark.parametrize("width", [800, 390])
def test_nothing_is_cut_off_on_a_narrow_screen(open_tab, small, width):
    tab = open_tab(small)
    tab.page.set_viewport_size({"width": width, "height": 850})
    tab.settle()
    assert tab.get("document.documentElement.scrollWidth") <= width
    for link in tab.page.locator("nav a:visible").all():
        box = link.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    for table in ("#method-table", "#device-table"):
        box = tab.page.locator(table).bounding_box()
        assert box["x"] + box["width"] <= width, f"{table} is hidden behind a scroll bar"
    for figure in tab.page.locator(".figure b").all():
        lines = figure.evaluate(
            "e => e.getClientRects().length && e.offsetHeight / parseFloat("
            "getComputedStyle(e).lineHeight)"
        )
        assert lines < 1.5
    hidden = "(() => { const t = document.getElementById('op-table'); return t.scrollWidth - "
    assert tab.get(f"{hidden}t.clientWidth; }})()") <= 0
    charts = tab.get("placewright.timeline.lanes.x(0)")
    assert charts < 0.3 * width
    assert re.search(r"\d ms", tab.text(".figure:first-child b"))
