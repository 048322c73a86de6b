"""Writes the plain data of a cluster or of constraints as TOML that a person can edit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.files.validation import Data


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
