"""Resolved calls: which graph a call runs, and with which arguments, without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.runtime.dynamo.backend import PlanBackend
    from placewright.runtime.dynamo.compiled_graph import CompiledGraph


class CallNotServed(Exception):
    """A compiled function does not serve a call at this moment; nothing of it has run."""


class NotInFlight(ExecutionError):
    """A call that cannot be in flight with others; nothing of it has run."""


@dataclass(frozen=True)
class ResolvedCall:
    """The graph that guards have chosen for a call, and the graph's flat arguments.

    Args:
        saved: The arguments as the backward graph shall see them.
    """

    graph: CompiledGraph
    args: Sequence[Any]
    saved: Sequence[Any]


class CallResolved(BaseException):
    """Ends a call whose graph is known."""

    def __init__(self, call: ResolvedCall) -> None:
        super().__init__()
        self.call = call


def resolve_call(backend: PlanBackend, run: Callable[[], Any]) -> ResolvedCall:
    """Make a call up to its graph. The call must be one graph: then nothing comes before it.

    Args:
        run: Calls the compiled function.

    Raises:
        NotInFlight: The call has no graph that an executor runs.
        ExecutionError: It has no graph at all.
    """
    with backend.lock, backend.resolving():
        try:
            run()
        except CallResolved as end:
            return end.call
    raise ExecutionError("this call cannot be in flight with others: it computes nothing")


def finish_call(
    backend: PlanBackend, run: Callable[[], Any], call: ResolvedCall, values: Sequence[Any]
) -> Any:
    """Make a call whose graph has run already: the result of the compiled function."""
    with backend.lock, backend.delivering(call, values):
        return run()
