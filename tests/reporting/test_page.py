"""The page in a real browser: quiet, quick, and its numbers are those of the results."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from placewright import reporting
from placewright.reporting.page import render_page
from placewright.units import format_bytes, format_seconds

SECTIONS = ("answer", "methods", "timeline", "memory", "graph", "ops", "search", "plans")


def cells(tab, where):
    rows = tab.page.locator(f"{where} tr").all()
    return [[cell.inner_text() for cell in row.locator("th, td").all()] for row in rows]


def test_every_section_is_there_and_nothing_is_asked_for(shown):
    tab = shown
    for section in SECTIONS:
        box = tab.page.locator(f"#{section}").bounding_box()
        assert box["width"] > 900
        assert box["height"] > 100
        assert tab.page.locator(f"#{section} h2, #{section} h1").first.is_visible()
    for canvas in tab.page.locator("canvas:visible").all():
        colours = canvas.evaluate(
            "c => new Set(new Uint32Array(c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data.buffer)).size"
        )
        assert colours > 4, "a canvas is blank"
    assert tab.asked == [tab.saved.address]


def test_the_answer_is_the_results_own(shown):
    tab, content = shown, shown.saved.content
    result, single = content.results[content.answer], content.results[content.single]
    default = content.results[content.default]
    figures = [each.inner_text() for each in tab.page.locator(".figure b").all()]
    assert figures == [
        format_seconds(result.step_time),
        format_seconds(single.step_time),
        format_seconds(default.step_time),
        format_seconds(result.bound),
    ]
    assert tab.text("h1") == f"{content.comparison.name} on {content.problem.cluster.name}"
    assert f"{len(content.problem.graph):,} ops" in tab.text("#problem")
    assert tab.text("#why").endswith(".")
    assert (
        f"{result.gap:.1%}".replace("%", " %") in tab.text(".figure:last-child") or result.gap > 1
    )


def test_the_method_table_shows_every_result_and_sorts(open_tab, small):
    tab, content = open_tab(small), small.content
    rows = cells(tab, "#method-table")
    ranked = sorted(content.results, key=lambda each: each.key)
    assert [row[0].removesuffix(" ★") for row in rows[1:]] == [each.solver for each in ranked]
    for row, result in zip(rows[1:], ranked, strict=True):
        fits = "yes" if result.fits else f"no, out of memory by {format_bytes(result.overflow)}"
        fullest = max(use.peak / use.limit for use in result.devices)
        assert row[1:3] == [format_seconds(result.step_time), format_seconds(result.period)]
        assert row[4:] == [
            fits,
            f"{fullest * 100:.{1 if fullest < 1 else 0}f} %",
            f"{result.evaluations:,}",
            f"{result.seconds:.2f}",
        ]
    tab.page.get_by_role("button", name="step time").click()
    times = [result.step_time for result in sorted(content.results, key=lambda r: r.step_time)]
    assert [row[1] for row in cells(tab, "#method-table")[1:]] == [*map(format_seconds, times)]
    assert tab.page.locator("th[aria-sort=ascending]").inner_text().startswith("step time")
    tab.page.keyboard.press("Enter")  # the focus is still on the button
    assert [row[1] for row in cells(tab, "#method-table")[1:]] == [
        *map(format_seconds, times[::-1])
    ]
    assert "expert skipped: no expert is known for <this>" in tab.text("#skipped")


def test_a_method_is_looked_at_by_choosing_it(open_tab, small):
    tab, content = open_tab(small), small.content
    at = content.labels.index("heft")
    tab.page.locator("#method-table").get_by_role("button", name="heft", exact=True).click()
    shown = tab.get("placewright.data.step(placewright.state.plan).plan")
    assert shown["method"] == at
    assert shown["device"] == content.results[at].plan.placement.tolist()
    assert tab.page.locator("#plan-shown option:checked").inner_text() == "heft"
    assert tab.page.locator("#method-table tr.shown td").first.inner_text() == "heft"


def test_times_and_waits_in_the_page_are_the_timelines(shown):
    tab, content = shown, shown.saved.content
    step, timeline = content.answer_step, content.answer_step.timeline
    tick = tab.get("placewright.data.tick")
    lanes = tab.get(
        "placewright.data.step(placewright.state.plan).lanes.map(l => ({kind: l.kind, at: l.at,"
        "start: [...l.start], end: [...l.end], what: [...l.what]}))"
    )
    ran = np.zeros(len(content.problem.graph), dtype=bool)
    for lane in lanes:
        what = np.array(lane["what"], dtype=int)
        if lane["kind"] == "device":
            assert (step.plan.placement[what] == lane["at"]).all()
            np.testing.assert_allclose(
                np.array(lane["start"]) * tick, timeline.start[what], atol=tick
            )
            np.testing.assert_allclose(np.array(lane["end"]) * tick, timeline.end[what], atol=tick)
            ran[what] = True
        else:
            spent = np.array(lane["end"]) - np.array(lane["start"])
            here = timeline.transfers.channel == lane["at"]
            moved = timeline.transfers.end[here] - timeline.transfers.start[here]
            assert spent.sum() * tick == pytest.approx(moved.sum(), abs=tick * len(moved))
    np.testing.assert_array_equal(ran, content.problem.arrays.scheduled)
    path = tab.get("placewright.data.step(placewright.state.plan).path")
    assert [at for at in path if at >= 0] == [at for what, at in step.waits.path if what == "op"]


def test_memory_in_the_page_is_the_timelines(shown):
    tab, content = shown, shown.saved.content
    result = content.results[content.answer]
    held = tab.get(
        "placewright.data.step(placewright.state.plan).memory.map(m => ({peak: m.peak,"
        "weights: m.weights, staging: m.staging}))"
    )
    # thinned or not, the highest point is always there
    assert [each["peak"] for each in held] == [use.peak for use in result.devices]
    split = content.answer_step.memory
    assert [each["weights"] for each in held] == split.weights.tolist()
    assert [each["staging"] for each in held] == split.staging.tolist()


def test_pointing_at_an_op_says_all_about_it(open_tab, small):
    tab, content = open_tab(small), small.content
    timeline, graph = content.answer_step.timeline, content.problem.graph
    op = graph.position["blocks.3.mlp.up"]
    spot = tab.get(
        f"(() => {{ const l = placewright.timeline.lanes, s = placewright.data.step("
        f"placewright.state.plan), lane = s.lanes[s.opLane[{op}]], i = s.opSlot[{op}];"
        "const row = l.rows.find(r => r.lane === lane);"
        "return [l.x((lane.start[i] + lane.end[i]) / 2), row.y + row.high / 2]; })()"
    )
    chart = tab.page.locator("#timeline-chart")
    chart.hover(position={"x": spot[0], "y": spot[1]})
    said = tab.text("#tip")
    took = float(timeline.end[op] - timeline.start[op])
    assert said.splitlines()[0] == "blocks.3.mlp.up"
    assert "linear on gpu0, in blocks.3.mlp" in said
    # 82.528 ms, told apart from the end by more digits than usual
    start = re.search(
        rf"{re.escape(format_seconds(took))}, from ([0-9.]+) ms to ([0-9.]+) ms", said
    )
    assert float(start[1]) / 1e3 == pytest.approx(timeline.start[op], abs=took / 10)
    assert float(start[2]) / 1e3 == pytest.approx(timeline.end[op], abs=took / 10)
    assert "waited for" in said
    chart.click(position={"x": spot[0], "y": spot[1]})
    assert tab.text("#chosen b") == "blocks.3.mlp.up"
    tab.settle()
    assert tab.text("#op-table .chosen").startswith("blocks.3.mlp.up")


def test_idle_time_and_streamed_weights_can_be_pointed_at(open_tab, small):
    tab = open_tab(small)
    row = tab.get(
        "(() => { const l = placewright.timeline.lanes; const r = l.rows.find("
        "r => r.lane.kind === 'channel'); return [l.x(r.lane.start[4] + 1), r.y + 4]; })()"
    )
    tab.page.locator("#timeline-chart").hover(position={"x": row[0] + 2, "y": row[1]})
    assert "streamed weight of" in tab.text("#tip")
    tab.page.get_by_label("All lanes").check()
    cpu = tab.get("placewright.timeline.lanes.rows.find(r => r.lane.name === 'cpu').y")
    tab.page.locator("#timeline-chart").hover(position={"x": 600, "y": cpu + 5})
    assert tab.text("#tip").startswith("cpu is idle")


@pytest.mark.parametrize("size", ["small", pytest.param("large", marks=pytest.mark.slow)])
def test_the_timeline_zooms_and_moves_by_keys_wheel_and_hand(open_tab, size, request):
    saved = request.getfixturevalue(size)
    tab = open_tab(saved)
    view = "[placewright.state.from, placewright.state.to]"
    whole = tab.get(view)
    chart = tab.page.locator("#timeline-chart")
    chart.focus()
    tab.page.keyboard.press("+")
    closer = tab.get(view)
    assert closer[1] - closer[0] == pytest.approx((whole[1] - whole[0]) / 1.5)
    tab.page.keyboard.press("ArrowRight")
    later = tab.get(view)
    assert later[0] > closer[0]
    assert later[1] - later[0] == pytest.approx(closer[1] - closer[0])
    box = chart.bounding_box()
    tab.page.mouse.move(box["x"] + 700, box["y"] + 40)
    tab.page.keyboard.down("Control")
    tab.page.mouse.wheel(0, -50)
    tab.page.keyboard.up("Control")
    tab.until(f"placewright.state.to - placewright.state.from < {later[1] - later[0]}")
    wheeled = tab.get(view)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + 500, box["y"] + 40, steps=4)
    tab.page.mouse.up()
    assert tab.get(view)[0] > wheeled[0]
    chart.press("0")
    assert tab.get(view) == whole
    for _ in range(45):  # 1.5 to the power of 45 is 8e7
        chart.press("+")
    deep = tab.get(view)
    assert 0 < deep[1] - deep[0] <= 21 or deep[1] - deep[0] < (whole[1] - whole[0]) / 1e6
    tab.page.get_by_role("button", name="Fit the step").click()
    assert tab.get(view) == whole


def test_a_plain_wheel_scrolls_the_page_and_not_the_chart(open_tab, small):
    tab = open_tab(small)
    tab.page.locator("#timeline-chart").hover(position={"x": 600, "y": 40})
    before = tab.get("[placewright.state.from, placewright.state.to, scrollY]")
    tab.page.mouse.wheel(0, 300)
    tab.until(f"scrollY > {before[2]} + 100")
    assert tab.get("[placewright.state.from, placewright.state.to]") == before[:2]


@pytest.mark.parametrize("size", ["small", "medium"])
def test_an_op_of_the_graph_is_found_in_the_timeline_and_the_table(open_tab, size, request):
    saved = request.getfixturevalue(size)
    tab, content = open_tab(saved), saved.content
    op = int(np.flatnonzero(content.problem.arrays.scheduled)[len(content.problem.graph) // 2])
    tab.page.locator("#graph-chart").scroll_into_view_if_needed()
    spot = tab.get(
        f"(() => {{ const g = placewright.graph, [x, y, w, h] = g.rect({op});"
        "return [(x + w / 2 - g.left) * g.scale, (y + h / 2 - g.top) * g.scale]; })()"
    )
    tab.page.locator("#graph-chart").hover(position={"x": spot[0], "y": spot[1]})
    name = content.problem.graph.ops[op].name
    assert tab.text("#tip").splitlines()[0] == name
    tab.page.locator("#graph-chart").click(position={"x": spot[0], "y": spot[1]})
    tab.settle()
    assert tab.text("#chosen b") == name
    row = tab.page.locator("#op-table .chosen")
    assert row.locator("span").first.inner_text() == name
    table, place = tab.page.locator("#op-table").bounding_box(), row.bounding_box()
    assert table["y"] <= place["y"] <= table["y"] + table["height"]
    start, end = tab.get("[placewright.state.from, placewright.state.to]")
    tick = tab.get("placewright.data.tick")
    timeline = content.answer_step.timeline
    assert start * tick <= timeline.start[op] + tick
    assert timeline.end[op] - tick <= end * tick


def test_boxes_of_a_large_graph_open_and_fold(open_tab, large):
    tab = open_tab(large)
    assert tab.get("placewright.graph.open.reduce((a, b) => a + b)") < 10
    box = tab.get("placewright.graph.open.indexOf(0)")
    middle = (
        "(() => { const g = placewright.graph;"
        f"const [x, y, w, h] = placewright.data.graph.boxes[{box}];"
        "return [(x + w / 2 - g.left) * g.scale, (y + h / 2 - g.top) * g.scale]; })()"
    )
    chart = tab.page.locator("#graph-chart")
    chart.scroll_into_view_if_needed()
    x, y = tab.get(middle)
    chart.hover(position={"x": x, "y": y})
    assert tab.text("#tip").splitlines()[-1] == "click to open"
    chart.click(position={"x": x, "y": y})
    tab.settle()
    assert tab.get(f"placewright.graph.open[{box}]") == 1
    assert tab.get("placewright.graph.texts.length") > 20  # near enough to read
    x, y = tab.get(
        f"(() => {{ const g = placewright.graph, [x, y] = placewright.data.graph.boxes[{box}];"
        "return [(x + 2 - g.left) * g.scale, (y + 2 - g.top) * g.scale]; })()"
    )
    chart.click(position={"x": x, "y": y})
    assert tab.get(f"placewright.graph.open[{box}]") == 0
    tab.page.locator("#graph").get_by_role("button", name="Expand all").click()
    tab.settle()
    assert tab.get("placewright.graph.open.every(each => each)")
    assert tab.get("placewright.graph.took") < 500


def test_everything_can_be_reached_with_the_keyboard(open_tab, small):
    tab = open_tab(small)
    reached = set()
    for _ in range(90):
        tab.page.keyboard.press("Tab")
        reached.add(tab.get("document.activeElement.id || document.activeElement.textContent"))
    wanted = {"timeline-chart", "graph-chart", "op-table", "op-filter", "theme", "plan-shown"}
    assert wanted | {"first-plan", "second-plan"} <= reached
    tab.page.locator("#timeline-chart").focus()
    tab.page.keyboard.press("n")
    first = tab.text("#chosen b")
    tab.page.keyboard.press("n")
    assert tab.text("#chosen b") != first
    tab.page.keyboard.press("p")
    assert tab.text("#chosen b") == first
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("#chosen").is_hidden()
    tab.page.locator("#op-table").focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    second = tab.get("placewright.data.name(placewright.ops.order[1])")
    assert tab.text("#chosen b") == second
    tab.page.locator("#graph-chart").focus()
    scale = tab.get("placewright.graph.scale")
    tab.page.keyboard.press("+")
    assert tab.get("placewright.graph.scale") == pytest.approx(1.4 * scale)


def test_ops_are_found_by_words_and_sorted(open_tab, large):
    tab, graph = open_tab(large), large.content.problem.graph
    tab.page.locator("#op-filter").fill("op1999")
    assert tab.text("#op-count") == "11 of 20,000 ops"  # op1999 and op19990 to op19999
    tab.page.locator("#op-filter").fill("")
    assert tab.text("#op-count") == "20,000 ops"
    timeline = large.content.answer_step.timeline
    longest = int((timeline.end - timeline.start).argmax())
    row = tab.page.locator("#op-table [aria-rowindex='2']")
    assert row.locator("span").first.inner_text() == graph.ops[longest].name
    tab.page.locator("#op-table").get_by_role("button", name="duration").click()
    assert row.locator("span").first.inner_text() == graph.ops[0].name  # the graph's order
    assert len(tab.page.locator("#op-table .row").all()) < 60  # of 20,000, only those in sight


def test_the_search_is_drawn_with_what_it_is_held_to(open_tab, small):
    tab, content = open_tab(small), small.content
    words = tab.text("#search-chart")
    result = content.results[content.answer]
    assert f"lower bound {format_seconds(result.bound)}" in words
    assert f"cpu alone {format_seconds(content.results[content.single].objective_value)}" in words
    marks = tab.page.locator("#search-chart circle").count()
    assert marks == sum(len(each.history) for each in content.results)
    assert "evaluations" in words
    tab.page.get_by_label("by time").check()
    assert "evaluations" not in tab.text("#search-chart")


def test_two_plans_side_by_side(open_tab, small):
    tab, content = open_tab(small), small.content
    one, other = content.labels.index("heft"), content.labels.index("streamed")
    tab.page.locator("#first-plan").select_option(label="heft")
    tab.page.locator("#second-plan").select_option(label="streamed")
    first, second = content.results[one], content.results[other]
    moved = int((first.plan.placement != second.plan.placement).sum())
    words = tab.text("#plans-words")
    assert f"{moved} ops of 289 are on another device" in words
    less = 1 - second.objective_value / first.objective_value
    assert f"the second takes {less * 100:.1f} % less time" in words
    figures = {row[0]: row[1:] for row in cells(tab, "#plans-figures")[1:]}
    assert figures["step time"][:2] == [format_seconds(each.step_time) for each in (first, second)]
    assert figures["gpu0 peak memory"][:2] == [
        format_bytes(each.devices[0].peak) for each in (first, second)
    ]
    ways = cells(tab, "#plans-ways")[1:]
    assert sum(int(row[1]) for row in ways) == moved
    tab.page.locator("#second-plan").select_option(label="heft")
    assert "Every op is on the same device in both" in tab.text("#plans-words")


def test_dark_follows_the_system_and_the_button(open_tab, small):
    back = "getComputedStyle(document.body).backgroundColor"
    pixel = (
        "(() => { const c = document.querySelector('#timeline-chart canvas');"
        "return [...c.getContext('2d').getImageData(2, 2, 1, 1).data].slice(0, 3); })()"
    )
    is_dark, is_light = f"Math.max(...{pixel}) < 64", f"Math.min(...{pixel}) > 240"
    tab = open_tab(small, "dark")
    tab.until(is_dark)
    dark = tab.get(back)
    tab.page.locator("#theme").click()
    tab.until(is_light)
    assert tab.get(back) != dark
    light = open_tab(small, "light")
    light.until(is_light)
    light.page.emulate_media(color_scheme="dark")
    light.until(is_dark)


def test_it_prints(open_tab, small):
    tab = open_tab(small, "dark")
    printed = tab.page.pdf()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12


def test_a_page_of_20_000_ops_is_small_and_quick(open_tab, large):
    assert large.path.stat().st_size < 5_000_000
    best = {
        "paint": math.inf,
        "ready": math.inf,
        "frame": math.inf,
    }  # of three, as machines are busy
    for _ in range(3):
        tab = open_tab(large)
        tab.until("performance.getEntriesByType('paint').length > 0")
        found = {
            "paint": tab.get("performance.getEntriesByType('paint')[0].startTime"),
            "ready": tab.get("placewright.ready"),
            "frame": tab.get(
                "(() => { const s = placewright.timeline.lanes.surface, began = performance.now();"
                "for (let i = 0; i < 20; i++) { placewright.timeline.zoom(1.05); s.now(); }"
                "return (performance.now() - began) / 20; })()"
            ),
        }
        best = {what: min(best[what], found[what]) for what in best}
        if best["paint"] < 1000 and best["ready"] < 1000 and best["frame"] < 30:
            break
    assert best["paint"] < 4000
    assert best["ready"] < 4000  # half a second on a busy machine
    assert best["frame"] < 100, "moving and zooming would stutter"


def test_2_000_ops_are_drawn_at_once(open_tab, medium):
    tab = open_tab(medium)
    assert tab.get("placewright.graph.open.every(each => each)")
    draw = (
        "(() => { const began = performance.now(); placewright.graph.surface.now();"
        "return performance.now() - began; })()"
    )
    assert min(tab.get(draw) for _ in range(3)) < 300  # of three, as machines are busy


def test_units_are_written_as_python_writes_them(open_tab, small):
    values = [0.0, 1.0, 0.1, 1e-9, 3.14159e-7, 1.23456e-3, 0.99999, 59.99, 123456.7, 2.5e-10]
    sizes = [0, 1, 1023, 1024, 1025, 1048575, 2**20, 3 * 2**30, 2**40 + 2**39, 2**55]
    # the page keeps its functions to itself: read the file into a world of its own
    code = (Path(reporting.__file__).parent / "browser" / "units.js").read_text()
    given = f"{json.dumps(values)}.map(seconds), {json.dumps(sizes)}.map(bytes)"
    found = open_tab(small).get(f"(() => {{ {code}; return [{given}]; }})()")
    assert found[0] == [format_seconds(value) for value in values]
    assert found[1] == [format_bytes(size) for size in sizes]


def test_no_script_but_our_own_can_run(open_tab, small):
    tab = open_tab(small)
    tab.get(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        "document.body.append(s); })()"
    )
    image = "<img src=x onerror='window.hacked = 2'>"
    tab.get(f"document.body.insertAdjacentHTML('beforeend', {json.dumps(image)})")
    tab.settle()
    assert tab.get("window.hacked") is None
    assert any("Content Security Policy" in each for each in tab.said)
    tab.said.clear()
    tab.asked = tab.asked[:1]


def test_what_looks_like_a_place_in_the_template_is_text():
    page = render_page({"model": "{{script}}", "cluster": "{{data}}", "x": math.pi})
    assert page.count("<script>") == 1
    assert "<title>{{script}} on {{data}}</title>" in page
