"""The arguments of a zoo network in, its title or an error that says what was expected out."""

from __future__ import annotations

from placewright.errors import ConfigError

MOST = 10_000_000


def check_counts(name: str, **counts: int) -> None:
    """Raise ConfigError unless all are from 1 to `MOST`."""
    for what, count in counts.items():
        if not 1 <= count <= MOST:
            raise ConfigError(f"{name} has {what} {count!r}: expected 1 to {MOST:,}")


def title(name: str, **arguments: bool | int | float) -> str:
    """The text that loads a network with these arguments."""
    words = (f"{what}={str(value).lower()}" for what, value in arguments.items())
    return f"{name}:{','.join(words)}"
