"""Progress: a bar with the best time so far on a terminal, and only when it takes long."""

from __future__ import annotations

import io
import sys
import threading

import pytest

import placewright as pw
from placewright.cli.progress import Progress


class Terminal(io.StringIO):
    """A stream that says that it is a terminal, and can be waited on."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Condition()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self.written:
            count = super().write(text)
            self.written.notify_all()
        return count

    def shows(self, text: str) -> bool:
        """Whether it shows a text, now or within ten seconds."""
        with self.written:
            return self.written.wait_for(lambda: text in self.getvalue(), timeout=10)


def search(stop=None):
    """A search that has judged one plan in order of the graph."""
    problem = pw.Problem(pw.zoo.load("layered"), pw.Cluster.parse("2xP100+cpu"))
    found = pw.Search(problem, stop or pw.MaxEvaluations(4), seed=0)
    pw.solvers.SingleDevice("gpu0").run(found)
    return found


def test_the_best_time_so_far_is_shown_and_the_line_is_gone_at_the_end(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with Progress("reading layered", terminal, delay=0.0) as progress:
        assert terminal.shows("reading layered")
        progress.watch("heft")(search())
        best = pw.units.format_seconds(search().key[1])
        assert terminal.shows(f"heft: best step time {best}, 1 plan")
        progress.watch("m-etf", index=1, total=2)
        assert terminal.shows(f"m-etf: best step time {best} ")
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is wiped


@pytest.mark.parametrize(
    ("stop", "share"),
    [
        (pw.MaxEvaluations(4), 1 / 4),
        (pw.MaxEvaluations(2) | pw.NoImprovement(9), 1 / 2),
        (pw.MaxTime(0), 1.0),
        (pw.solvers.Stop(), None),
    ],
)
def test_the_bar_is_as_long_as_the_stop_rule_says(stop, share):
    with Progress("reading", io.StringIO()) as progress:
        progress.watch("heft")(search(stop))
        assert progress.fraction == share


def test_of_several_methods_the_bar_is_shared():
    with Progress("reading", io.StringIO()) as progress:
        look = progress.watch("heft", index=2, total=4)
        assert progress.fraction == 2 / 4
        look(search(pw.MaxEvaluations(2)))
        assert progress.fraction == (2 + 1 / 2) / 4


def test_no_bar_is_shown_without_a_terminal():
    stream = io.StringIO()
    with Progress("reading", stream, delay=0.0, interval=3600.0) as progress:
        progress.watch("heft")(search())
    assert stream.getvalue() == ""


def test_what_is_printed_meanwhile_goes_to_stderr(capsys):
    terminal, stdout = Terminal(), sys.stdout
    with Progress("reading", terminal, delay=60.0):
        print("from a model")
    with Progress("reading", terminal, delay=0.0):
        assert terminal.shows("reading")  # the bar, which has a way of its own with stdout
    assert sys.stdout is stdout
    assert capsys.readouterr() == ("", "from a model\n")


def test_nothing_is_shown_by_what_is_quick():
    terminal = Terminal()
    with Progress("reading", terminal, delay=60.0) as progress:
        progress.watch("heft")(search())
    assert terminal.getvalue() == ""


def test_a_plan_that_does_not_fit_is_marked():
    problem = pw.Problem(
        pw.zoo.load("offload"),
        pw.Cluster.parse("P100"),
        constraints=pw.Constraints(limits={"gpu0": 2**30}),
    )
    found = pw.Search(problem, pw.MaxEvaluations(1), seed=0)
    pw.solvers.SingleDevice("gpu0").run(found)
    with Progress("reading", io.StringIO()) as progress:
        progress.watch("single")(found)
        assert ", does not fit, 1 plan" in progress.text
