"""Runs calls of a compiled model with several steps in flight.

A call is made twice. The first time its guards choose the graph, which hands its arguments over
instead of running; the second time the graph returns what its step has computed, and the model's
own code goes on. Nothing happens before a graph, since a call must be one graph.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, ExecutionError
from placewright.runtime.dynamo.steps import finish_call, resolve_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from placewright.runtime.dynamo.backend import PlanBackend
    from placewright.runtime.dynamo.steps import ResolvedCall
    from placewright.runtime.executor import Executor


def pipelined_calls(
    backend: PlanBackend,
    run: Callable[[tuple[Any, ...]], Any],
    calls: Iterable[tuple[Any, ...]],
    in_flight: int,
) -> Iterator[Any]:
    """The results of calls, in order.

    Args:
        run: Calls the compiled model.
        in_flight: How many steps may be in flight at once.

    Raises:
        ExecutionError: A call is not one graph, or changes states.
        ConfigError: `in_flight` is less than 1.
    """
    if in_flight < 1:
        raise ConfigError(f"{in_flight} steps in flight: expected 1 or more")
    submitted: deque[tuple[tuple[Any, ...], ResolvedCall, Executor, int]] = deque()

    def finish() -> Any:
        args, call, executor, number = submitted.popleft()
        with backend.lock:
            values = executor.outputs_or_close(number)
            return finish_call(backend, lambda: run(args), call, values)

    try:
        for args in calls:
            if len(submitted) >= in_flight:
                yield finish()
            with backend.lock:
                call = resolve_call(backend, lambda args=args: run(args))  # type: ignore[misc]
                executor = call.graph.ready_executor(call.args)
                if in_flight > 1 and not executor.stateless:
                    raise ExecutionError(
                        "steps of this model change weights or states, so that they cannot "
                        "overlap: run with one in flight"
                    )
                submitted.append((args, call, executor, call.graph.submit(call.args)))
        while submitted:
            yield finish()
    finally:  # a caller that stops early leaves nothing in flight
        while submitted:
            _, _, executor, number = submitted.popleft()
            if not executor.broken:
                executor.outputs_or_close(number)
