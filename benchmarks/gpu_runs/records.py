"""Files of the runs on a GPU: few, so that they can be carried from one machine to the next.

A work folder has what commands write: raw lines in `rows/`, logs in `logs/`, and other files. The
results folder has all that is worth keeping of it in at most eight files.
"""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING, Any

from benchmarks.common import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LOG_CHARACTERS = 12_000
"""Of each log, the last so many are kept."""
ARCHIVE_BYTES = 15 * 2**20
"""A larger archive of files is left out."""
RUNS, ROWS, LOGS, TABLE = "runs.jsonl", "rows.jsonl", "logs.txt", "table.md"


class Records:
    """The state of all commands, and the folders around it.

    Args:
        work: Where commands write.
        results: What is kept.
    """

    def __init__(self, work: Path, results: Path) -> None:
        self.work, self.results = work, results
        for folder in (work / "rows", work / "logs", results):
            folder.mkdir(parents=True, exist_ok=True)
        self.runs: dict[str, dict[str, Any]] = {}

    def restore(self, earlier: Iterable[Path]) -> None:
        """Take up the work folder, or the first folder of results if it has none."""
        path = self.work / RUNS
        if not path.exists():
            for folder in earlier:
                if (folder / RUNS).exists():
                    self._unpack(folder)
                    break
        self.runs = {row["command"]: row for row in read_rows(path)}

    def _unpack(self, folder: Path) -> None:
        for line in read_rows(folder / ROWS):
            with (self.work / "rows" / line["file"]).open("a") as file:
                file.write(json.dumps(line["row"]) + "\n")
        for path in folder.glob("kept-*.tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(self.work, filter="data")
            (self.results / path.name).write_bytes(path.read_bytes())
        logs = (folder / LOGS).read_text() if (folder / LOGS).exists() else ""
        for part in logs.split("\n=== ")[1:]:
            name, _, text = part.partition("\n")
            self.log_path(name).write_text(text)
        (self.work / RUNS).write_text((folder / RUNS).read_text())

    def log_path(self, command: str) -> Path:
        """The log of a command."""
        return self.work / "logs" / f"{file_name(command)}.log"

    def add(self, run: dict[str, Any]) -> None:
        """Add the line of a run; that of an earlier one of the same command goes."""
        self.runs.pop(run["command"], None)
        self.runs[run["command"]] = run
        self.save()

    def save(self) -> None:
        """Write all small files."""
        lines = "".join(json.dumps(run) + "\n" for run in self.runs.values())
        for folder in (self.work, self.results):
            (folder / RUNS).write_text(lines)
        rows = [
            json.dumps({"file": path.name, "row": row}) + "\n"
            for path in sorted((self.work / "rows").glob("*.jsonl"))
            for row in read_rows(path)
        ]
        (self.results / ROWS).write_text("".join(rows))
        logs = [(path.stem, tail(path)) for path in sorted((self.work / "logs").glob("*.log"))]
        (self.results / LOGS).write_text("".join(f"\n=== {name}\n{text}" for name, text in logs))
        (self.results / TABLE).write_text(table_text(self.runs.values()))

    def keep(self, command: str, paths: Iterable[str]) -> None:
        """Pack files of a command for a later call on another machine."""
        there = [path for path in paths if (self.work / path).exists()]
        if not there:
            return
        name = f"kept-{file_name(there[0].partition('/')[0])}.tar.gz"
        partial = self.work / name
        with tarfile.open(partial, "w:gz") as archive:
            for path in there:
                archive.add(self.work / path, path)
        if partial.stat().st_size <= ARCHIVE_BYTES:
            partial.replace(self.results / name)
        else:
            print(f"{command}: {partial.stat().st_size:,} bytes of files are left out", flush=True)
            partial.unlink()


def file_name(command: str) -> str:
    """A command's name in letters that any file may have."""
    return "".join(each if each.isalnum() or each in ".-" else "-" for each in command)


def tail(path: Path) -> str:
    """The end of a log."""
    return path.read_text(errors="replace")[-LOG_CHARACTERS:] if path.exists() else ""


def last_line(path: Path) -> str:
    """The last line of a log that says anything."""
    lines = [line.strip() for line in tail(path).splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def table_text(runs: Iterable[dict[str, Any]]) -> str:
    """A Markdown table of commands."""
    lines = ["| command | seconds | exit | state | last line |", "|---|--:|--:|---|---|"]
    for run in runs:
        last = run["last_line"].replace("|", "\\|")
        cells = run["command"], f"{run['seconds']:.0f}", run["exit"], run["state"], last
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
