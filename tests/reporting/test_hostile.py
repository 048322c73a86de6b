"""Names are data: whatever a model calls its ops, pages and pictures show it and nothing else."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from placewright import Cluster, Graph, Op, Problem, plot, solve, solvers
from placewright.reporting import html_page

NAMES = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<!-- <script>",
    "\"><img src=x onerror='window.hacked = 3'>",
    "'; window.hacked = 4; '",
    "&lt;b&gt; &amp; {{script}} ${window.hacked = 5} \\u003c",
    "emoji 🦜🏳️‍🌈 and עברית and \u202etfel ot thgir",
    "line\u2028separator and tab\t and newline\n and nul\x00",
    "half a pair \ud83e",
    "x" * 1000,
    "very.long." * 100 + "🦜",
    " ",
)


@pytest.fixture(scope="module")
def hostile() -> Problem:
    """A chain of ops with the worst names, in modules and of kinds that are no better."""
    ops = [Op("input \u2029 <i>", "input", outputs=(8,))]
    for at, name in enumerate(NAMES):
        ops.append(
            Op(
                name,
                kind=NAMES[-1 - at][:60],
                inputs=((at, 0),),
                outputs=(2**20,),
                flops=1e9,
                module=f"{name}.{NAMES[at - 1]}",
            )
        )
    return Problem(Graph(NAMES[0] + NAMES[9], tuple(ops)), Cluster.parse("2xP100+cpu"))


@pytest.fixture(scope="module")
def results(hostile):
    return [solve(hostile, solvers.RoundRobin()), solve(hostile, solvers.SingleDevices())]


def test_the_page_shows_every_name_and_runs_none(save_tab, hostile, results, build_content):
    labels = [NAMES[1], "single"]
    skipped = [(NAMES[0], NAMES[1])]
    content = build_content(NAMES[1], hostile, results, skipped, notes=[NAMES[3]], labels=labels)
    tab = save_tab(content)
    assert tab.text("#title").startswith("</script><script>window.hacked = 2</script> on")
    assert NAMES[3] in tab.text("#notes")
    assert NAMES[1] in tab.text("#method-table")
    tab.page.get_by_label("Weights and inputs").check()
    tab.page.locator("#op-table").get_by_role("button", name="duration").click()  # graph order
    for at in range(len(NAMES) + 1):
        tab.page.locator("#op-table").focus()
        tab.page.keyboard.press("ArrowDown")
        shown = tab.page.locator("#chosen b").text_content()
        assert shown == hostile.graph.ops[at].name
        box = tab.page.locator("#chosen").bounding_box()
        assert box["width"] < 400
        assert box["y"] + box["height"] <= 850
    tab.page.locator("#theme").click()
    tab.page.locator("#method-table button").last.click()
    tab.settle()
    assert tab.get("window.hacked") is None
    assert tab.page.locator("img").count() == 0
    assert tab.page.locator("script").count() == 2
    assert tab.get("document.documentElement.scrollWidth") <= 1366, "something is too wide"


def test_no_name_gets_into_the_html_but_as_json(hostile, results, build_content):
    page = html_page(build_content(NAMES[0], hostile, results))
    assert page.lower().count("<script") == 2
    assert page.count("</script>") == 2
    head, _, rest = page.partition('id="data">')
    data = rest.partition("</script>")[0]
    assert not set("<>&") & set(data)
    assert "hacked" not in head.replace("&lt;script&gt;window.hacked = 1&lt;/script&gt;", "")


@pytest.mark.parametrize("what", ["timeline", "graph"])
def test_pictures_are_well_formed_whatever_the_names(results, what):
    for result in results:
        tree = ElementTree.fromstring(plot(result, what).svg)
        kinds = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert kinds <= {"svg", "title", "rect", "path", "text"}
