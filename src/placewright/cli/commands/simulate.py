"""`placewright simulate`: evaluates an existing plan."""

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options, panels
from placewright.cli.output_files import OutputFiles
from placewright.cli.paths import check_writable, find_plan
from placewright.cli.problem_options import ProblemOptions, with_problem_options
from placewright.cli.progress import Progress
from placewright.cli.workload_commands import simulate_workload
from placewright.cli.workloads import names_workload
from placewright.errors import ConfigError


@with_problem_options
def simulate_plan(
    problem_options: ProblemOptions,
    plan: Annotated[
        Path,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="A plan, result or split file.",
            show_default=False,
            rich_help_panel=panels.PROBLEM,
        ),
    ],
    in_flight: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            min=2,
            help="Also simulate STEPS pipelined steps at once.",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    trace: options.Trace = None,
    json: options.Json = False,
) -> None:
    """Evaluate an existing plan."""
    from placewright.cli.render import json_output, tables, text
    from placewright.simulator import simulate_in_flight
    from placewright.solvers import Comparison, evaluate
    from placewright.solvers.registry import placement_name

    check_writable(trace)
    if names_workload(problem_options):
        if trace is not None or in_flight is not None:
            raise ConfigError(
                "--trace and --in-flight are for one problem: a workload has several calls"
            )
        simulate_workload(problem_options, plan, json)
        return
    with Progress(f"reading {problem_options.model}"):
        problem = problem_options.problem()
        method, fitted_plan = find_plan(problem, plan)
        result = evaluate(problem, fitted_plan, placement_name(method))
        comparison = Comparison(problem, (result,), name=problem_options.model)
        flight = None if in_flight is None else simulate_in_flight(problem, fitted_plan, in_flight)
    written = OutputFiles()
    written.write(json_output.save_timeline, comparison, trace)
    if json:
        data = json_output.answer_data(comparison)
        if flight is not None:
            data["in_flight"] = json_output.in_flight_data(flight)
        json_output.print_json(data)
    else:
        tables.print_result(comparison)
        flight_lines = [] if flight is None else [text.in_flight_line(flight)]
        lines = [*flight_lines, *written.lines]
        tables.print_lines(["", *lines] if lines else [])
    written.check()
