"""A journal: a file to which a long run adds each finished piece of work, so that none is lost.

A line holds a checksum and a record in JSON. A record is on the disk when `append` returns. The
checksum covers the line before as well, so that a line that is changed, lost or moved is noticed. A
process that is killed leaves a half-written last line at most, which the next one drops. The file
is locked while it is open: two processes cannot write one journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError
from placewright.files.header import kind_of, make_header
from placewright.files.storage import describe_failure
from placewright.version import __version__

if TYPE_CHECKING:
    from placewright.files.validation import Data

MAX_RECORD_BYTES = 1 << 28
"""Bytes of one record: a file may be damaged, and a line is read whole."""
_DIGEST_BYTES = 8
_CHECKSUM_LENGTH = 2 * _DIGEST_BYTES

logger = logging.getLogger("placewright")
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Journal:
    """An open journal; the records of earlier runs are in its sections.

    Args:
        path: The file, which is made if it does not exist.

    Raises:
        FileError: It cannot be opened, is in use by another process, is no journal, is damaged
            before its last line, or was written by another release.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._sections: dict[str, JournalSection] = {}
        self._lock = threading.Lock()
        self._file = self._open()
        try:
            self._checksum, self._end = "", 0
            header = {**make_header("journal"), "release": __version__}
            if self._read(header):
                self._check_header(header)
            else:
                self._write(header)
                _sync_folder(self.path)
        except BaseException:
            self.close()
            raise

    def section(self, name: str, key: Data) -> JournalSection:
        """The records of one part of the run, to read and to add to.

        Args:
            key: Whatever the records depend on. Earlier records are of use for the same key only.

        Raises:
            FileError: The journal has this section with another key, or cannot be written.
        """
        key = json.loads(_encode(key))  # as it is read: tuples are lists
        section = self._sections.get(name)
        if section is None:
            self._append({"section": name, "key": key})
            section = self._sections[name] = JournalSection(self, name, key)
        for fact in (*key, *section.key):
            earlier, now = section.key.get(fact), key.get(fact)
            if earlier != now:
                difference = f"{earlier!r} there and {now!r} here"
                raise FileError(
                    f"{self.path}: the journal is of another run: {fact} is "
                    f"{difference if len(difference) < 80 else 'not the same'}; give the options "
                    "of that run, or another file"
                )
        return section

    def close(self) -> None:
        """Close the file, which unlocks it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> int:
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except (OSError, ValueError) as error:
            raise FileError(f"{self.path}: cannot be opened: {describe_failure(error)}") from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FileError(f"{self.path}: is no plain file: expected a journal, or a new file")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise FileError(
                f"{self.path}: another process writes this journal, or it cannot be locked "
                f"({_reason(error)}): wait for that process, or give another file"
            ) from None
        return file

    def _read(self, header: Data) -> bool:
        """Read all records; whether there is a header. A last line that is damaged is dropped."""
        with open(self._file, "rb", closefd=False) as stream:
            stream.seek(0)
            while line := stream.readline(MAX_RECORD_BYTES + _CHECKSUM_LENGTH + 2):
                record = self._parse(line)
                if record is None:
                    number = 1 + self._count
                    is_last = not stream.read(1)
                    is_header = bool(self._end) or self._line(header).startswith(line)
                    if not (is_last and is_header):
                        raise FileError(f"{self.path}: {_damage(number, is_header)}")
                    logger.warning(
                        "%s: line %d is half-written, as of a process that was killed: it is "
                        "dropped, and its work is done again",
                        *(self.path, number),
                    )
                    os.ftruncate(self._file, self._end)
                    break
                self._accept(line, record)
        return self._end > 0

    @property
    def _count(self) -> int:
        """Lines so far."""
        header = 1 if self._end else 0
        return header + sum(1 + len(section.records) for section in self._sections.values())

    def _parse(self, line: bytes) -> Any:
        """The record of a line; None if it is damaged."""
        if not line.endswith(b"\n"):
            return None
        text = line[_CHECKSUM_LENGTH + 1 : -1]
        if line[: _CHECKSUM_LENGTH + 1] != f"{self._next_checksum(text)} ".encode():
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    def _accept(self, line: bytes, record: Any) -> None:
        """Keep what was read."""
        if not self._end:
            self._header = record
        elif "key" in record:
            name = record["section"]
            self._sections[name] = JournalSection(self, name, record["key"])
        else:
            self._sections[record["section"]].records.append(record["record"])
        self._checksum = line[:_CHECKSUM_LENGTH].decode()
        self._end += len(line)

    def _check_header(self, expected: Data) -> None:
        try:
            kind = kind_of(self._header)
        except FileError as error:
            raise FileError(f"{self.path}: {error}") from None
        if kind != "journal":
            raise FileError(f"{self.path}: is of kind {kind!r}: expected a journal")
        if self._header != expected:
            raise FileError(
                f"{self.path}: the journal was written by placewright "
                f"{self._header.get('release')}: this is {__version__}, which may find other "
                "plans; give another file"
            )

    def _append(self, record: Data) -> None:
        with self._lock:
            if self._file < 0:
                raise FileError(f"{self.path}: the journal is closed")
            self._write(record)

    def _write(self, record: Data) -> None:
        """Write a line to the disk, or leave the file as it was."""
        line = self._line(record)
        if len(line) > MAX_RECORD_BYTES:
            raise FileError(
                f"{self.path}: a record has {len(line):,} bytes: expected at most "
                f"{MAX_RECORD_BYTES:,}"
            )
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            if not isinstance(error, OSError):
                raise
            raise FileError(
                f"{self.path}: cannot be written: {_reason(error)}; what it holds stays readable: "
                "make space, and run the same command again to go on from there"
            ) from None
        self._checksum = line[:_CHECKSUM_LENGTH].decode()
        self._end += len(line)

    def _line(self, record: Data) -> bytes:
        text = _encode(record).encode()
        return b"%s %s\n" % (self._next_checksum(text).encode(), text)

    def _next_checksum(self, text: bytes) -> str:
        digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=self._checksum.encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class JournalSection:
    """One part of a journal: its key, and its records in the order in which they were written."""

    journal: Journal = field(repr=False)
    name: str
    key: Data
    records: list[Data] = field(default_factory=list)

    def append(self, record: Data) -> None:
        """Write a record; it is on the disk afterwards.

        Raises:
            FileError: It cannot be written; the journal is then as it was before.
        """
        self.journal._append({"section": self.name, "record": record})
        self.records.append(record)


def _damage(number: int, has_header: bool) -> str:
    if not has_header:
        return "is no journal: give the name of a new file, or of a journal"
    return (
        f"line {number} is damaged, and it is not the last: expected lines as they were written; "
        "restore the file, or give another one and begin again"
    )


def _sync_folder(path: Path) -> None:
    """Write the file's name to the disk, where the file system can do that."""
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _reason(error: Exception) -> str:
    return ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()
