"""Checks the arguments of zoo networks and writes the text that loads a network."""

from __future__ import annotations

from placewright.errors import ConfigError

MAX_COUNT = 10_000_000


def check_counts(name: str, **counts: int) -> None:
    """Raise ConfigError unless all are from 1 to `MAX_COUNT`."""
    for argument, count in counts.items():
        if not 1 <= count <= MAX_COUNT:
            raise ConfigError(f"{name} has {argument} {count!r}: expected 1 to {MAX_COUNT:,}")


def title(name: str, **arguments: bool | int | float) -> str:
    """The text that loads a network with these arguments."""
    parts = (f"{argument}={str(value).lower()}" for argument, value in arguments.items())
    return f"{name}:{','.join(parts)}"
