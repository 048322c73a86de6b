"""Counts what a model's functions come to once all calls are inlined, before any is.

Functions that call the one before twice, 40 deep, are a file of 2.5 kB and 10**12 ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from placewright.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Name = TypeVar("Name")  # text, or a tuple of texts
MAX_CALL_DEPTH = 64
"""Nested calls."""
MAX_INLINED_OPS = 100_000
"""Ops that calls add to a graph: those of a large SavedModel ten times, read in seconds."""


def inlined_size(
    calls: Sequence[Name], own_sizes: Mapping[Name, int], calls_of: Mapping[Name, Sequence[Name]]
) -> int:
    """What the functions that a graph calls add up to, each counted as often as it is inlined.

    Args:
        calls: The functions that the graph itself calls, with repetitions.
        own_sizes: The size of each function without those that it calls.
        calls_of: The functions that each function calls, with repetitions.

    Raises:
        GraphError: A function calls itself, or calls are nested too deeply.
    """
    known: dict[Name, tuple[int, int]] = {}

    def measure(function: Name, stack: tuple[Name, ...]) -> tuple[int, int]:
        """The size of a function with all that it calls, and how deep those calls are."""
        if function not in own_sizes:
            return 0, 0  # the call is refused where it is read, or is an op
        if function in stack:
            raise GraphError(f"function {_name(function)!r} calls itself: that cannot be unrolled")
        if function not in known and len(stack) < MAX_CALL_DEPTH:
            inner = [measure(called, (*stack, function)) for called in calls_of[function]]
            known[function] = (
                own_sizes[function] + sum(size for size, _ in inner),
                1 + max((depth for _, depth in inner), default=0),
            )
        if function not in known or len(stack) + known[function][1] > MAX_CALL_DEPTH:
            raise GraphError(f"its functions call one another more than {MAX_CALL_DEPTH} deep")
        return known[function]

    return sum(measure(function, ())[0] for function in calls)


def check_inlined_ops(count: int) -> None:
    """Raise GraphError if calls add more ops than a model can have."""
    if count > MAX_INLINED_OPS:
        found = f"{count:,}" if count < 10**12 else f"{count:.2e}"
        raise GraphError(
            f"its functions call for {found} ops: expected at most {MAX_INLINED_OPS:,}"
        )


def _name(function: object) -> str:
    return str(function[1] if isinstance(function, tuple) else function)
