"""Shows how far a search is: a bar in a notebook, elsewhere lines on stderr.

A plain Python process never imports IPython; a notebook has done so.
"""

from __future__ import annotations

import importlib
import sys
import time
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from placewright.solvers.stop import MaxEvaluations, MaxTime
from placewright.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from placewright.solvers.search import Search

DELAY = 1.0  # seconds until a bar shows up: what is quick shows none
NOTEBOOK_INTERVAL = 0.25  # seconds between updates of a bar
LINE_INTERVAL = 5.0  # seconds between lines


@contextmanager
def search_progress(
    progress: Callable[[Search], None] | bool | None, name: str
) -> Iterator[Callable[[Search], None] | None]:
    """What a search calls after each batch of plans.

    Args:
        progress: A function; True to show a bar or lines, False to show nothing, None to show a bar
            in a notebook and nothing elsewhere.
        name: The method's name.
    """
    if callable(progress):
        yield progress
        return
    display = _open_display(progress, 1)
    try:
        yield None if display is None else lambda search: display.update(name, search)
    finally:
        if display is not None:
            display.close()


@contextmanager
def comparison_progress(
    progress: Callable[[Any, Search], None] | bool | None, total: int
) -> Iterator[Callable[[Any, Search], None] | None]:
    """The same for several methods; the function is called with the solver, too."""
    if callable(progress):
        yield progress
        return
    display = _open_display(progress, total)
    try:
        yield (
            None if display is None else lambda solver, search: display.update(solver.name, search)
        )
    finally:
        if display is not None:
            display.close()


def best_text(search: Search) -> str:
    """The best plan of a search so far, in words."""
    what = "step time" if search.problem.objective == "step" else "period"
    fits = ", does not fit" if search.key[0] else ""
    return f"best {what} {format_seconds(search.key[1])}{fits}"


def fraction_done(search: Search) -> float | None:
    """The share of the stop rule's limit that is used, if it has one."""
    fractions = []
    for rule in getattr(search.stop, "rules", (search.stop,)):
        if isinstance(rule, MaxTime):
            fractions.append(search.seconds / max(rule.seconds, 1e-9))
        elif isinstance(rule, MaxEvaluations):
            fractions.append(search.evaluations / rule.count)
    return min(1.0, max(fractions)) if fractions else None


class _Display:
    """The text and the share of one or several searches, shown now and then."""

    def __init__(self, total: int, delay: float, interval: float) -> None:
        self.total, self.interval = total, interval
        self._names: list[str] = []
        self._best: tuple[tuple[float, float], str] | None = None
        self._started = time.monotonic()
        self._next = self._started + delay
        self._text = ""
        self._is_shown = False

    def update(self, name: str, search: Search) -> None:
        """Called after each batch of plans."""
        if name not in self._names:
            self._names.append(name)
        if self._best is None or search.key < self._best[0]:
            self._best = search.key, best_text(search)
        plans = f"{search.evaluations:,} plan{'' if search.evaluations == 1 else 's'}"
        self._text = f"{name}: {self._best[1]}, {plans}"
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.interval
        done = fraction_done(search)
        if self.total > 1:
            done = (len(self._names) - 1 + (done or 0.0)) / self.total
        self._is_shown = True
        self.show(self._with_seconds(), done)

    def close(self) -> None:
        """Leave the last state, if any was shown."""
        if self._is_shown:
            self.finish(self._with_seconds())

    def show(self, text: str, done: float | None) -> None:
        raise NotImplementedError

    def finish(self, text: str) -> None:
        raise NotImplementedError

    def _with_seconds(self) -> str:
        return f"{self._text}, {time.monotonic() - self._started:.0f} s"


class _NotebookDisplay(_Display):
    """An output of a notebook's cell that is updated."""

    def __init__(self, total: int, display: Any) -> None:
        super().__init__(total, DELAY, NOTEBOOK_INTERVAL)
        self._display = display
        self._handle: Any = None

    def show(self, text: str, done: float | None) -> None:
        value = "" if done is None else f' value="{done:.3f}"'
        self._put(f'<progress{value} style="width:16em"></progress> {escape(text)}')

    def finish(self, text: str) -> None:
        self._put(f'<span style="opacity:.7">{escape(text)}</span>')

    def _put(self, html: str) -> None:
        content = self._display.HTML(html)
        if self._handle is None:
            self._handle = self._display.display(content, display_id=True)
        else:
            self._handle.update(content)


class _LineDisplay(_Display):
    """Lines on stderr."""

    def __init__(self, total: int) -> None:
        super().__init__(total, LINE_INTERVAL, LINE_INTERVAL)

    def show(self, text: str, done: float | None) -> None:
        share = "" if done is None else f" ({format_percent(done, decimal_below=0)})"
        print(f"{text}{share}", file=sys.stderr, flush=True)

    def finish(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _open_display(progress: bool | None, total: int) -> _Display | None:
    if progress is False:
        return None
    display = notebook_display()
    if display is not None:
        return _NotebookDisplay(total, display)
    return _LineDisplay(total) if progress else None


def notebook_display() -> Any:
    """`IPython.display` if this process is a notebook's kernel, else None."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display")
