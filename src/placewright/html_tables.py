"""HTML fragments with which objects show themselves in notebooks.

Styles are inline and take their colours from the page, so that they work in light and dark themes.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_RULE = "border-bottom:1px solid rgba(128,128,128,.35)"
_CELL = "padding:2px 12px 2px 0;border:none;background:none;white-space:nowrap"
_FAINT = "opacity:.7"
OP_COLOUR = "#4c8fd6"
TRANSFER_COLOUR = "#d08b3a"


def html_card(title: str, lines: Iterable[str] = (), *blocks: str) -> str:
    """A heading, lines of text under it, and fragments that are HTML already."""
    text = "".join(f'<div style="{_FAINT}">{escape(line)}</div>' for line in lines)
    heading = f'<div style="font-weight:600">{escape(title)}</div>'
    return (
        '<div style="font-variant-numeric:tabular-nums;line-height:1.45;max-width:60em">'
        f"{heading}{text}{''.join(blocks)}</div>"
    )


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    text_columns: int = 1,
    bold_row: int | None = None,
    limit: int = 40,
) -> str:
    """A table whose first `text_columns` columns are words and whose others are numbers.

    Args:
        bold_row: The row that stands out.
        limit: Rows that are shown; a line says how many there are beside.
    """
    aligned = ["left" if at < text_columns else "right" for at in range(len(columns))]

    def cells(tag: str, values: Sequence[str], style: str) -> str:
        return "".join(
            f'<{tag} style="{_CELL};{style};text-align:{side}">{escape(value)}</{tag}>'
            for value, side in zip(values, aligned, strict=True)
        )

    body = "".join(
        f"<tr>{cells('td', row, 'font-weight:600' if at == bold_row else '')}</tr>"
        for at, row in enumerate(rows[:limit])
    )
    more = (
        f'<div style="{_FAINT}">and {len(rows) - limit:,} more</div>' if len(rows) > limit else ""
    )
    return (
        '<table style="border-collapse:collapse;margin:.5em 0">'
        f"<thead><tr>{cells('th', columns, _RULE)}</tr></thead><tbody>{body}</tbody></table>{more}"
    )


def html_lanes(lanes: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]) -> str:
    """A chart of what is busy when.

    Args:
        lanes: A name, a colour and (start, end) of each interval, as shares of the whole.
    """
    label = "width:9em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
    rows = []
    for name, colour, intervals in lanes:
        bars = "".join(
            f'<rect x="{start * 1000:.1f}" y="0" height="10" fill="{colour}" '
            f'width="{max((end - start) * 1000, 0.5):.1f}"/>'
            for start, end in intervals
        )
        rows.append(
            f'<div style="display:flex;align-items:center;{_RULE}">'
            f'<div style="{label}" title="{escape(name)}">{escape(name)}</div>'
            '<svg viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" '
            f'aria-label="{escape(name)}" style="flex:1;height:14px">{bars}</svg></div>'
        )
    return f'<div style="margin:.5em 0">{"".join(rows)}</div>'
