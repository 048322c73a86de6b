"""`placewright report`: shows saved results on one page."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli import options, panels
from placewright.cli.paths import check_writable, load_plan
from placewright.cli.problem_options import ProblemOptions, with_saved_problem_options
from placewright.cli.progress import Progress
from placewright.cli.workload_commands import report_workload
from placewright.cli.workloads import holds_workload_plan
from placewright.errors import ConfigError, PlanError
from placewright.units import format_seconds

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result

TIME_TOLERANCE = 1e-9  # as a share: a time that differs by less is the same


@with_saved_problem_options
def report_results(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT", help="Result or plan files of one problem.", show_default=False
        ),
    ],
    problem_options: ProblemOptions,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The page to write.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = Path("report.html"),
    json: options.Json = False,
) -> None:
    """Show saved results on one HTML page.

    A result file has the options of its problem; those given here replace them.
    """
    from placewright.cli.render import json_output, tables
    from placewright.solvers import Comparison
    from placewright.solvers.comparison import rank_cautiously

    check_writable(output)
    if holds_workload_plan(results[0]):
        if len(results) > 1:
            raise ConfigError("a workload's result has a page of its own: give one file")
        report_workload(results[0], problem_options, output, json)
        return
    nouns = [load_plan(path) for path in results]
    problem_options = ProblemOptions.from_files(results, nouns, problem_options)
    with Progress(f"reading {problem_options.model}"):
        problem = problem_options.problem()
        evaluations = [
            _evaluate_file(problem, path, noun) for path, noun in zip(results, nouns, strict=True)
        ]
        evaluated = tuple(result for result, _ in evaluations)
        notes = [note for _, file_notes in evaluations for note in file_notes]
        labels = _labels(results, evaluated)
        comparison = Comparison(problem, evaluated, labels, name=problem_options.model)
        comparison = rank_cautiously(comparison)  # as `compare` ranks
        messages = json_output.save_report(comparison, output, notes=notes)
    if json:
        methods = [json_output.result_data(problem, result) for result in evaluated]
        json_output.print_json(
            {
                **json_output.problem_data(problem),
                "report": str(output),
                "methods": methods,
                "notes": notes,
            }
        )
    else:
        tables.print_lines([*notes, *messages])


def _evaluate_file(
    problem: "Problem", path: Path, noun: "Plan | Result"
) -> "tuple[Result, list[str]]":
    """The result on this problem, and what differs from when it was saved."""
    from placewright import files
    from placewright.result import Result
    from placewright.solvers import evaluate

    plan = noun.plan if isinstance(noun, Result) else noun
    graph, cluster = problem.graph, problem.cluster
    for what, saved, current in (
        ("graph", plan.graph, graph.fingerprint),
        ("cluster", plan.cluster, cluster.fingerprint),
    ):
        if saved and saved != current:
            name, option = (graph.name, "--model") if what == "graph" else (cluster.name, "--on")
            raise PlanError(
                f"{path}: was made for another {what} than {name!r} is now: "
                f"name the one it was made for with {option}"
            )
    try:
        fitted = files.plan_for(problem, plan)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None
    if not isinstance(noun, Result):
        return evaluate(problem, fitted, path.stem), []
    evaluated = evaluate(problem, replace(noun, plan=fitted))
    if evaluated.objective != noun.objective:
        note = f"{path.name} was searched for by {noun.objective}: its search is not shown"
        return replace(evaluated, history=()), [note]
    before, after = noun.objective_value, evaluated.objective_value
    if abs(before - after) <= TIME_TOLERANCE * max(before, after):
        return evaluated, []
    times = f"{format_seconds(before)} when it was saved, {format_seconds(after)} here"
    return evaluated, [f"{path.name} took {times}: costs, limits or rules are not the same"]


def _labels(paths: list[Path], results: "tuple[Result, ...]") -> tuple[str, ...]:
    """Methods, with the file's name where two are the same."""
    names = [result.solver for result in results]
    return tuple(
        name if names.count(name) == 1 else f"{name} ({path.stem})"
        for name, path in zip(names, paths, strict=True)
    )
