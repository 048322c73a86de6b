"""Stop rules: when a search should end.

Rules joined with `|` end a search when the first of them does.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from placewright.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers.bounds import Bound


class SearchState(Protocol):
    """What a stop rule reads of a search, for one problem or for a workload."""

    evaluations: int
    stop: Stop

    @property
    def key(self) -> tuple[float, float]:
        """Overflow and objective of the best plan."""
        ...

    @property
    def history(self) -> Sequence[tuple[int, float, float]]:
        """(evaluations, seconds, best objective) each time the best improved."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        ...

    @property
    def bound(self) -> Bound:
        """A lower bound for plans that fit."""
        ...

    @property
    def over(self) -> bool:
        """Whether the stop rule says stop."""
        ...


class Stop:
    """A rule that says when a search is over; this one never ends it."""

    def __call__(self, search: SearchState) -> bool:
        return False

    def left(self, search: SearchState) -> float:
        """Plans that may still be evaluated."""
        return math.inf

    def seconds_left(self, search: SearchState) -> float:
        """Seconds that the search may still take."""
        return math.inf

    @property
    def certain(self) -> bool:
        """Whether it ends every search eventually."""
        return False

    def reserve(self, seconds: float) -> Stop:
        """The rule that leaves this many of its seconds, half of them at most, for later work."""
        return self

    def __or__(self, other: Stop) -> Stop:
        return AnyOf((*_rules(self), *_rules(other)))


@dataclass(frozen=True)
class AnyOf(Stop):
    """Over when any of its rules says so."""

    rules: tuple[Stop, ...]

    def __call__(self, search: SearchState) -> bool:
        return any(rule(search) for rule in self.rules)

    def left(self, search: SearchState) -> float:
        return min((rule.left(search) for rule in self.rules), default=math.inf)

    def seconds_left(self, search: SearchState) -> float:
        return min((rule.seconds_left(search) for rule in self.rules), default=math.inf)

    @property
    def certain(self) -> bool:
        return any(rule.certain for rule in self.rules)

    def reserve(self, seconds: float) -> Stop:
        return AnyOf(tuple(rule.reserve(seconds) for rule in self.rules))


@dataclass(frozen=True)
class MaxTime(Stop):
    """Over after this many seconds. The current batch of plans is finished."""

    seconds: float
    certain = True

    def __post_init__(self) -> None:
        _demand_number(self.seconds, f"MaxTime of {self.seconds!r} seconds: expected a number >= 0")

    def __call__(self, search: SearchState) -> bool:
        return search.seconds >= self.seconds

    def seconds_left(self, search: SearchState) -> float:
        return max(0.0, self.seconds - search.seconds)

    def reserve(self, seconds: float) -> Stop:
        return replace(self, seconds=max(self.seconds - seconds, self.seconds / 2))


@dataclass(frozen=True)
class MaxEvaluations(Stop):
    """Over once this many plans are evaluated; a batch is cut, so the count is exact."""

    count: int
    certain = True

    def __post_init__(self) -> None:
        _demand_count(self.count, f"{self.count!r} evaluations")

    def __call__(self, search: SearchState) -> bool:
        return search.evaluations >= self.count

    def left(self, search: SearchState) -> float:
        return self.count - search.evaluations


@dataclass(frozen=True)
class NoImprovement(Stop):
    """Over once this many plans in a row were no better than the best."""

    evaluations: int
    certain = True

    def __post_init__(self) -> None:
        _demand_count(self.evaluations, f"{self.evaluations!r} evaluations without improvement")

    def __call__(self, search: SearchState) -> bool:
        improved = search.history[-1][0] if search.history else 0
        return search.evaluations - improved >= self.evaluations


@dataclass(frozen=True)
class Gap(Stop):
    """Over once the best plan fits and is at most this share above the bound."""

    share: float

    def __post_init__(self) -> None:
        _demand_number(self.share, f"Gap of {self.share!r}: expected a share >= 0, e.g. 0.05")

    def __call__(self, search: SearchState) -> bool:
        overflow, value = search.key
        # The bound allows for rounding, so a gap of 0 must be reached within that tolerance.
        return overflow == 0 and value <= search.bound.seconds * (1 + self.share + 1e-9)


@dataclass(frozen=True)
class Within(Stop):
    """Over when an outer search would be over with this one's plans added to its own."""

    search: SearchState

    def __call__(self, search: SearchState) -> bool:
        return self.search.over or self.left(search) <= 0

    def left(self, search: SearchState) -> float:
        return self.search.stop.left(self.search) - search.evaluations

    def seconds_left(self, search: SearchState) -> float:
        return self.search.stop.seconds_left(self.search)


@dataclass(frozen=True)
class Slice(Stop):
    """Over after this many evaluations or seconds of one search: its slice of another's budget."""

    evaluations: float
    seconds: float

    @classmethod
    def of(cls, outer: SearchState, share: float, inner: SearchState | None = None) -> Slice:
        """A share of what is left of an outer search.

        Args:
            inner: The search that goes on with it; by default a new one.
        """
        evaluations = 0 if inner is None else inner.evaluations
        seconds = 0.0 if inner is None else inner.seconds
        left = outer.stop.left(outer) * share
        return cls(
            evaluations + (left if math.isinf(left) else max(1.0, math.floor(left))),
            seconds + outer.stop.seconds_left(outer) * share,
        )

    def __call__(self, search: SearchState) -> bool:
        return search.evaluations >= self.evaluations or search.seconds >= self.seconds

    def left(self, search: SearchState) -> float:
        return self.evaluations - search.evaluations

    def seconds_left(self, search: SearchState) -> float:
        return max(0.0, self.seconds - search.seconds)


def _demand_count(value: int, what: str) -> None:
    """A fraction would never be reached: the last batch is cut to no plan."""
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ConfigError(f"{what}: expected a whole number, 1 or more")


def _demand_number(value: float, wrong: str) -> None:
    try:
        right = value >= 0
    except TypeError:
        right = False
        wrong += " (give a number, not text: 5, not '5s')"
    if not right:
        raise ConfigError(wrong)


def _rules(stop: Stop) -> tuple[Stop, ...]:
    return stop.rules if isinstance(stop, AnyOf) else (stop,)
