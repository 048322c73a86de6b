"""`placewright simulate`: a model, a cluster and a plan in, what the plan's step looks like out."""

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options
from placewright.cli.problem_options import Asked
from placewright.cli.progress import Progress
from placewright.cli.resolve import check_writable, find_plan


def simulate_plan(
    model: options.Model,
    plan: Annotated[
        Path,
        typer.Option(
            "--plan", metavar="FILE", help="A plan, result or split file.", show_default=False
        ),
    ],
    on: options.On = None,
    objective: options.Goal = None,
    discipline: options.Rule = None,
    use: options.Use = None,
    reserve: options.Reserve = None,
    limit: options.Limit = None,
    pin: options.Pin = None,
    forbid: options.Forbid = None,
    colocate: options.Colocate = None,
    costs: options.Costs = None,
    training: options.Training = False,
    optimizer: options.Optimizer = None,
    dims: options.Dims = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS", min=2, help="Also run so many steps at once, as a pipeline does."
        ),
    ] = None,
    trace: options.Trace = None,
    json: options.Json = False,
) -> None:
    """Judge a plan that is there already."""
    typed = locals()
    from placewright.cli import answer
    from placewright.cli.render import tables, text
    from placewright.cli.render.json_output import (
        answer_data,
        flight_data,
        print_json,
        save,
    )
    from placewright.simulator import simulate_in_flight
    from placewright.solvers import METHODS

    check_writable(trace)
    asked = Asked.of(typed)
    with Progress(f"reading {model}"):
        problem = asked.problem()
        name, given = find_plan(problem, plan)
        if name in METHODS and hasattr(METHODS[name], "as_run"):  # whose runtime is not simulated
            name = f"{name}'s placement"
        result = answer.judge(problem, name, given)
        found = answer.Answer(model, problem, result, answer.best_single(problem))
        flight = None if in_flight is None else simulate_in_flight(problem, given, in_flight)
    said = save(found, None, trace)
    if json:
        more = {} if flight is None else {"in_flight": flight_data(flight)}
        print_json(answer_data(found) | more)
        return
    tables.print_answer(found)
    said = said if flight is None else [text.flight_line(flight), *said]
    tables.print_lines(["", *said] if said else [])
