"""`placewright fits`: shows whether a model fits the devices, and what takes the memory."""

import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.cli.problem_options import ProblemOptions, with_problem_options
from placewright.cli.progress import Progress
from placewright.errors import ConfigError

if TYPE_CHECKING:
    from placewright.explanations import MemoryFit

Sizes = dict[str, int]


@with_problem_options
def check_fit(
    problem_options: ProblemOptions,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="SIZES",
            help="Batch sizes to try, e.g. 1,8,32.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="SIZES",
            help="Tokens per sample, e.g. 512,2048.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="SIZES",
            help="Tokens in the cache, e.g. 0,8192.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show whether a model fits, and what takes the memory.

    By weights, states of the optimizer, cache and activations, per device. Where it does not fit on
    one device: whether it fits in parts, with the time of a quick plan, and which limit would do.

    Built-in models take their sizes by name; a Python file's function takes those that it has as
    parameters: def build(batch=1, tokens=512).
    """
    from placewright.cli.render import json_output, memory_fit, tables
    from placewright.explanations import fits

    lists = {"batch": batch, "tokens": tokens, "context": context_tokens}
    sizes = {name: _parse_sizes(name, text) for name, text in lists.items() if text is not None}
    rows: list[tuple[Sizes, MemoryFit]] = []
    with Progress(f"reading {problem_options.model}"):
        for values in itertools.product(*sizes.values()):
            chosen = dict(zip(sizes, values, strict=True))
            rows.append((chosen, fits(problem_options.problem(chosen))))
    if json:
        problem = rows[0][1].problem
        data: dict[str, Any] = {
            "model": problem_options.model,
            "cluster": problem.cluster.name,
            "fits": all(fit.fits for _, fit in rows),
            "rows": [memory_fit.fit_data(chosen, fit) for chosen, fit in rows],
        }
        json_output.print_json(data)
        return
    if len(rows) == 1:
        (only,) = rows
        tables.print_lines(memory_fit.fit_lines(problem_options.model, only[1]))
        tables.print_table(*memory_fit.device_table(only[1]))
        remedies = only[1].remedies
        tables.print_lines(["", *remedies] if remedies else [])
        return
    tables.print_lines(memory_fit.sweep_lines(problem_options.model, rows))
    tables.print_table(*memory_fit.sweep_table(rows))
    lines = memory_fit.sweep_remedies(rows)
    tables.print_lines(["", *lines] if lines else [])


def _parse_sizes(name: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"--{name} {text!r}: expected whole numbers with commas, such as 1,8,32")
    return list(dict.fromkeys(map(int, words)))
