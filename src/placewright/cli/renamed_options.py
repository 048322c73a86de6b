"""Options under their names of release 0.1, which are read for one more release."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVERYWHERE = {"--use": "--devices", "--trials": "--cost-trials", "--spread": "--cost-noise"}
_BY_COMMAND = {
    "place": {
        "--verify": "--measure",
        "--start": "--warm-start",
        "--why": "--explain",
        "--no-why": "--no-explain",
    },
    "execute": {"--where": "--device-map"},
    "profile": {"--again": "--refresh"},
    "train": {
        "--graphs": "--family",
        "--plans": "--evaluations",
        "--track": "--tensorboard",
        "--run": "--run-dir",
        "--times": "--start-times",
    },
}


def replace_old_options(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command line with today's names, and a warning on stderr for each."""
    command = next((word for word in arguments if word in _BY_COMMAND), "")
    renamed = {**_EVERYWHERE, **_BY_COMMAND.get(command, {})}
    words: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if option in renamed:
            new_name = renamed[option]
            warn_renamed(option, new_name)
            word = f"{new_name}{equals}{value}"
        words.append(word)
    return words


def warn_renamed(old_name: str, new_name: str) -> None:
    """Say on stderr that a name has changed."""
    warning = f"{old_name} is now {new_name}: the next release reads the new name only"
    print(f"placewright: {warning}", file=sys.stderr)
