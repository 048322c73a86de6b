"""Prints tables and lines with rich, which loads on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.cli.render import text
from placewright.cli.wrapping import output_width, wrap_line
from placewright.errors import printable
from placewright.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placewright.problem import Problem
    from placewright.result import DeviceUse
    from placewright.solvers import Comparison

FOLD_WIDTH = 24  # characters of a name that a narrow terminal shows in one line
UNWRAPPED_WIDTH = 100_000  # columns of what is no terminal: nothing is folded there
MAX_DEVICES = 16  # up to which all devices are shown; of more, those that do nothing are not


def print_lines(lines: Iterable[str]) -> None:
    """Plain lines, wrapped at words where the terminal is narrow; not at all without one."""
    width = output_width()
    for line in lines:
        for part in wrap_line(printable(line), width):
            print(part)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    text_columns: int = 1,
    blank_line: bool = True,
    multiline: bool = False,
) -> None:
    """A table whose first `text_columns` columns are words and whose others are numbers.

    A row that begins with `*` is highlighted. On a narrow terminal words are folded, and numbers
    run over the edge rather than lose digits.

    Args:
        blank_line: Whether an empty line goes before it.
        multiline: Whether cells may have several lines.
    """
    from rich.table import Table

    columns = [printable(column) for column in columns]
    if multiline:
        rows = [["\n".join(map(printable, cell.split("\n"))) for cell in row] for row in rows]
    else:
        rows = [[printable(cell) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        if at < text_columns:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row, style="bold green" if row[0].startswith("*") else None)
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    table_width = sum(
        min(width, FOLD_WIDTH) if at < text_columns else width for at, width in enumerate(widths)
    )
    console = _console(table_width + 2 * (len(widths) - 1))
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    if blank_line:
        print()
    for line in lines:
        print(line.rstrip(" "))


def print_result(comparison: Comparison) -> None:
    """What `place` and `simulate` show: the best result, and what it does with each device."""
    result, problem = comparison.best, comparison.problem
    print_lines(text.summary_lines(comparison))
    uses = [
        use for use in result.devices if len(result.devices) <= MAX_DEVICES or use.ops or use.peak
    ]
    model = {device.name: device.model for device in problem.cluster.devices}
    value = result.objective_value
    print_table(
        ("device", "model", "ops", "busy", f"of {text.objective_name(result)}"),
        [
            (
                use.name,
                model[use.name],
                f"{use.ops:,}",
                format_seconds(use.busy),
                format_percent(use.busy / value if value else 0.0),
            )
            for use in uses
        ],
        text_columns=2,
    )
    _print_memory(problem, uses)
    if len(uses) < len(result.devices):
        print_lines(["", f"{len(result.devices) - len(uses)} more devices are idle and empty"])


def print_comparison(comparison: Comparison) -> None:
    """What `compare` shows: the best method first, and marked."""
    best = comparison.best
    unfit = [] if best.fits else ["no plan fits: the closest one is first, and no time can be had"]
    print_lines([*unfit, text.problem_line(comparison.name, comparison.problem)])
    print_table(
        (
            *("  method", "step time", "period", f"vs {comparison.single_device_name}"),
            *("gap", "fits", "evaluations", "seconds"),
        ),
        [
            (
                f"{'*' if result is best and best.fits else ' '} {result.solver}",
                format_seconds(result.step_time),
                format_seconds(result.period),
                "–" if (ratio := comparison.speedup(result)) is None else f"{ratio:.2f}x",
                format_percent(result.gap) if result.fits else "–",
                "yes" if result.fits else "no",
                f"{result.evaluations:,}",
                f"{result.seconds:.2f}",
            )
            for result in sorted(
                comparison.results, key=lambda result: (result is not best, result.key)
            )
        ],
    )
    overflows = [
        f"{result.solver} {format_bytes(result.overflow)}"
        for result in comparison.results
        if not result.fits
    ]
    criterion = comparison.criterion or text.objective_name(best)
    legend = [f"* best by {criterion}"] if best.fits else []
    lines = ["", *legend, text.single_device_line(comparison)]
    lines += [text.bound_line(best)] if best.fits else []
    lines += [f"out of memory: {', '.join(overflows)}"] if overflows else []
    lines += best.notes
    faster = [result.solver for result in comparison.faster_by_estimate]
    lines += (
        [f"predicted faster, but not with slow hand-overs: {', '.join(faster)}"] if faster else []
    )
    lines += [comparison.skipped_line] if comparison.skipped else []
    lines += [text.INTERRUPTED_LINE] if comparison.interrupted else []
    print_lines(lines)


def _print_memory(problem: Problem, uses: Sequence[DeviceUse]) -> None:
    """The memory of each device, its limit and reserve, and what the plan uses."""
    total = {device.name: device.memory for device in problem.cluster.devices}
    limits = problem.constraints.limits
    columns = ["memory", "total", "reserve", "usable", "peak", "free", "fits"]
    rows = [
        [
            use.name,
            text.format_memory(total[use.name]),
            format_bytes(use.reserve),
            text.format_memory(use.limit),
            format_bytes(use.peak),
            _free_memory(use),
            "yes" if use.peak <= use.limit else "no",
        ]
        for use in uses
    ]
    if limits:
        columns.insert(2, "limit")
        for row, use in zip(rows, uses, strict=True):
            row.insert(2, text.format_memory(limits[use.name]) if use.name in limits else "–")
    print_table(columns, rows)


def _free_memory(use: DeviceUse) -> str:
    if use.peak > use.limit:
        return f"−{format_bytes(use.peak - use.limit)}"
    return text.format_memory(use.limit - use.peak)


def _console(min_width: int) -> Any:
    """A console. Names are data: no markup, no emoji and no colours for numbers in them."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    console.width = max(output_width() or UNWRAPPED_WIDTH, min_width)
    return console
