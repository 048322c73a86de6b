"""Tally: what an attack tried, by seed, and what it found."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Tally:
    """What one attack tried.

    Args:
        first_seed: The first seed that was tried.
        next_seed: The seed at which the next run goes on.
        counts: How many inputs there were of each kind, such as `accepted` and `refused`.
        findings: One line for each defect, with the seed that shows it.
    """

    first_seed: int
    next_seed: int
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """How many seeds were tried."""
        return self.next_seed - self.first_seed


def try_seeds(
    attempt: Callable[[int], str], first_seed: int, seconds: float, most: int | None = None
) -> Tally:
    """Try seeds one after another until the time is up, or as many as `most`.

    Args:
        attempt: Tries one seed, and says what came of it in a word or two, which are counted. An
            `AssertionError` or any other exception that it lets pass is a finding.
    """
    tally = Tally(first_seed, first_seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end and (most is None or tally.tried < most):
        try:
            tally.counts[attempt(tally.next_seed)] += 1
        except Exception as error:
            tally.counts["findings"] += 1
            tally.findings.append(f"seed {tally.next_seed}: {type(error).__name__}: {error}")
        tally.next_seed += 1
    return tally
