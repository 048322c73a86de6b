"""Runs at scale, tiny and on the CPU: slices go on as if they had never stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from benchmarks.common import ResultFile, read_rows
from benchmarks.learning import at_scale
from benchmarks.learning.at_scale import ScaleRun, SliceOver, key_of
from benchmarks.simulator import speed
from placewright import files, zoo

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tiny(tmp_path: Path) -> ScaleRun:
    """Six groups on two devices and a CPU, 20 updates of 32 plans."""
    graph = zoo.load("layered:ops=14,width=3,seed=2")
    files.save(graph, at_scale.graph_file(tmp_path, "tiny"))
    return ScaleRun(
        "tiny", "2xK80+Haswell", "top", 32, 0, 650, 8, 6, device="cpu", graphs=str(tmp_path),
        checkpoints=str(tmp_path / "whole"),
    )  # fmt: skip


def test_a_run_in_slices_is_one_that_was_never_stopped(tiny, tmp_path, monkeypatch, capsys):
    whole = tiny()
    assert 640 < whole["judged"] <= 650
    sliced = replace(tiny, checkpoints=str(tmp_path / "sliced"))
    ticks = iter(range(10**6))
    monkeypatch.setattr(at_scale.time, "time", lambda: float(next(ticks)))
    with pytest.raises(SliceOver, match="not begun in this slice"):
        replace(sliced, ends_at=0.0)()
    # No slice has time left after its first updates; 20 updates are made 1, 1, 2, 4, 8, ... a time.
    for _ in range(4):
        with pytest.raises(SliceOver, match="of 650 plans; call again to go on"):
            replace(sliced, ends_at=next(ticks) + 2.0)()
    monkeypatch.undo()
    found = sliced()
    assert "goes on from" in capsys.readouterr().out
    for name in ("best", "judged", "updates", "curve", "learned"):
        assert found[name] == whole[name], name
    assert found["seconds"] > 0


@pytest.mark.parametrize("arm", ["never learns", "population annealing"])
def test_other_arms_have_as_many_plans(tiny, arm):
    found = replace(tiny, arm=arm)()
    assert 600 < found["judged"] <= 650
    assert found["curve"][-1][1] == found["best"]


def test_results_are_reported_and_drawn(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(at_scale, "ROWS", {"tiny": "2xK80+Haswell"})
    monkeypatch.setattr("benchmarks.learning.gate.ROWS", {"tiny": "2xK80+Haswell"})
    out = tmp_path / "results.jsonl"
    results = ResultFile(out, key_of)
    for arm in ("top", "population annealing"):
        results.append(replace(tiny, arm=arm)())
    assert {row["arm"] for row in read_rows(out)} == {"top", "population annealing"}
    assert tiny.key in ResultFile(out, key_of)
    options = ["--plans", "650", "--out", str(out), "--folder", str(tmp_path)]
    at_scale.main(["report", *options])
    assert "| tiny | top | 32 | 1 |" in capsys.readouterr().out
    at_scale.main(["figures", *options])
    assert "<svg" in (tmp_path / "at-scale.svg").read_text()


def test_speed_prints_where_the_time_goes(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(at_scale, "ROWS", {"tiny": "2xK80+Haswell"})
    at_scale.main(
        ["speed", "--rows", "tiny", "--device", "cpu", "--batches", "16", "--groups", "6",
         "--hidden", "8", "--precisions", "float32", "--slice-seconds", "0.1",
         "--graphs", str(tmp_path), "--arms", "top"]
    )  # fmt: skip
    assert "| tiny | 16 | float32 | " in capsys.readouterr().out


def test_plans_that_bounds_leave_open_are_judged_exactly():
    """Blocks of 500 ops: with a capacity far above all peaks no plan is open, at them many are."""
    problem = speed.layered_problem(500, "in order")
    plans = speed.distinct_plans(problem, "blocks", 32)
    shares = [speed.fit_known_rate(problem, plans, limit, "cpu", 1)[1] for limit in (10.0, 1.0)]
    assert shares[0] == 0.0
    assert shares[1] > 0.2
