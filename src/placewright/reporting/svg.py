"""Shapes in, SVG text out; names are data and are escaped."""

from __future__ import annotations

import re
from html import escape
from typing import Self

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FONT = "system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif"


class Canvas:
    """Collects shapes; `text()` gives the SVG."""

    def __init__(self, width: float, height: float, back: str, title: str) -> None:
        self.width, self.height = width, height
        self.parts = [f"<title>{clean(title)}</title>"]
        self.box(0, 0, width, height, back)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        more: str = "",
        tip: str = "",
    ) -> Self:
        """A filled rectangle; `tip` shows when it is pointed at."""
        head = f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        inside = f"><title>{clean(tip)}</title></rect>" if tip else "/>"
        self.parts.append(f'{head} fill="{fill}"{f" {more}" if more else ""}{inside}')
        return self

    def path(self, way: str, colour: str, width: float, more: str = "") -> Self:
        """A line along `way`, in SVG's own words."""
        self.parts.append(
            f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="{_n(width)}"'
            f"{f' {more}' if more else ''}/>"
        )
        return self

    def words(
        self,
        x: float,
        y: float,
        text: str,
        fill: str,
        size: float = 11,
        anchor: str = "start",
        bold: bool = False,
    ) -> Self:
        """A line of text whose foot is at `y`."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" fill="{fill}" font-size="{_n(size)}" '
            f'text-anchor="{anchor}"{weight}>{clean(text)}</text>'
        )
        return self

    def text(self) -> str:
        """The whole picture."""
        wide, high = _n(self.width), _n(self.height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
            f'viewBox="0 0 {wide} {high}" font-family="{FONT}">\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def clean(text: str) -> str:
    """Text that XML can hold: escaped, and without the characters that XML has no way to write."""
    return escape(_FORBIDDEN.sub("\ufffd", text))


def ending(text: str, most: int) -> str:
    """The end of a name, which says most."""
    return text if len(text) <= most else "…" + text[len(text) - most + 1 :] if most > 1 else ""


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
