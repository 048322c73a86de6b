"""What is printed where: log levels, whole lines in a log, one form of figures."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading

import pytest

import placewright as pw
from placewright.cli.general_options import log_to_stderr
from placewright.cli.progress import Progress
from placewright.cli.render.tables import print_lines, print_table
from placewright.cli.wrapping import output_width, wrap_line

PLACE = ("place", "diamond", "--on", "2xP100+cpu", "--method", "single", "--no-explain")


def test_verbose_says_what_begins_and_what_ends(run):
    assert run(*PLACE).err == ""
    err = run(*PLACE, "-v").err
    assert "placewright: single: searching plans of 4 ops on 2xP100+cpu\n" in err
    assert "placewright: single: searching plans of 4 ops on 2xP100+cpu: done in " in err
    assert run("-v", *PLACE).err.count("searching plans") == err.count("searching plans")
    assert run(*PLACE, "--log-level", "info").err.count("done") == err.count("done")


def test_options_that_contradict_each_other_are_refused(run):
    ran = run(*PLACE, "-v", "--log-level", "error")
    assert ran.status == 2
    assert "-v and --log-level: they contradict each other" in ran.err


def test_the_logger_is_as_before_after_a_command(run):
    logger = logging.getLogger("placewright")
    before = logger.level, list(logger.handlers)
    run(*PLACE, "-vv")
    assert (logger.level, list(logger.handlers)) == before


def test_a_name_in_a_message_cannot_steer_the_terminal(capsys):
    with log_to_stderr(logging.INFO):
        logging.getLogger("placewright").info("reading %s", "a\x1b[2Jb")
    assert capsys.readouterr().err == "placewright: reading a\\x1b[2Jb\n"


def test_a_pipe_gets_whole_lines_without_blanks_at_the_end(tmp_path):
    words = [sys.executable, "-m", "placewright", "clusters", "--sources"]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    ran = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    out = ran.stdout
    lines = out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    from placewright import presets

    for preset in presets.device_presets():
        assert f"{preset.name}: {preset.source}" in lines


def test_tables_are_not_folded_in_a_pipe(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output_width() is None
    name = "a very long name " * 12
    print_table(("name", "figure"), [(name, "1 ms")])
    print_lines([f"{name}is one line"])
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 + 1


def test_no_figure_is_parted_from_its_unit():
    line = "another plan: 336.4 ms → 333.1 ms (−1 %) and 16 GiB, 12 plans"
    for width in range(20, 60):
        parts = wrap_line(line, width)
        assert " ".join(parts) == line
        assert not any(part[-1].isdigit() for part in parts)
        assert all(len(part) <= width for part in parts)


def test_shares_have_one_form_and_one_minus():
    percent, change = pw.units.format_percent, pw.units.format_change
    assert [percent(share) for share in (0.0, 0.0371, 0.9996, 1.0, 2.5)] == [
        *("0.0 %", "3.7 %", "100 %", "100 %", "250 %")
    ]
    assert percent(-0.0284) == "−2.8 %"
    assert percent(-0.00001) == "0.0 %"
    assert [change(share) for share in (0.0372, -0.0284, -0.000001)] == [
        *("+3.72 %", "−2.84 %", "0.00 %")
    ]


class Log(io.StringIO):
    """A stream that is no terminal, and can be waited on."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Condition()

    def write(self, text: str) -> int:
        with self.written:
            count = super().write(text)
            self.written.notify_all()
        return count

    def shows(self, text: str) -> bool:
        """Whether it shows a text, now or within ten seconds."""
        with self.written:
            return self.written.wait_for(lambda: text in self.getvalue(), timeout=10)


def test_a_log_gets_a_line_now_and_then():
    log = Log()
    with Progress("reading", log, interval=0.01) as progress:
        assert log.shows("reading (0 s)\n")
        progress.update("auto: best step time 1 ms", 0.5)
        assert log.shows("auto: best step time 1 ms (0 s, 50 %)\n")
    lines = log.getvalue()
    assert "\r" not in lines
    assert "\x1b" not in lines


def test_a_log_gets_no_progress_with_quiet():
    log, before = Log(), set(threading.enumerate())
    with log_to_stderr(logging.ERROR), Progress("reading", log, interval=0.0):
        pass
    assert log.getvalue() == ""
    for thread in set(threading.enumerate()) - before:  # none is left waiting
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("option", [(), ("-q",)])
def test_notes_are_silent_with_quiet(run, capsys, option):
    from placewright.cli.paths import print_note

    with log_to_stderr(logging.ERROR if option else logging.WARNING):
        print_note("this takes a while")
    assert capsys.readouterr().err == ("" if option else "this takes a while\n")
