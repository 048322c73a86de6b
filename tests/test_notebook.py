"""Notebooks: objects show themselves, the report opens inline, searches have a bar."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace

import pytest

import placewright as pw
from placewright.solvers import progress_display

VOID = {"br", "hr", "img", "input", "meta", "link", "rect"}


class Fragment(HTMLParser):
    """Checks that every tag is closed, and collects texts and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def problem():
    return pw.Problem(
        pw.zoo.load("branches"), pw.Cluster.parse("2xP100+cpu"), limits={"gpu0": "8GiB"}
    )


@pytest.fixture(scope="module")
def result(problem):
    return pw.solve(problem, pw.solvers.HEFT())


@pytest.fixture(scope="module")
def objects(problem, result):
    single = pw.solve(problem, pw.solvers.SingleDevices())
    return {
        "result": result,
        "plan": result.plan,
        "problem": problem,
        "timeline": result.timeline,
        "explanation": pw.explain(problem, result),
        "comparison": pw.compare(problem, ["single", "heft"]),
        "diff": pw.diff(result, single),
        "same": pw.diff(result, result),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("result", "by heft"),
        ("plan", "plan of 145 ops"),
        ("problem", "8 GiB"),
        ("timeline", "step time "),
        ("explanation", "what would help"),
        ("comparison", "single"),
        ("diff", "ops are on another device"),
        ("same", "the plans are the same"),
    ],
)
def test_objects_show_themselves_as_a_fragment_without_scripts_and_styles(objects, name, text):
    html = objects[name]._repr_html_()
    fragment = Fragment(html)
    assert text in " ".join(fragment.texts)
    assert not {"script", "style", "link", "iframe"} & {*fragment.tags}
    # Colours are the page's own, so that a dark theme stays readable.
    styles = [value for key, value in fragment.attributes if key == "style" and value]
    assert not any(re.search(r"(?<![\w-])color:|background:(?!none)", style) for style in styles)


def test_a_comparison_shows_the_best_method_first(objects):
    comparison = objects["comparison"]
    html = comparison._repr_html_()
    names = re.findall(r"<tr><td[^>]*>([^<]*)<", html)
    assert names[0] == comparison.best.solver
    assert sorted(names) == ["heft", "single"]


def test_a_result_that_does_not_fit_says_so_first_and_has_no_gap():
    problem = pw.Problem(pw.zoo.load("offload"), pw.Cluster.parse("P100"), limits={"gpu0": "2GiB"})
    html = pw.solve(problem, pw.solvers.SingleDevices())._repr_html_()
    assert "does not fit: out of memory by 3.5 GiB" in html
    assert "1 plan evaluated" in html
    assert "lower bound" not in html
    assert " above" not in html


def test_a_name_is_text_and_no_markup():
    plan = pw.Plan(("<b>op</b>",), ("<script>alert(1)</script>",), [0])
    moved = pw.PlanDiff(1, ((), ()), (), None, None, (("<img src=x>", -1, 5),))
    for html in (plan._repr_html_(), moved._repr_html_()):
        assert not {"script", "b", "img"} & {*Fragment(html).tags}


def test_the_chart_of_a_timeline_covers_what_is_busy(objects):
    html = objects["timeline"]._repr_html_()
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', html)]
    assert 0 < max(widths) <= 1000
    assert ">gpu0<" in html


def test_the_report_is_shown_in_a_frame_of_its_own(result, tmp_path):
    page = pw.report(result)
    fragment = Fragment(page._repr_html_())
    attributes = dict(fragment.attributes)
    assert fragment.tags == ["iframe"]
    assert attributes["srcdoc"] == page.html
    assert "allow-same-origin" not in attributes["sandbox"]  # the notebook's data stay its own
    assert pw.report(result, tmp_path / "page.html").html == (tmp_path / "page.html").read_text()
    assert len(repr(page)) < 100


class Kernel:
    """A notebook's kernel as far as a progress bar sees it: outputs by their number."""

    def __init__(self, monkeypatch):
        self.outputs: list[list[str]] = []
        ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
        ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
        display.HTML = lambda html: html
        display.display = self._display
        ipython.display = display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        monkeypatch.setattr(progress_display, "DELAY", 0.0)
        monkeypatch.setattr(progress_display, "NOTEBOOK_INTERVAL", 0.0)

    def _display(self, html, display_id):
        assert display_id is True
        output = [html]
        self.outputs.append(output)
        return SimpleNamespace(update=output.append)


def test_a_notebook_has_one_bar_per_search_by_default(problem, monkeypatch):
    kernel = Kernel(monkeypatch)
    pw.solve(problem, pw.solvers.RandomSearch(), pw.MaxEvaluations(50))
    (updates,) = kernel.outputs
    assert updates[0].startswith('<progress value="')
    assert "random: best step time " in updates[0]
    assert "<progress" not in updates[-1]  # what is left is text
    for html in updates:
        Fragment(html)


def test_a_comparison_has_one_bar_for_all_methods(problem, monkeypatch):
    kernel = Kernel(monkeypatch)
    pw.compare(problem, ["single", "heft", "cpop"])
    (updates,) = kernel.outputs
    values = [float(value) for each in updates for value in re.findall(r'value="([\d.]+)"', each)]
    assert values == sorted(values)
    assert values[-1] >= 2 / 3


def test_progress_false_shows_nothing_and_a_function_is_called(problem, monkeypatch, capsys):
    kernel = Kernel(monkeypatch)
    pw.solve(problem, pw.solvers.HEFT(), progress=False)
    pw.compare(problem, ["heft"], progress=False)
    seen = []
    pw.solve(problem, pw.solvers.HEFT(), progress=lambda search: seen.append(search.evaluations))
    assert seen == [2]  # HEFT evaluates two plans in one batch
    assert kernel.outputs == []
    assert capsys.readouterr() == ("", "")


def test_progress_true_prints_lines_outside_of_a_notebook(problem, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(progress_display, "DELAY", 0.0)
    monkeypatch.setattr(progress_display, "LINE_INTERVAL", 0.0)
    pw.solve(problem, pw.solvers.HEFT(), pw.MaxEvaluations(1), progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"heft: best step time [\d.]+ ms, 1 plan, 0 s \(100 %\)\n"
        r"heft: best step time [\d.]+ ms, 1 plan, 0 s\n",
        err,
    )
    pw.solve(problem, pw.solvers.HEFT())
    assert capsys.readouterr() == ("", "")


def test_plain_python_imports_no_ipython():
    code = (
        "import sys, placewright as pw\n"
        "problem = pw.Problem(pw.zoo.load('diamond'), pw.Cluster.parse('2xP100'))\n"
        "result = pw.solve(problem, pw.solvers.HEFT(), progress=True)\n"
        "result._repr_html_(); pw.report(result)._repr_html_()\n"
        "assert 'IPython' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_real_kernel_shows_a_result_a_bar_and_the_report(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat

    cells = [
        "import placewright as pw\n"
        "from placewright.solvers import progress_display\n"
        "progress_display.DELAY = 0.0\n"
        "problem = pw.Problem(pw.zoo.load('branches'), pw.Cluster.parse('2xP100+cpu'))",
        "result = pw.solve(problem, pw.solvers.RandomSearch(), pw.MaxEvaluations(20))",
        "result",
        "pw.report(result)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    bar, shown, page = (
        [output["data"]["text/html"] for output in cell.outputs if "data" in output]
        for cell in book.cells[1:]
    )
    assert len(bar) == 1
    assert "random: best step time" in bar[0]
    assert "by random" in shown[0]
    assert page[0].startswith("<iframe srcdoc=")
