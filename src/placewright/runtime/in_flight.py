"""Runs many calls with several steps in flight, and yields results in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, ExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from placewright.runtime.executor import Executor


def pipelined_results(
    executor: Executor,
    first_call: tuple[Any, ...],
    calls: Iterable[tuple[Any, ...]],
    in_flight: int,
    submit: Callable[[tuple[Any, ...]], int] | None = None,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each call's arguments and the model's outputs for them, in order.

    Args:
        first_call: The first call's arguments; `calls` are those after it.
        in_flight: How many steps may be in flight at once.
        submit: Begins the step of a call; by default `executor.submit`.

    Raises:
        ExecutionError: Steps change weights or states, so that they cannot overlap.
        ConfigError: `in_flight` is less than 1.
    """
    if in_flight < 1:
        raise ConfigError(f"{in_flight} steps in flight: expected 1 or more")
    if in_flight > 1 and not executor.stateless:
        raise ExecutionError(
            "steps of this model change weights or states, so that they cannot overlap: "
            "run with one in flight"
        )
    begin = submit or (lambda args: executor.submit(*args))
    submitted: deque[tuple[int, tuple[Any, ...]]] = deque()
    try:
        submitted.append((begin(first_call), first_call))
        for args in calls:
            if len(submitted) >= in_flight:
                number, call_args = submitted.popleft()
                yield call_args, executor.result_or_close(number)
            submitted.append((begin(args), args))
        while submitted:
            number, call_args = submitted.popleft()
            yield call_args, executor.result_or_close(number)
    finally:  # a caller that stops early leaves nothing in flight
        while submitted and not executor.broken:
            executor.result_or_close(submitted.popleft()[0])
