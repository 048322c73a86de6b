"""What every test of the command line needs: a way to run it, and a few files to run it on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from placewright.cli import main, progress
from placewright.solvers import comparison, results


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Stdout as one strict JSON object."""

        def refuse(word):
            raise AssertionError(f"{word} is not JSON")

        found = json.loads(self.out, parse_constant=refuse)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command as a person would, in an empty folder and 80 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    # Searches would go on for as long as people usually wait.
    monkeypatch.setattr(results, "DEFAULT_BUDGET", "0.2s")
    monkeypatch.setattr(comparison, "COMPARE_BUDGET", "0.2s")
    # On a busy machine a command may take long enough for lines of progress.
    monkeypatch.setattr(progress, "LINE_INTERVAL", 3600.0)

    def command(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as exit_:
            main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return Ran(int(exit_.value.code or 0), captured.out, captured.err)

    return command


@pytest.fixture
def workload(tmp_path):
    """A workload of three nodes on two accelerators and a CPU: 4, 6 and 2 ms, 1 ms an edge."""
    times = {1: 4.0, 2: 6.0, 3: 2.0}
    data = {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 1000,
        "nodes": [
            {
                "id": identity,
                "name": f"layer{identity}",
                "supportedOnFpga": 1,
                "cpuLatency": 10 * time,
                "fpgaLatency": time,
                "isBackwardNode": 0,
                "size": 100,
            }
            for identity, time in times.items()
        ],
        "edges": [
            {"sourceId": 1, "destId": 2, "cost": 1.0},
            {"sourceId": 2, "destId": 3, "cost": 1.0},
        ],
    }
    path = tmp_path / "tiny_workload.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def split(tmp_path):
    """The workload's node 1 on the first accelerator, nodes 2 and 3 on the second."""
    path = tmp_path / "tiny_split.json"
    path.write_text(
        json.dumps({"fpgas": [{"nodes": [1]}, {"nodes": [2, 3]}], "cpus": [{"nodes": []}]})
    )
    return path
