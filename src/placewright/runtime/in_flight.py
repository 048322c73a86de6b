"""An executor and many calls in, what each returns out, in order, with several steps in flight."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, ExecutionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from placewright.runtime.executor import Executor


def in_order(
    executor: Executor,
    first: tuple[Any, ...],
    calls: Iterable[tuple[Any, ...]],
    in_flight: int,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each call's arguments and what the model returned for them.

    Args:
        first: The first call's arguments; `calls` are those after it.
        in_flight: How many steps may be under way at once.

    Raises:
        ExecutionError: Steps change weights or states, so that they cannot overlap.
        ConfigError: There is to be no step in flight.
    """
    if in_flight < 1:
        raise ConfigError(f"{in_flight} steps in flight: expected 1 or more")
    if in_flight > 1 and not executor.stateless:
        raise ExecutionError(
            "steps of this model change weights or states, so that they cannot overlap: "
            "run with one in flight"
        )
    waiting: deque[tuple[int, tuple[Any, ...]]] = deque()
    try:
        waiting.append((executor.submit(*first), first))
        for args in calls:
            if len(waiting) >= in_flight:
                number, given = waiting.popleft()
                yield given, executor.only_result(number)
            waiting.append((executor.submit(*args), args))
        while waiting:
            number, given = waiting.popleft()
            yield given, executor.only_result(number)
    finally:  # who asks no more leaves nothing under way
        while waiting and not executor.broken:
            executor.only_result(waiting.popleft()[0])
