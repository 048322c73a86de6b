"""`placewright compare`: runs every method on one problem, side by side."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.cli.completion import complete_methods
from placewright.cli.methods import find_method
from placewright.cli.output_files import OutputFiles
from placewright.cli.paths import check_json, check_writable, find_folder
from placewright.cli.problem_options import (
    ProblemOptions,
    evaluation_limit,
    parse_budget,
    with_problem_options,
)
from placewright.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.result import Result
    from placewright.solvers import Robustness, Search, Solver


@with_problem_options
def compare_methods(
    problem_options: ProblemOptions,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="NAMES",
            help="Methods of `place`, e.g. single,heft, or all; by default all but pure searches.",
            autocompletion=complete_methods,
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    budget: options.Budget = None,
    evaluations: options.Evaluations = None,
    seed: options.Seed = 0,
    workers: options.WorkersOption = None,
    robust: options.Robust = False,
    cost_trials: options.CostTrials = None,
    cost_noise: options.CostNoise = None,
    cautious: options.Cautious = True,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Write the best plan to a file, e.g. best.json, or every method's into a folder.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = None,
    trace: options.Trace = None,
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Run every method, each with the whole budget, and show them side by side."""
    from placewright import solvers
    from placewright.cli.render import json_output, robustness, tables
    from placewright.cli.render.text import INTERRUPTED_STATUS

    folder = None if output is None else find_folder(output)
    check_writable(None if folder else output, trace, report)
    check_json(None if folder else output, "a result")
    names = _method_names(methods)
    chosen: Any = methods
    if methods not in (None, "all"):
        chosen = [find_method(name) for name in names]
    selection = robustness.robust_selection(robust, cost_trials, cost_noise, seed)
    figures: dict[str, Robustness] = {}

    def record(result: "Result") -> None:
        if selection is not None and not result.interrupted:
            figures[result.solver] = selection.ranked[0].robustness

    with Progress(f"reading {problem_options.model}") as progress:
        problem = problem_options.problem()
        comparison = solvers.compare(
            problem,
            chosen,
            parse_budget(budget),
            evaluation_limit(evaluations),
            seed,
            selection,
            progress=_watch(progress, names),
            on_result=record,
            keep_interrupted=True,
            cautious=cautious,
            workers=workers,
        )
    saved = problem_options.to_dict()
    comparison = replace(
        comparison,
        results=tuple(replace(result, options=saved) for result in comparison.results),
        name=problem_options.model,
    )
    is_robust = bool(figures) and not comparison.interrupted
    if is_robust:
        comparison = replace(
            comparison,
            rank=_robust_rank(figures),
            criterion="robustness to cost errors, see below",
        )
    best = comparison.best
    written = OutputFiles()
    written.write(json_output.save_result, best, None if folder else output)
    written.write(json_output.save_timeline, comparison, trace)
    if folder is not None:
        for result in comparison.results:
            written.write(json_output.save_result, result, folder / f"{result.solver}.json")
    written.write(json_output.save_report, comparison, report)
    if json:
        ordered = sorted(comparison.results, key=lambda result: (result is not best, result.key))
        rows = [json_output.result_data(problem, result) for result in ordered]
        for row in rows if is_robust else ():
            row["robustness"] = robustness.robustness_data(figures[row["method"]])
        json_output.print_json(
            {
                **json_output.problem_data(problem),
                "bound": best.bound,
                "bound_name": best.bound_name,
                "best_single": json_output.single_device_data(comparison),
                "best": best.solver,
                **({"criterion": comparison.criterion} if comparison.criterion else {}),
                **({"rule": robustness.SELECTION_RULE} if is_robust else {}),
                "methods": rows,
                "skipped": [
                    {"method": name, "reason": reason} for name, reason in comparison.skipped
                ],
                "interrupted": comparison.interrupted,
            }
        )
    else:
        tables.print_comparison(comparison)
        if is_robust:
            chosen_row = list(figures).index(best.solver)
            robustness.print_robustness(list(figures.items()), "method", chosen_row)
        tables.print_lines(["", *written.lines] if written.lines else [])
    written.check()
    if comparison.interrupted:
        raise typer.Exit(INTERRUPTED_STATUS)


def _method_names(methods: str | None) -> list[str]:
    from placewright.solvers import METHODS
    from placewright.solvers.comparison import default_methods

    if methods is None:
        return default_methods()
    if methods == "all":
        return list(METHODS)
    return [word.strip() for word in methods.split(",")]


def _watch(progress: Progress, names: list[str]) -> "Callable[[Solver, Search], None]":
    watches: dict[str, Callable[[Search], None]] = {}

    def on_progress(solver: "Solver", search: "Search") -> None:
        if solver.name not in watches:
            watches[solver.name] = progress.watch(solver.name, len(watches), len(names))
        watches[solver.name](search)

    return on_progress


def _robust_rank(figures: "dict[str, Robustness]") -> "Callable[[Result], tuple[float, ...]]":
    return lambda result: (result.overflow, *figures[result.solver].key)
