"""A progress bar on stderr with the best time so far."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Self, TextIO

from placewright.cli.render.text import format_count
from placewright.errors import printable
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.solvers import Search
    from placewright.solvers.workloads.workload_search import WorkloadSearch


class Progress:
    """A line on stderr that shows up once a command has taken a second; none without a terminal.

    What a model prints meanwhile goes to stderr, too: stdout is for the answer only.

    Args:
        text: What the line says until a search begins.
        stream: Where to show it; stderr by default.
        delay: Seconds until it shows up.
    """

    def __init__(self, text: str, stream: TextIO | None = None, delay: float = 1.0) -> None:
        self.text = text
        self.fraction: float | None = None
        self.stream = sys.stderr if stream is None else stream
        self._best: tuple[tuple[float, float], str] | None = None
        self._started = time.monotonic()
        self._timer = threading.Timer(delay, self._start_bar)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._bar: Any = None
        self._closed = False
        self._stdout_redirect = redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        self._stdout_redirect.__enter__()
        if self.stream is not None and self.stream.isatty():  # None: stderr is closed
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()  # first: it puts back the stdout that it found
        self._stdout_redirect.__exit__(None, None, None)

    def watch(self, name: str, index: int = 0, total: int = 1) -> Callable[[Any], None]:
        """Begin search `index` of `total`; the function returned reports its progress.

        The best time shown is that of all searches so far.
        """

        def on_progress(search: Search | WorkloadSearch) -> None:
            if self._best is None or search.key < self._best[0]:
                what = "step time" if _objective(search) == "step" else "period"
                fits = ", does not fit" if search.key[0] else ""
                best = f"best {what} {format_seconds(search.key[1])}{fits}"
                self._best = search.key, best
            done = _fraction_done(search)
            fraction = done if total == 1 else (index + (done or 0.0)) / total
            plans = format_count(search.evaluations, "plan")
            self.update(f"{name}: {self._best[1]}, {plans}", fraction)

        so_far = "" if self._best is None else f": {self._best[1]}"
        self.update(f"{name}{so_far}", None if total == 1 else index / total)
        return on_progress

    def update(self, text: str, fraction: float | None) -> None:
        """Show a text, and how much of the whole is done, where that is known."""
        with self._lock:
            self.text, self.fraction = text, fraction
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], **self._task())

    def _start_bar(self) -> None:
        """Runs in the timer's thread, since a busy search does not call us."""
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        with self._lock:
            if self._closed:
                return
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TimeElapsedColumn(),
                console=Console(file=self.stream, highlight=False, emoji=False),
                transient=True,
            )
            self._bar.add_task(**self._task())
            self._bar.tasks[0].start_time = self._started
            self._bar.start()

    def _task(self) -> dict[str, Any]:
        total = None if self.fraction is None else 1.0
        return {
            "description": printable(self.text),
            "total": total,
            "completed": self.fraction or 0.0,
        }


def _objective(search: Search | WorkloadSearch) -> str:
    from placewright.solvers import Search

    problem = search.problem if isinstance(search, Search) else search.workload
    return problem.objective


def _fraction_done(search: Search | WorkloadSearch) -> float | None:
    """The share of the stop rule's limit that is used, if it has one."""
    from placewright.solvers import MaxEvaluations, MaxTime

    fractions = []
    for rule in getattr(search.stop, "rules", (search.stop,)):
        if isinstance(rule, MaxTime):
            fractions.append(search.seconds / max(rule.seconds, 1e-9))
        elif isinstance(rule, MaxEvaluations):
            fractions.append(search.evaluations / rule.count)
    return min(1.0, max(fractions)) if fractions else None
