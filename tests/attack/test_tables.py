"""The command that runs the tables in several processes counts verdicts, and outlives a crash."""

from __future__ import annotations

import json
import sys

import pytest
from attack import tables
from attack.tables import Server, items_of, main, try_item


def test_all_parts_have_items_and_the_longest_come_first():
    parts = [part for part, _ in items_of(tables.PARTS)]
    assert set(parts) == set(tables.PARTS)
    assert parts[0] == "training_loops"
    assert {part for part, _ in items_of(["decoders"])} == {"decoders"}


def test_a_use_that_draws_random_numbers_is_skipped_on_a_gpu():
    name = "randomness-dropout_draws_the_same"
    assert try_item("odd_uses", name, "streaming").word == "skipped"


def test_a_tally_is_printed_and_a_second_run_tries_nothing(tmp_path, monkeypatch, capsys):
    path = tmp_path / "tables.jsonl"
    arguments = ["attack.tables", "odd_uses", "--kind", "alternating", "--jobs", "1"]
    arguments += ["--names", "arguments-zero", "--out", str(path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 0
    last = "alternating: 1 equal, 0 refused, 0 skipped, 0 differ, 0 not tried\n"
    assert capsys.readouterr().out.endswith(last)
    monkeypatch.setattr(tables, "Server", None)
    assert main() == 0
    assert capsys.readouterr().out.endswith(last)
    assert len(path.read_text().splitlines()) == 1


def test_a_process_that_ends_is_a_difference_and_another_one_follows(monkeypatch):
    server = Server("alternating")
    server.command = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(3)"]
    assert server.ask(("odd_uses", "any")) == ("differ", ["its process ends with 3"])
    answer = json.dumps(["equal", []])
    server.command = [sys.executable, "-c", f"input(); print({answer!r})"]
    assert server.ask(("odd_uses", "any")).word == "equal"
    server.close()


def test_kind_gpu_is_refused_where_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr(tables.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["attack.tables", "--kind", "gpu"])
    with pytest.raises(SystemExit):
        main()
    assert "needs a CUDA device: this machine has none" in capsys.readouterr().err
