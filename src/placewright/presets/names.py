"""Names of presets as people write them: `RTX4090`, `rtx-4090`, `NVIDIA RTX 4090` and `4090`."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Preset = TypeVar("Preset")

_SEPARATORS = re.compile(r"[-_\s]+")
_MAKERS = ("nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct", "intel", "apple")
_FAMILY = re.compile(r"([^\d]*)(\d*)")


def normalize(word: str) -> str:
    """A name without case, dashes and spaces; one between two digits stays: A100-80GB."""

    def separator(match: re.Match[str]) -> str:
        before, after = word[match.start() - 1 : match.start()], word[match.end() : match.end() + 1]
        return "-" if before.isdigit() and after.isdigit() else ""

    return _SEPARATORS.sub(separator, word).lower()


def find(word: str, table: Mapping[str, Preset]) -> Preset | None:
    """The preset of that name in a table by normalized names, without a maker's name or `RTX`."""
    name = normalize(word)
    while True:
        for spelling in (name, f"rtx{name}"):
            if spelling in table:
                return table[spelling]
        maker = next((maker for maker in _MAKERS if name.startswith(maker)), None)
        if maker is None:
            return None
        name = name[len(maker) :]


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most resembles, if they are of one family.

    A family is the letters that names begin with, and two digits of a longer number: L40S resembles
    L4 but not K40, RTX2080 no RTX3080. Where one family's name begins the other's, it is unclear
    which is meant, so they count as one.
    """
    family = _family(word)
    names = {normalize(name): name for name in known}
    relatives = [
        name
        for name in names
        if (other := _family(name)) and (other.startswith(family) or family.startswith(other))
    ]
    if family == normalize(word):  # letters alone: any of them may be wrong
        relatives = [name for name in names if not any(map(str.isdigit, name))]
    matches = difflib.get_close_matches(normalize(word), relatives, n=1, cutoff=0.5)
    return names[matches[0]] if matches else None


def _family(word: str) -> str:
    name = normalize(word)
    if name[:1].isdigit():
        name = f"rtx{name}"
    match = _FAMILY.match(name)
    assert match is not None  # both parts may be empty
    letters, digits = match.groups()
    return letters + (digits[:2] if len(digits) > 3 else "")
