"""Reads and writes plain data: JSON or TOML, gzipped or not, by the file name's suffix.

JSON is strict: no NaN, no infinity, no key twice. A file is written whole or not at all.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import secrets
import stat
import tomllib
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError
from placewright.files.toml import check_key_lengths, to_toml

if TYPE_CHECKING:
    from placewright.files.validation import Data

MAX_UNZIPPED_RATIO = 50
"""How much larger a file may become when it is unzipped; graphs and clusters become 5 to 20 times
as large, and a kilobyte that is made for it a megabyte."""
MAX_SMALL_UNZIPPED = 2**24
"""Bytes up to which the ratio does not matter."""


def read_data(path: Path) -> object:
    """The data in a file.

    Raises:
        FileError: It is missing, truncated, or neither JSON nor TOML.
    """
    try:
        content = path.read_bytes()
        if _is_gzipped(path):
            content = _unzip(content)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise FileError("there is no such file") from None
    except IsADirectoryError:
        raise FileError("is a folder: expected a file") from None
    except UnicodeDecodeError as error:
        raise FileError(f"byte {error.start} is not UTF-8: expected text") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileError(f"cannot be unzipped, damaged or truncated: {error}") from None
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        raise FileError(f"cannot be read: {_reason(error)}") from None
    if not text.strip():
        raise FileError("the file is empty")
    return _from_toml(text) if is_toml(path) else _from_json(text)


def write_data(data: Data, path: Path, sync: bool = False) -> None:
    """Write data to a file; if that fails, an older file is unchanged.

    Args:
        sync: See `write_bytes`.

    Raises:
        FileError: It cannot be written there, or not in that format.
    """
    try:
        content = (to_toml(data) if is_toml(path) else to_json(data)).encode()
    except ValueError as error:  # NaN, or half a surrogate pair in a TOML string
        raise FileError(f"cannot be written: {error}") from None
    if _is_gzipped(path):
        content = gzip.compress(content, compresslevel=6, mtime=0)  # same data, same bytes
    write_bytes(content, path, sync)


def write_bytes(content: bytes, path: Path, sync: bool = False) -> None:
    """Write bytes to a file; if that fails, an older file is unchanged.

    Args:
        sync: Wait until the content is on the disk before it takes the older file's place, so that
            there is one or the other even after a power failure.

    Raises:
        FileError: It cannot be written there.
    """
    try:
        _replace_file(path, content, sync)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be written: {describe_failure(error)}") from None


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless it is there.

    Raises:
        FileError: It cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be made: {describe_failure(error)}") from None


def to_json(data: Data) -> str:
    """Data as JSON, with one op, device or link per line."""
    return _format_json(data, "") + "\n"


def _unzip(content: bytes) -> bytes:
    """The content of a gzip file, of which no more is unzipped than it may hold."""
    limit = max(MAX_SMALL_UNZIPPED, MAX_UNZIPPED_RATIO * len(content))
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        unzipped = stream.read(limit + 1)
    if len(unzipped) > limit:
        raise FileError(
            f"has {len(content):,} bytes and more than {limit:,} unzipped: expected at most "
            f"{MAX_UNZIPPED_RATIO} times as many; unzip it first if you trust it"
        )
    return unzipped


def _from_json(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno} column {error.colno}"
        raise FileError(f"is not JSON, or truncated: {error.msg} at {position}") from None
    except RecursionError:
        raise FileError("is nested too deeply to be read") from None
    except ValueError as error:  # an integer of thousands of digits
        raise FileError(f"is not JSON that can be read: {error}") from None


def _from_toml(text: str) -> object:
    try:
        check_key_lengths(text)
        return tomllib.loads(text)
    except RecursionError:
        raise FileError("is nested too deeply to be read") from None
    except ValueError as error:
        raise FileError(f"is not TOML, or truncated: {error}") from None


def _refuse_constant(word: str) -> None:
    raise FileError(f'holds {word}, which is not JSON: expected finite numbers, or "inf" as text')


def _unique(pairs: list[tuple[str, Any]]) -> Data:
    data = dict(pairs)
    if len(data) < len(pairs):
        (duplicate, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise FileError(f"has the key {duplicate!r} twice in one object: keep one")
    return data


_dumps = json.JSONEncoder(allow_nan=False).encode


def _format_json(value: Any, pad: str) -> str:
    if isinstance(value, dict) and "placewright" in value:  # a noun: one key per line
        pad += " "
        lines = [f"{pad}{_dumps(key)}: {_format_json(item, pad)}" for key, item in value.items()]
    elif isinstance(value, dict) and value:
        lines = [f"{pad} {_dumps(key)}: {_dumps(item)}" for key, item in value.items()]
    elif isinstance(value, list) and value and isinstance(value[0], dict | list):
        lines = [f"{pad} {_dumps(item)}" for item in value]
        return "[\n" + ",\n".join(lines) + "\n" + pad + "]"
    else:
        return _dumps(value)
    return "{\n" + ",\n".join(lines) + "\n" + pad + "}"


def _replace_file(path: Path, content: bytes, sync: bool) -> None:
    if path.exists() and not path.is_file():  # a pipe or a terminal cannot be replaced
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))  # a symbolic link stays one
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")  # see `is_temporary`
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a name is of a file that was not written to the end."""
    return re.fullmatch(r"\.[0-9a-f]{16}\.tmp", path.name) is not None


def _reason(error: Exception) -> str:
    return ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()


def describe_failure(error: Exception) -> str:
    """Why a file cannot be written, and what to do about it where that can be said."""
    code, reason = error.errno if isinstance(error, OSError) else None, _reason(error)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}; what was there before is unchanged: make space, or write elsewhere"
    if code in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{reason}: write to a folder that you may write to"
    return reason


def _is_gzipped(path: Path) -> bool:
    return path.suffix == ".gz"


def is_toml(path: Path) -> bool:
    """Whether a file of this name is TOML; all others are JSON."""
    return (path.with_suffix("") if _is_gzipped(path) else path).suffix == ".toml"
