"""Benchmarks can be imported, explain their options, and continue from their files of results."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").glob("*/*.py")
    if "\ndef main(" in path.read_text()
)


@pytest.fixture(autouse=True)
def _root_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def test_there_are_scripts():
    assert len(SCRIPTS) >= 18


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_its_help(name, monkeypatch, capsys):
    pytest.importorskip("torch")
    module = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_the_readme_has_a_row_for_every_script():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    named = set(re.findall(r"benchmarks(?:\.\w+)+", text))
    for script in SCRIPTS:
        assert script in named or script.rpartition(".")[0] in named


def test_an_option_without_help_is_refused():
    common = importlib.import_module("benchmarks.common")
    parser = common.make_parser("A benchmark.", "benchmarks.none")
    with pytest.raises(ValueError, match="has no help"):
        parser.add_argument("--plans", type=int)


def test_results_say_where_they_are_from_and_are_not_repeated(tmp_path):
    common = importlib.import_module("benchmarks.common")
    path = tmp_path / "out" / "results.jsonl"
    results = common.ResultFile(path, lambda row: row["seed"])
    assert 3 not in results
    results.append({"seed": 3, "best": 1.5})
    path.write_text(path.read_text() + '{"seed": 4, "be')  # a run that was killed
    again = common.ResultFile(path, lambda row: row["seed"])
    assert 3 in again
    assert 4 not in again
    (row,) = again.rows
    assert row["best"] == 1.5
    assert {"commit", "machine", "date"} < set(row)


def test_a_table_is_markdown(capsys):
    common = importlib.import_module("benchmarks.common")
    table = common.Table("what", "ms")
    table.row("auto", 1.5)
    table.row("none", None)
    with pytest.raises(ValueError, match="3 cells for 2 columns"):
        table.row(1, 2, 3)
    assert capsys.readouterr().out == "| what | ms |\n|---|---|\n| auto | 1.5 |\n| none |  |\n"


def test_an_interrupt_leaves_jobs_that_have_not_begun_for_the_next_run(tmp_path, monkeypatch):
    common = importlib.import_module("benchmarks.common")
    ended, ran = threading.Event(), []

    class Pool(ThreadPoolExecutor):
        def __init__(self, at_once, *settings):
            super().__init__(at_once)

        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            ended.set()
            super().shutdown(wait=wait)

    @dataclass(frozen=True)
    class NumberedJob:
        key: int

        def __call__(self):
            ran.append(self.key)
            if self.key == 0:
                raise KeyboardInterrupt
            assert ended.wait(60)
            return {"key": self.key}

    monkeypatch.setattr(common, "ProcessPoolExecutor", Pool)
    results = common.ResultFile(tmp_path / "results.jsonl", lambda row: row["key"])
    with pytest.raises(KeyboardInterrupt):
        common.run_jobs([NumberedJob(key) for key in range(5)], results, 1, str)
    assert set(ran) <= {0, 1}
    assert results.rows == []
