"""`placewright compare`: a model and a cluster in, every method side by side out."""

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options
from placewright.cli.asked import Asked, stop_rule
from placewright.cli.progress import Progress
from placewright.cli.resolve import check_writable, find_method, find_plan
from placewright.errors import PlacewrightError

INTERRUPTED = 130


def run(
    model: options.Model,
    on: options.On = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", metavar="NAMES", help="These methods alone, such as single,heft."),
    ] = None,
    budget: options.Budget = None,
    evaluations: options.Evaluations = None,
    seed: options.Seed = 0,
    start: options.Start = None,
    objective: options.Goal = None,
    discipline: options.Rule = None,
    use: options.Use = None,
    reserve: options.Reserve = None,
    limit: options.Limit = None,
    pin: options.Pin = None,
    forbid: options.Forbid = None,
    colocate: options.Colocate = None,
    costs: options.Costs = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Write the best plan to a file, or one plan a method into a folder.",
        ),
    ] = None,
    trace: options.Trace = None,
    json: options.Json = False,
) -> None:
    """Run every method, each with the whole budget, and show them side by side."""
