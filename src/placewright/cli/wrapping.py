"""Lines of text as wide as the terminal; whole lines where there is none."""

from __future__ import annotations

import os
import re
import sys
import textwrap

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"

_UNITS = (
    *("ns", "µs", "ms", "s", "min", "h", "B", "KiB", "MiB", "GiB", "TiB", "PiB", "kB", "MB", "GB"),
    *("TB", "%", "GB/s", "FLOP/s", "ops?", "plans?", "devices?", "steps?", "trials?", "times"),
)
_FIGURE = re.compile(rf"(?<=\d) (?=(?:{'|'.join(_UNITS)})(?!\w))")


def keep_units(text: str) -> str:
    """A text in which no line can end between a figure and its unit."""
    return _FIGURE.sub(NO_BREAK_SPACE, text)


def output_width() -> int | None:
    """Columns of the output: those of $COLUMNS, or of the terminal; None where it is neither."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):  # it says that it is a terminal, and is none
        return None


def wrap_line(line: str, width: int | None) -> list[str]:
    """A line in parts of at most this width where its words allow it, without blanks at the end."""
    line = line.rstrip(" ")
    if width is None or len(line) <= width:
        return [line]
    parts = textwrap.wrap(
        keep_units(line),
        width,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
    return [part.replace(NO_BREAK_SPACE, " ") for part in parts]
