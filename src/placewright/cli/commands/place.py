"""`placewright place`: finds a plan for a model on a cluster."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.cli.completion import complete_method
from placewright.cli.methods import find_method
from placewright.cli.names import METHOD_NAMES, POLICY_NAMES
from placewright.cli.output_files import OutputFiles
from placewright.cli.paths import check_json, check_writable, find_plan
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
    islands: Annotated[
        int | None,
        typer.Option(
            "--islands",
            metavar="K",
            min=1,
            help="(auto only) Run K searches side by side, which exchange their best plans.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="(auto and islands) Write each finished round and measured plan to FILE; the "
            "same command goes on from there if it was stopped.",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    budget: options.Budget = None,
    evaluations: options.Evaluations = None,
    seed: options.Seed = 0,
    workers: options.WorkersOption = None,
    warm_start: options.WarmStart = None,
    fresh: options.Fresh = False,
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
    store: options.StoreLocation = None,
) -> None:
    """Find a plan: which device each op runs on, and in which order."""
    from placewright import explanations, solvers
    from placewright.cli.render import json_output, measured, robustness, tables
    from placewright.cli.render.explanation import explanation_data, reason_lines
    from placewright.cli.render.text import INTERRUPTED_STATUS
    from placewright.files.journal import Journal
    from placewright.store import open_store
    from placewright.store.search_start import find_start, store_result

    check_writable(output, trace, report)
    check_json(output, "a result")
    plan_store = open_store(store)
    # A journal is of one run: what the store has by now must not change what is in it.
    has_own_start = warm_start is not None or journal is not None
    is_fresh = fresh or has_own_start or method not in solvers.SEARCHES
    robust_choice = robustness.robust_selection(robust, cost_trials, cost_noise, seed)
    if names_workload(problem_options):
        single = (trace, measure, robust_choice, workers, islands, journal)
        if any(option is not None for option in single):
            raise ConfigError(
                "--trace, --measure, --robust, --workers, --islands and --journal are for one "
                "problem: a workload has several calls"
            )
        solver = _configure(find_method(method), fuse, proposer)
        efforts = (budget, evaluations, seed, warm_start)
        place_workload(
            problem_options, solver, *efforts, output, report, json, plan_store, is_fresh
        )
        return
    if measure is not None and robust_choice is not None:
        raise ConfigError("--measure with --robust: they choose by different rules: give one")
    if measure is not None:
        problem_options = measured.with_measured_costs(problem_options)
    measured_choice = (
        None if measure is None else measured.measured_selection(problem_options, measure)
    )
    solver = _configure(find_method(method), fuse, proposer)
    solver = _on_islands(solver, islands, journal)
    seconds, stop = parse_budget(budget), evaluation_limit(evaluations)
    if seconds is None and stop is None and method in solvers.SEARCHES:
        seconds = parse_budget(solvers.results.DEFAULT_BUDGET)
    with (
        nullcontext() if journal is None else Journal(journal) as open_journal,
        Progress(f"reading {problem_options.model}") as progress,
    ):
        if open_journal is not None:
            solver = replace(solver, journal=open_journal)
            if measured_choice is not None:
                measured_choice.meter.journal = open_journal
        problem = problem_options.problem()
        start_plan = None if warm_start is None else find_plan(problem, warm_start)[1]
        start = None if is_fresh else find_start(plan_store, problem, fuse)
        result = solvers.solve(
            problem,
            solver,
            stop,
            seed,
            progress.watch(method),
            start_plan if start is None else start.plan,
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
            if isinstance(solver, solvers.Auto | solvers.Islands) and not is_chosen:
                result, explanation = explanations.explain_best(problem, result)
            else:
                explanation = explanations.explain(problem, result)
        if start is not None:
            result = replace(result, notes=(start.text, *result.notes))
        store_result(plan_store, problem, result, problem_options.model, fuse)
        if measured_choice is not None:
            measured.store_measurements(plan_store, measured_choice, problem_options.model)
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
        data["start"] = None if start is None else start.data
        if explanation is not None:
            data["why"] = explanation_data(problem, explanation)
        if robust_choice is not None and ranked:
            data["robust"] = robustness.selection_data(robust_choice)
        if measured_choice is not None:
            data["measured"] = measured.measured_data(measured_choice.ranking)
        json_output.print_json(data)
    else:
        if measured_choice is not None:
            choice = "the fastest plan that fits"
            tables.print_lines(measured.measured_lines(measured_choice.ranking, method, choice))
        tables.print_result(comparison)
        if ranked:
            rows = [(each.candidate.found_by or method, each.robustness) for each in ranked]
            robustness.print_robustness(rows, "plan by")
        tables.print_lines([] if explanation is None else ["", *reason_lines(explanation)])
        tables.print_lines(["", *written.lines] if written.lines else [])
    written.check()
    if result.interrupted:
        raise typer.Exit(INTERRUPTED_STATUS)


def _configure(solver: "Any", fuse: bool, proposer: str | None) -> "Any":
    """The solver with the options that `auto` alone has."""
    from placewright.solvers import Auto, Islands

    if isinstance(solver, Islands):
        return replace(
            solver, autos=tuple(_configure(auto, fuse, proposer) for auto in solver.autos)
        )
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


def _on_islands(solver: "Any", count: int | None, journal: Path | None) -> "Any":
    """The solver on several islands; with a journal `auto` is a single one, in rounds."""
    from placewright.solvers import Auto, Islands

    if count is None and journal is None:
        return solver
    if isinstance(solver, Auto):
        return Islands(count or 1, (solver,), journal=journal)
    if not isinstance(solver, Islands):
        option = "--journal" if count is None else "--islands"
        raise ConfigError(f"{option} with method {solver.name!r}: only auto runs in rounds")
    return replace(solver, count=count or solver.count, journal=journal)
