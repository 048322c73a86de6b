"""The order of a rank's steps: one that changes weights runs alone.

Rank 0 begins its next step as soon as it has the results of the one before, while another rank may
still change its weights for that one. There the next step must wait on all devices: one of them
could read a weight that another is about to change. Steps that change nothing overlap.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    Task = Callable[[], None]


@dataclass
class _Entry:
    is_alone: bool
    task: Task | None = None


class StepOrder:
    """What a rank has been told to do and has not ended, in rank 0's order.

    No thread waits in it: a task that must wait is handed over when it may run. So a session that
    fails need wake nobody up.

    Args:
        run_later: Lets the thread that serves run a task.
    """

    def __init__(self, run_later: Callable[[Task], None]) -> None:
        self._run_later = run_later
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    def add(self, key: Hashable, is_alone: bool = False) -> None:
        """Append a step, or something else that rank 0 says.

        Args:
            is_alone: Whether it begins after all before it, and all after it when it has ended.
        """
        with self._lock:
            self._entries[key] = _Entry(is_alone)

    def begin(self, key: Hashable, task: Task) -> None:
        """Run a task now if it may begin, in this thread, which serves; else when it may."""
        with self._lock:
            is_free = key in self._free_keys()
            if not is_free:
                self._entries[key].task = task
        if is_free:
            task()

    def end(self, key: Hashable) -> None:
        """Let what waited for it begin."""
        with self._lock:
            self._entries.pop(key, None)
            for free in self._free_keys():
                entry = self._entries[free]
                if entry.task is not None:
                    self._run_later(entry.task)
                    entry.task = None

    def run(self, task: Task, is_alone: bool = False) -> None:
        """Append a task and run it, as `begin` does; it has ended when the function returns."""
        key = object()

        def run_and_end() -> None:
            task()
            self.end(key)

        self.add(key, is_alone)
        self.begin(key, run_and_end)

    def _free_keys(self) -> list[Hashable]:
        """What nothing before it keeps from running."""
        free: list[Hashable] = []
        for key, entry in self._entries.items():
            if entry.is_alone and free:
                break
            free.append(key)
            if entry.is_alone:
                break
        return free
