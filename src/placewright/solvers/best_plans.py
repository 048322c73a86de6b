"""Few: judged plans in, the best few that differ out, so that one can be chosen among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from placewright.plan import Plan

MOST = 8  # plans that are remembered


@dataclass(frozen=True, eq=False)
class Found:
    """A plan that a search remembers.

    Args:
        key: Bytes over and objective.
        found_by: What the solver was at.
        make: Makes the plan, which takes a while for a large graph.
    """

    key: tuple[float, float]
    found_by: str
    make: Callable[[], Plan]

    @cached_property
    def plan(self) -> Plan:
        return self.make()


@dataclass(frozen=True, eq=False)
class Few:
    """The best few plans by (bytes over, objective); the first found wins ties.

    Plans that differ in nothing but their order of ops count as one, the best of them.
    """

    _found: dict[bytes, Found] = field(default_factory=dict)

    def best_first(self) -> list[Found]:
        return sorted(self._found.values(), key=lambda found: found.key)

    def memorable(self, key: tuple[float, float]) -> bool:
        """Whether a plan of this key is among the best few so far."""
        return len(self._found) < MOST or key < max(found.key for found in self._found.values())

    def remember(self, found: Found, mark: bytes) -> None:
        """Keep it if it is one of the best few; its mark tells it apart (`mark`)."""
        known = self._found.get(mark)
        if not self.memorable(found.key) or (known is not None and known.key <= found.key):
            return
        self._found.pop(mark, None)  # so that those of one key stay in the order of finding
        self._found[mark] = found
        if len(self._found) > MOST:
            del self._found[max(reversed(self._found), key=lambda each: self._found[each].key)]


def mark(
    device: NDArray[np.int32],
    staging: NDArray[np.int64] | None = None,
    fusion: NDArray[np.int32] | None = None,
) -> bytes:
    """What tells two plans apart, whatever their order of ops."""
    staged = staging is not None and bool((staging >= 0).any())
    rooms = staging.tobytes() if staging is not None and staged else b""
    return b"|".join([device.tobytes(), rooms, b"" if fusion is None else fusion.tobytes()])
