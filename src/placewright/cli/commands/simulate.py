"""`placewright simulate`: judges an existing plan."""

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options
from placewright.cli.problem_options import ProblemOptions
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
    objective: options.ObjectiveOption = None,
    discipline: options.DisciplineOption = None,
    use: options.UseDevices = None,
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
    arguments = locals()
    from placewright.cli import answer
    from placewright.cli.render import tables, text
    from placewright.cli.render.json_output import (
        evaluation_data,
        in_flight_data,
        print_json,
        save_files,
    )
    from placewright.simulator import simulate_in_flight
    from placewright.solvers import METHODS

    check_writable(trace)
    problem_options = ProblemOptions.from_arguments(arguments)
    with Progress(f"reading {model}"):
        problem = problem_options.problem()
        name, fitted_plan = find_plan(problem, plan)
        if name in METHODS and hasattr(
            METHODS[name], "as_executed"
        ):  # whose runtime is not simulated
            name = f"{name}'s placement"
        result = answer.evaluate_plan(problem, name, fitted_plan)
        evaluation = answer.Evaluation(model, problem, result, answer.best_single_device(problem))
        flight = None if in_flight is None else simulate_in_flight(problem, fitted_plan, in_flight)
    messages = save_files(evaluation, None, trace)
    if json:
        extra = {} if flight is None else {"in_flight": in_flight_data(flight)}
        print_json(evaluation_data(evaluation) | extra)
        return
    tables.print_evaluation(evaluation)
    messages = messages if flight is None else [text.in_flight_line(flight), *messages]
    tables.print_lines(["", *messages] if messages else [])
