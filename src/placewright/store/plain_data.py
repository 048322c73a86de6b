"""Plain data in the store: strict JSON, of which no more is read than a value may have."""

from __future__ import annotations

import json
from typing import Any

from placewright.errors import StoreError

MAX_CHARACTERS = 64 << 20
"""Characters of one value. A larger one is neither written nor read: a database may be damaged."""
MAX_NAME = 200
"""Characters of a name."""


def encode(data: dict[str, Any]) -> str:
    """Data as text.

    Raises:
        StoreError: They are no plain data, or too large.
    """
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a value cannot be stored: {error}") from None
    if len(text) > MAX_CHARACTERS:
        raise StoreError(
            f"a value of {len(text):,} characters is not stored: expected {MAX_CHARACTERS:,} or "
            "fewer"
        )
    return text


def decode(text: object) -> dict[str, Any]:
    """The data in a text.

    Raises:
        StoreError: It holds none.
    """
    try:
        data = json.loads(text, parse_constant=_refuse) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise StoreError("a stored value is damaged: expected a JSON object")
    return data


def clean_name(text: str) -> str:
    """A name that every database takes: of limited length, in UTF-8, without a NUL."""
    return text[:MAX_NAME].encode("utf-8", "replace").decode().replace("\0", "?")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
