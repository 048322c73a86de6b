"""Builds SVG text from shapes; names are data and are escaped."""

from __future__ import annotations

import re
from html import escape
from typing import Self

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FONT = "system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif"


class Canvas:
    """Collects shapes; `text()` gives the SVG."""

    def __init__(self, width: float, height: float, background: str, title: str) -> None:
        self.width, self.height = width, height
        self.elements = [f"<title>{escape_xml(title)}</title>"]
        self.rect(0, 0, width, height, background)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        attributes: str = "",
        tooltip: str = "",
    ) -> Self:
        """A filled rectangle; `tooltip` shows when it is pointed at."""
        left, top, wide, high = map(_format_number, (x, y, width, height))
        opening = f'<rect x="{left}" y="{top}" width="{wide}" height="{high}"'
        closing = f"><title>{escape_xml(tooltip)}</title></rect>" if tooltip else "/>"
        self.elements.append(
            f'{opening} fill="{fill}"{f" {attributes}" if attributes else ""}{closing}'
        )
        return self

    def path(self, path_data: str, colour: str, width: float, attributes: str = "") -> Self:
        """A line along `path_data`, in SVG's own words."""
        stroke = f'stroke="{colour}" stroke-width="{_format_number(width)}"'
        self.elements.append(
            f'<path d="{path_data}" fill="none" {stroke}{f" {attributes}" if attributes else ""}/>'
        )
        return self

    def label(
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
        left, foot, points = map(_format_number, (x, y, size))
        self.elements.append(
            f'<text x="{left}" y="{foot}" fill="{fill}" font-size="{points}" '
            f'text-anchor="{anchor}"{weight}>{escape_xml(text)}</text>'
        )
        return self

    def to_svg(self) -> str:
        """The whole picture."""
        width, height = _format_number(self.width), _format_number(self.height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{FONT}">\n'
            + "\n".join(self.elements)
            + "\n</svg>\n"
        )


def escape_xml(text: str) -> str:
    """Text that XML can hold: escaped, and without the characters that XML has no way to write."""
    return escape(_FORBIDDEN.sub("\ufffd", text))


def shorten_start(text: str, max_length: int) -> str:
    """The end of a name, which says most."""
    return (
        text
        if len(text) <= max_length
        else "…" + text[len(text) - max_length + 1 :]
        if max_length > 1
        else ""
    )


def _format_number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
