"""Progress on stderr: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Self, TextIO

from placewright.cli.general_options import is_quiet
from placewright.cli.render.text import format_count
from placewright.errors import printable
from placewright.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.solvers import Search

LINE_INTERVAL = 5.0  # seconds between lines where there is no terminal
_SHORT_LINES = 12  # intervals after which lines come less often, for a log of hours
_LONG_INTERVAL = 6


class Progress:
    """A bar on stderr that shows up once a command has taken a second.

    Without a terminal a line is printed every few seconds, at last every half minute, so that a log
    shows what takes long. With --quiet nothing is shown.

    What a model prints meanwhile goes to stderr, too: stdout is for the answer only.

    Args:
        text: What the line says until a search begins.
        stream: Where to show it; stderr by default.
        delay: Seconds until the bar shows up.
        interval: Seconds until the first line, and between the first lines; `LINE_INTERVAL` by
            default.
    """

    def __init__(
        self,
        text: str,
        stream: TextIO | None = None,
        delay: float = 1.0,
        interval: float | None = None,
    ) -> None:
        self.text = text
        self.fraction: float | None = None
        self.stream = sys.stderr if stream is None else stream
        self._best: tuple[tuple[float, float], str] | None = None
        self._started = time.monotonic()
        self._timer = threading.Timer(delay, self._start_bar)
        self._timer.daemon = True
        self._interval = LINE_INTERVAL if interval is None else interval
        self._ended = threading.Event()
        self._lines = threading.Thread(target=self._print_lines, daemon=True)
        self._lock = threading.Lock()
        self._bar: Any = None
        self._closed = False
        self._stdout_redirect = redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        self._stdout_redirect.__enter__()
        if self.stream is not None and not is_quiet():  # None: stderr is closed
            (self._timer if self.stream.isatty() else self._lines).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._ended.set()
        if self._lines.is_alive():
            self._lines.join()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()  # first: it puts back the stdout that it found
        self._stdout_redirect.__exit__(None, None, None)

    def watch(self, name: str, index: int = 0, total: int = 1) -> Callable[[Any], None]:
        """Begin search `index` of `total`; the function returned reports its progress.

        The best time shown is that of all searches so far.
        """

        from placewright.solvers.progress_display import best_text, fraction_done

        def on_progress(search: Search) -> None:
            if self._best is None or search.key < self._best[0]:
                self._best = search.key, best_text(search)
            done = fraction_done(search)
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

    def _print_lines(self) -> None:
        """Runs in a thread, since a busy search does not call us."""
        interval, line = self._interval, ""
        while not self._ended.wait(interval):
            seconds = time.monotonic() - self._started
            if self.text != line or interval >= self._interval * _LONG_INTERVAL:
                line = self.text
                done = "" if self.fraction is None else f", {format_percent(self.fraction, 0)}"
                print(f"{printable(line)} ({seconds:.0f} s{done})", file=self.stream, flush=True)
            if seconds > _SHORT_LINES * self._interval:
                interval = self._interval * _LONG_INTERVAL

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
