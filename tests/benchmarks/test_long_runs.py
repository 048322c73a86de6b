"""Long runs of three systems, tiny: they go on from a checkpoint, and are reported."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.learning.long_runs import Run, main
from placewright.training.run import TrainingRun


def test_a_run_of_go_that_stops_goes_on_as_if_it_had_not(tmp_path):
    def line(name: str, stopped: bool) -> dict:
        run = Run("go", "txl-2", "rewards only", 16, 0, 80, str(tmp_path / name))
        if stopped:  # after its first update
            assert not TrainingRun(run.trainer(), run.folder, {}).train(max_seconds=0.0)
        found = run()
        del found["rate"]
        return found

    whole, parts = line("whole", stopped=False), line("parts", stopped=True)
    assert whole == parts
    assert 80 - 19 < whole["judged"] <= 80


def test_runs_are_reported_and_not_made_twice(tmp_path, capsys):
    out, checkpoints = tmp_path / "long.jsonl", tmp_path / "checkpoints"
    options = ["--systems", "go", "--plans", "2000", "--arms", "local search"]
    options += ["--out", str(out), "--checkpoints", str(checkpoints)]
    for _ in range(2):
        main(["run", *options])
    assert len(out.read_text().splitlines()) == 1
    main(["report", *options])
    assert "| txl-2 | local search | – | 1 |" in capsys.readouterr().out
