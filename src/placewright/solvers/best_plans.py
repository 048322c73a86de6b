"""The best distinct plans of a search, so that one can be selected among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.plan import Plan
    from placewright.plan_batch import PlanBatch

MAX_PLANS = 8  # plans that are remembered


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that a search remembers.

    Args:
        key: Overflow and objective.
        found_by: The solver's phase that found it.
        build_plan: Builds the plan, which takes some time for a large graph.
        note: Why this one was chosen, for whoever reads the result.
    """

    key: tuple[float, float]
    found_by: str
    build_plan: Callable[[], Plan]
    note: str = ""

    @cached_property
    def plan(self) -> Plan:
        return self.build_plan()


@dataclass(frozen=True, eq=False)
class BestPlans:
    """The best few plans by (overflow, objective); on a tie the first one wins.

    Plans that differ only in their order of ops count as one, the best of them.
    """

    _candidates: dict[bytes, Candidate] = field(default_factory=dict)

    def best_first(self) -> list[Candidate]:
        return sorted(self._candidates.values(), key=lambda candidate: candidate.key)

    def in_order(self) -> list[Candidate]:
        """In the order of discovery, which decides ties."""
        return list(self._candidates.values())

    def qualifies(self, key: tuple[float, float]) -> bool:
        """Whether a plan of this key is among the best few so far."""
        return len(self._candidates) < MAX_PLANS or key < max(
            candidate.key for candidate in self._candidates.values()
        )

    def add(self, candidate: Candidate, fingerprint: bytes) -> None:
        """Keep it if it is one of the best few; `fingerprint` identifies it."""
        previous = self._candidates.get(fingerprint)
        if not self.qualifies(candidate.key) or (
            previous is not None and previous.key <= candidate.key
        ):
            return
        self._candidates.pop(
            fingerprint, None
        )  # so that plans of one key stay in the order of discovery
        self._candidates[fingerprint] = candidate
        if len(self._candidates) > MAX_PLANS:
            del self._candidates[
                max(reversed(self._candidates), key=lambda key: self._candidates[key].key)
            ]


def plan_fingerprint(row: PlanBatch) -> bytes:
    """Tells plans apart, each a batch of one row, whatever their order of ops."""
    staging, fusion = row.staging, row.fusion
    has_staging = staging is not None and bool((staging >= 0).any())
    staging_bytes = staging.tobytes() if staging is not None and has_staging else b""
    return b"|".join(
        [row.placement.tobytes(), staging_bytes, b"" if fusion is None else fusion.tobytes()]
    )
