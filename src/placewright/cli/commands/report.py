"""`placewright report`: shows saved results on one page."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli import options
from placewright.cli.progress import Progress
from placewright.cli.resolve import check_writable, load_plan
from placewright.cli.saved_options import options_from_files
from placewright.errors import PlanError
from placewright.units import format_seconds

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result

TIME_TOLERANCE = 1e-9  # as a share: a time that differs by less is the same


def report_results(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...", help="Result or plan files of one problem.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="What they are of, where the files do not say."
        ),
    ] = None,
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
    json: options.Json = False,
) -> None:
    """Show saved results on one page.

    A result file says with which options its problem was asked for; those given here replace them.
    """
    arguments = locals()
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import (
        print_json,
        problem_data,
        result_data,
        save_report,
    )
    from placewright.reporting import build_comparison

    check_writable(output)
    nouns = [load_plan(path) for path in results]
    problem_options = options_from_files(results, nouns, arguments)
    with Progress(f"reading {problem_options.model}"):
        problem = problem_options.problem()
        evaluations = [
            _evaluate_file(problem, path, noun) for path, noun in zip(results, nouns, strict=True)
        ]
    evaluated, notes = (
        [each[0] for each in evaluations],
        [note for each in evaluations for note in each[1]],
    )
    content = build_comparison(
        problem_options.model, problem, evaluated, notes=notes, labels=_labels(results, evaluated)
    )
    messages = save_report(content, output)
    if json:
        methods = [result_data(problem, each) for each in evaluated]
        print_json(
            {**problem_data(problem), "report": str(output), "methods": methods, "notes": notes}
        )
    else:
        tables.print_lines([*notes, *messages])


def _evaluate_file(
    problem: "Problem", path: Path, noun: "Plan | Result"
) -> "tuple[Result, list[str]]":
    """The result on this problem, and what differs from when it was saved."""
    from placewright import files
    from placewright.cli import answer
    from placewright.reporting import reevaluate
    from placewright.result import Result

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
        return answer.evaluate_plan(problem, path.stem, fitted), []
    evaluated = reevaluate(problem, replace(noun, plan=fitted))
    if evaluated.objective != noun.objective:
        note = f"{path.name} was searched for by {noun.objective}: its search is not shown"
        return replace(evaluated, history=()), [note]
    before, after = noun.objective_value, evaluated.objective_value
    if abs(before - after) <= TIME_TOLERANCE * max(before, after):
        return evaluated, []
    times = f"{format_seconds(before)} when it was saved, {format_seconds(after)} here"
    return evaluated, [f"{path.name} took {times}: costs, limits or rules are not the same"]


def _labels(paths: list[Path], results: "list[Result]") -> list[str]:
    """Methods, with the file's name where two are the same."""
    names = [result.solver for result in results]
    return [
        name if names.count(name) == 1 else f"{name} ({path.stem})"
        for name, path in zip(names, paths, strict=True)
    ]
