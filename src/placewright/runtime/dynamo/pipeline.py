"""Runs calls of a compiled model with several steps in flight.

A call is made twice. The first time its guards choose the graph, which hands its arguments over
instead of running; the second time the graph returns what its step has computed, and the model's
own code goes on. Nothing happens before a graph, since a call must be one graph.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, ExecutionError
from placewright.runtime.dynamo.compiled_graph import models_own_errors
from placewright.runtime.dynamo.steps import NotInFlight, finish_call, resolve_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from placewright.runtime.dynamo.backend import PlanBackend
    from placewright.runtime.dynamo.steps import ResolvedCall
    from placewright.runtime.executor import Executor


@dataclass(frozen=True)
class SubmittedCall:
    """A call whose step is in flight, with the number by which the executor knows it."""

    args: tuple[Any, ...]
    call: ResolvedCall
    executor: Executor
    number: int


def pipelined_calls(
    backend: PlanBackend,
    run: Callable[[tuple[Any, ...]], Any],
    run_alone: Callable[[tuple[Any, ...]], Any],
    calls: Iterable[tuple[Any, ...]],
    in_flight: int,
) -> Iterator[Any]:
    """The results of calls, in order; those before a call that fails come before its error.

    Args:
        run: Calls the compiled model as one graph.
        run_alone: Calls the model, as a call without a pipeline does.
        in_flight: How many steps may be in flight at once.

    Raises:
        ExecutionError: A call computes nothing, or changes states.
        ConfigError: `in_flight` is less than 1.
    """
    if in_flight < 1:
        raise ConfigError(f"{in_flight} steps in flight: expected 1 or more")
    submitted: deque[SubmittedCall] = deque()
    remaining = iter(calls)
    try:
        while True:
            try:
                args = next(remaining)
            except StopIteration:
                break
            except Exception:
                yield from _results(backend, run, submitted)
                raise
            if len(submitted) >= in_flight:
                yield _finish(backend, run, submitted)
            try:
                submitted.append(_submit(backend, run, args, in_flight))
            except NotInFlight:
                yield from _results(backend, run, submitted)
                yield run_alone(args)
            except Exception:
                yield from _results(backend, run, submitted)
                raise
        yield from _results(backend, run, submitted)
    finally:  # a caller that stops early leaves nothing in flight
        while submitted:
            step = submitted.popleft()
            if not step.executor.broken:
                with backend.limited_memory():
                    step.executor.outputs_or_close(step.number)


def _submit(
    backend: PlanBackend,
    run: Callable[[tuple[Any, ...]], Any],
    args: tuple[Any, ...],
    in_flight: int,
) -> SubmittedCall:
    with backend.lock:
        call = resolve_call(backend, lambda: run(args))
        with backend.limited_memory():
            executor = call.graph.ready_executor(call.args)
            if in_flight > 1 and not executor.stateless:
                raise ExecutionError(
                    "steps of this model change weights or states, so that they cannot overlap: "
                    "run with one in flight"
                )
            number = call.graph.submit(call.args)
            executor = call.graph.ready_executor(call.args)  # that step's, maybe another one
            return SubmittedCall(args, call, executor, number)


def _results(
    backend: PlanBackend, run: Callable[[tuple[Any, ...]], Any], submitted: deque[SubmittedCall]
) -> Iterator[Any]:
    while submitted:
        yield _finish(backend, run, submitted)


def _finish(
    backend: PlanBackend, run: Callable[[tuple[Any, ...]], Any], submitted: deque[SubmittedCall]
) -> Any:
    """The result of the oldest step, or the error that the model raises.

    A step that fails ends its executor and all steps in flight there. They change no states, so
    that each can run once more: the first ones give their results, then the one that failed fails.
    """
    step = submitted.popleft()
    others = any(other.executor is step.executor for other in submitted)
    with backend.lock:
        if step.executor.broken:
            return run(step.args)
        try:
            with backend.limited_memory(), models_own_errors():
                values = step.executor.outputs_or_close(step.number)
        except Exception:
            if not others:
                raise
            return run(step.args)
        return finish_call(backend, lambda: run(step.args), step.call, values)
