"""`placewright place`: finds a plan for a model on a cluster."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.cli.completion import complete_method
from placewright.cli.methods import find_method
from placewright.cli.names import METHOD_NAMES, POLICY_NAMES
from placewright.cli.output_files import OutputFiles
from placewright.cli.paths import check_json, check_writable, find_plan, is_this_machine
from placewright.cli.problem_options import (
    ProblemOptions,
    evaluation_limit,
    parse_budget,
    with_problem_options,
)
from placewright.cli.progress import Progress
from placewright.cli.workload_commands import place_workload
from placewright.cli.workloads import names_workload
from placewright.errors import ConfigError

if TYPE_CHECKING:
    from placewright.solvers import Solver


@with_problem_options
def place_model(
    problem_options: ProblemOptions,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help=f"Search method: {', '.join(METHOD_NAMES)}; a policy: {', '.join(POLICY_NAMES)}; "
            "or the folder of a trained run.",
            autocompletion=complete_method,
            rich_help_panel=panels.SEARCH,
        ),
    ] = "auto",
    fuse: Annotated[
        bool,
        typer.Option(
            "--fuse",
            help="(auto only) Also fuse ops, for a runtime that does so.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = False,
    proposer: Annotated[
        str | None,
        typer.Option(
            "--proposer",
            metavar="NAME",
            help="(auto only) A trained helper: scout ranks moves before they are evaluated, pair "
            "and go propose plans; none. [default: scout]",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    budget: options.Budget = None,
    evaluations: options.Evaluations = None,
    seed: options.Seed = 0,
    workers: options.WorkersOption = None,
    warm_start: options.WarmStart = None,
    robust: options.Robust = False,
    cost_trials: options.CostTrials = None,
    cost_noise: options.CostNoise = None,
    cautious: options.Cautious = True,
    measure: Annotated[
        int | None,
        typer.Option(
            "--measure",
            metavar="K",
            min=1,
            help="Run the best K plans and every single device on this machine, and take the "
            "fastest. With --on here, ops are measured first.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            help="Show what binds the plan and what would help; takes a moment.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the plan and its figures.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = None,
    trace: options.Trace = None,
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Find a plan: which device each op runs on, and in which order."""
    from placewright import explanations, solvers
    from placewright.cli.render import json_output, measured, robustness, tables
    from placewright.cli.render.explanation import explanation_data, reason_lines
    from placewright.cli.render.text import INTERRUPTED_STATUS

    check_writable(output, trace, report)
    check_json(output, "a result")
    robust_choice = robustness.robust_selection(robust, cost_trials, cost_noise, seed)
    if names_workload(problem_options):
        if any(value is not None for value in (trace, measure, robust_choice, workers)):
            raise ConfigError(
                "--trace, --measure, --robust and --workers are for one problem: a workload has "
                "several calls"
            )
        solver = _configure(find_method(method), fuse, proposer)
        efforts = (budget, evaluations, seed, warm_start)
        place_workload(problem_options, solver, *efforts, output, report, json)
        return
    if measure is not None and robust_choice is not None:
        raise ConfigError("--measure with --robust: they choose by different rules: give one")
    if measure is not None:
        problem_options = _with_measured_costs(problem_options)
    measured_choice = (
        None if measure is None else measured.measured_selection(problem_options, measure)
    )
    solver = _configure(find_method(method), fuse, proposer)
    seconds, stop = parse_budget(budget), evaluation_limit(evaluations)
    if seconds is None and stop is None and method in solvers.SEARCHES:
        seconds = parse_budget(solvers.results.DEFAULT_BUDGET)
    with Progress(f"reading {problem_options.model}") as progress:
        problem = problem_options.problem()
        start_plan = None if warm_start is None else find_plan(problem, warm_start)[1]
        result = solvers.solve(
            problem,
            solver,
            stop,
            seed,
            progress.watch(method),
            start_plan,
            measured_choice or robust_choice,
            budget=seconds,
            keep_interrupted=True,
            cautious=cautious,
            workers=workers,
        )
        if measured_choice is not None:
            measured_choice.meter.close()
        result = replace(result, options=problem_options.to_dict())
        explanation = None
        if explain and not result.interrupted:
            is_chosen = measured_choice is not None or robust_choice is not None
            if isinstance(solver, solvers.Auto) and not is_chosen:
                result, explanation = explanations.explain_best(problem, result)
            else:
                explanation = explanations.explain(problem, result)
        comparison = solvers.Comparison(
            problem, (result,), interrupted=result.interrupted, name=problem_options.model
        )
    written = OutputFiles()
    written.write(json_output.save_result, result, output)
    written.write(json_output.save_timeline, comparison, trace)
    written.write(json_output.save_report, comparison, report, explanation)
    ranked = [] if robust_choice is None or result.interrupted else robust_choice.ranked
    if json:
        data: dict[str, Any] = json_output.answer_data(comparison)
        if explanation is not None:
            data["why"] = explanation_data(problem, explanation)
        if robust_choice is not None and ranked:
            data["robust"] = robustness.selection_data(robust_choice)
        if measured_choice is not None:
            data["measured"] = measured.measured_data(measured_choice)
        json_output.print_json(data)
    else:
        if measured_choice is not None:
            tables.print_lines(measured.measured_lines(measured_choice, method))
        tables.print_result(comparison)
        if ranked:
            rows = [(each.candidate.found_by or method, each.robustness) for each in ranked]
            robustness.print_robustness(rows, "plan by")
        tables.print_lines([] if explanation is None else ["", *reason_lines(explanation)])
        tables.print_lines(["", *written.lines] if written.lines else [])
    written.check()
    if result.interrupted:
        raise typer.Exit(INTERRUPTED_STATUS)


def _with_measured_costs(problem_options: ProblemOptions) -> ProblemOptions:
    """The options with ops measured here, if nothing else is requested: plans are, too."""
    here = problem_options.on is not None and is_this_machine(problem_options.on)
    if here and problem_options.costs is None:
        return replace(problem_options, costs=Path("here"))
    return problem_options


def _configure(solver: "Solver", fuse: bool, proposer: str | None) -> "Solver":
    """The solver with the options that `auto` alone has."""
    from placewright.solvers import Auto

    if fuse:
        if not isinstance(solver, Auto):
            raise ConfigError(f"--fuse with method {solver.name!r}: only auto fuses ops")
        solver = replace(solver, fuse=True)
    if proposer is not None:
        if not isinstance(solver, Auto):
            raise ConfigError(f"--proposer with method {solver.name!r}: only auto takes proposers")
        from placewright.training.proposers import named

        solver = replace(solver, proposers=named(proposer))
    return solver
