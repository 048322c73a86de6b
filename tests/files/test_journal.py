"""A journal: what was written is there again, whatever happens to the process or to the disk."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from placewright.errors import FileError
from placewright.files import journal as journal_module
from placewright.files.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

KEY = {"seed": 3, "problem": "abc"}
WRITER = """
import sys
from placewright.files.journal import Journal

section = Journal(sys.argv[1]).section("work", {"seed": 3, "problem": "abc"})
for number in range(len(section.records), 100_000):
    section.append({"number": number, "text": "x" * (number % 3_000)})
    print(number, flush=True)
"""


def filled(path: Path, count: int = 3) -> bytes:
    with Journal(path) as journal:
        section = journal.section("work", KEY)
        for number in range(count):
            section.append({"number": number, "seconds": 0.1 + number})
    return path.read_bytes()


def numbers(path: Path) -> list[int]:
    with Journal(path) as journal:
        return [record["number"] for record in journal.section("work", KEY).records]


def test_records_are_read_again_as_they_were_written_section_by_section(tmp_path):
    path = tmp_path / "run.journal"
    filled(path)
    with Journal(path) as journal:
        journal.section("other", {}).append({"any": [1, None, "ö\n"]})
        journal.section("work", KEY).append({"number": 3, "seconds": 1 / 3})
    with Journal(path) as journal:
        assert journal.section("other", {}).records == [{"any": [1, None, "ö\n"]}]
        records = journal.section("work", KEY).records
    assert [record["seconds"] for record in records] == [0.1, 1.1, 2.1, 1 / 3]


def test_a_record_is_synced_before_append_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        journal_module.os, "fsync", lambda file: synced.append(os.fstat(file).st_size)
    )
    with Journal(tmp_path / "run.journal") as journal:
        section = journal.section("work", KEY)
        section.append({"number": 0})
        assert synced[-1] == (tmp_path / "run.journal").stat().st_size


def test_a_journal_cut_anywhere_keeps_all_whole_lines_and_says_what_it_drops(tmp_path, caplog):
    content, path = filled(tmp_path / "whole"), tmp_path / "cut"
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content)):
        path.write_bytes(content[:length])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = numbers(path)
        whole_lines = sum(end <= length for end in ends)
        assert found == list(range(max(0, whole_lines - 2)))  # behind the header and the key
        assert ("half-written" in caplog.text) == (length not in (0, *ends))
        assert numbers(path) == found  # and the next process finds nothing to drop


def test_a_byte_that_changes_before_the_last_line_is_an_error_that_names_the_line(tmp_path):
    content, path = filled(tmp_path / "whole"), tmp_path / "damaged"
    ends = [at for at, byte in enumerate(content) if byte == ord("\n")]
    for at in range(ends[0] + 1, ends[-2]):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        line = 1 + sum(end < at for end in ends)
        with pytest.raises(FileError, match=f"line {line} is damaged, and it is not the last"):
            Journal(path)
        assert len(path.read_bytes()) == len(content)


def test_a_line_that_is_lost_or_moved_is_an_error(tmp_path):
    first, second, *rest = filled(tmp_path / "whole").splitlines(keepends=True)
    for lines in ([first, second, *rest[1:]], [first, second, *rest[1::-1], *rest[2:]]):
        (tmp_path / "damaged").write_bytes(b"".join(lines))
        with pytest.raises(FileError, match="line 3 is damaged"):
            Journal(tmp_path / "damaged")


def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    for content in (b"my notes", b"my notes\n", b'{"placewright": "plan"}\n', b"\0" * 40):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"notes.txt: is no journal: give the name of a new"):
            Journal(path)
        assert path.read_bytes() == content
    with pytest.raises(FileError, match="is no plain file"):
        Journal("/dev/full")
    with pytest.raises(FileError, match="cannot be opened: no such file or directory"):
        Journal(tmp_path / "missing" / "run.journal")


def test_a_journal_of_another_run_or_release_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run.journal"
    filled(path)
    with (
        Journal(path) as journal,
        pytest.raises(FileError, match="of another run: seed is 3 there and 4 here; give"),
    ):
        journal.section("work", {**KEY, "seed": 4})
    monkeypatch.setattr(journal_module, "__version__", "99.0")
    with pytest.raises(FileError, match=r"written by placewright [\d.]+: this is 99.0"):
        Journal(path)


def test_a_full_disk_is_an_error_and_leaves_the_earlier_records(tmp_path):
    """A limit on the size of files stands for the disk: the write ends in the middle of a line."""
    path = tmp_path / "run.journal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path) as journal:
        section = journal.section("work", KEY)
        section.append({"number": 0})
        size = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, hard))
        try:
            with pytest.raises(FileError, match="cannot be written: file too large; what it holds"):
                section.append({"number": 1, "text": "x" * 1_000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.stat().st_size == size
        section.append({"number": 2})  # there is space again
    assert numbers(path) == [0, 2]


def test_two_processes_cannot_write_one_journal(tmp_path):
    path = tmp_path / "run.journal"
    with Journal(path), pytest.raises(FileError, match="another process writes this journal"):
        Journal(path)
    with Journal(path):
        command = [sys.executable, "-c", WRITER, str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "another process writes this journal" in ran.stderr
    assert numbers(path) == []


def kill_writer(path: Path, lines: int) -> int:
    """Start a writer, kill it after so many records, and return the last that it finished."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(lines):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        finished = writer.stdout.read().split()
    return int(finished[-1]) if finished else -1


def check_kills(path: Path, kills: int) -> None:
    for kill in range(kills):
        last = kill_writer(path, 20 + 37 * kill % 200)
        with Journal(path) as journal:
            records = journal.section("work", KEY).records
        # All that it said to be finished, at most one more, each once and whole.
        assert len(records) in ((last + 1, last + 2) if last >= 0 else range(20, 10_000))
        assert [record["number"] for record in records] == list(range(len(records)))
        assert all(len(record["text"]) == record["number"] % 3_000 for record in records)


def test_a_writer_that_is_killed_three_times_loses_nothing_that_it_finished(tmp_path):
    check_kills(tmp_path / "run.journal", 3)


@pytest.mark.slow
def test_a_writer_that_is_killed_fifty_times_loses_nothing_that_it_finished(tmp_path):
    check_kills(tmp_path / "run.journal", 50)
