"""Writes the plain data of a cluster or of constraints as TOML that a person can edit.

Also checks the keys of a text that is to be read.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.files.validation import Data


MAX_KEY_PARTS = 32
"""Parts of a dotted key. Ours have 3; the time and memory of Python's reader grow with the square
of their number, and a key of 100 kB takes gigabytes."""
_STRING_OR_COMMENT = re.compile(  # a string that is not closed ends with the line or the text
    r""""{3}(?:\\.|[^\\])*?(?:"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z)|"(?:\\.|[^"\\\n])*"?|'[^'\n]*'?|\#[^\n]*""",
    re.DOTALL,
)
_END_OF_KEY = re.compile(r"[=,\[\]{}\n]")


def check_key_lengths(text: str) -> None:
    """Refuse a text with dotted keys of many parts, in time that grows with the text alone.

    Raises:
        ValueError: There is one.
    """
    without_strings = _STRING_OR_COMMENT.sub("s", text)
    if any(key.count(".") >= MAX_KEY_PARTS for key in _END_OF_KEY.split(without_strings)):
        raise ValueError(f"a dotted key has more than {MAX_KEY_PARTS} parts")


def to_toml(data: Data) -> str:
    """Data as TOML: plain values first, then tables, then lists of tables."""
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    lists = {key: value for key, value in data.items() if _is_list_of_tables(value)}
    plain = {key: value for key, value in data.items() if key not in tables and key not in lists}
    parts = [_lines(plain)]
    parts += [f"[{_key(key)}]\n{_lines(value)}" for key, value in tables.items()]
    parts += [
        f"[[{_key(key)}]]\n{_lines(entry)}" for key, value in lists.items() for entry in value
    ]
    return "\n".join(parts)


def _is_list_of_tables(value: object) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)
    )


def _lines(table: Data) -> str:
    return "".join(f"{_key(key)} = {_to_text(value)}\n" for key, value in table.items())


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_to_text(v)}" for key, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_to_text, value)) + "]"
    return repr(value)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _quote(key)


def _quote(text: str) -> str:
    # JSON and TOML have the same escapes, but TOML must also escape DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
