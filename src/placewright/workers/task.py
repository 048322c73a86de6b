"""A task: what a worker computes for each item of a chunk, and the check that it can be sent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from placewright.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")


class Items(Protocol):
    """What a batch is made of: a list, an array or a `PlanBatch`, of which a slice is another."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


class Task(Protocol[R]):
    """A frozen dataclass of a module that is called with a problem and some items.

    It must be pure: the result of an item depends on the task, the problem and that item only. What
    is random about it comes from seeds in its items.
    """

    def __call__(self, problem: Any, items: Any, /) -> list[R]:
        """One result per item, in their order."""
        ...


def run_task(task: Callable[..., Any], problem: Any, items: Any) -> list[Any]:
    """Run a task and check that it has one result per item.

    Raises:
        WorkerError: It has not.
    """
    results = task(problem, items)
    if not isinstance(results, list) or len(results) != len(items):
        found = f"{len(results)} results" if isinstance(results, list) else type(results).__name__
        raise WorkerError(
            f"task {task_name(task)} returned {found} for {len(items)} items: expected a list of "
            "one result per item"
        )
    return results


def task_name(task: object) -> str:
    """The name of a task in messages: that of its class."""
    return type(task).__qualname__


def check_task(task: object) -> None:
    """Check that a task can be sent to another process, for workers of all kinds alike.

    Raises:
        ConfigError: It is no frozen dataclass, or no module has its class.
    """
    kind = type(task)
    params = getattr(kind, "__dataclass_params__", None)
    if not (params is not None and params.frozen and callable(task)):
        raise ConfigError(
            f"task {task!r}: expected an instance of a frozen dataclass with a method "
            "__call__(problem, items)"
        )
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__" or getattr(module, kind.__qualname__, None) is not kind:
        raise ConfigError(
            f"task {task_name(task)} is defined in {kind.__module__!r} as {kind.__qualname__!r}, "
            "where a worker cannot import it: define it at the top of a module of its own"
        )
