"""`placewright compare`: runs every method on one problem, side by side."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli import options
from placewright.cli.problem_options import ProblemOptions, stop_rule
from placewright.cli.progress import Progress
from placewright.cli.resolve import check_json, check_writable, find_folder, find_method
from placewright.cli.saved_options import options_to_dict
from placewright.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from placewright.cli.render.robustness import RobustSelection
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.solvers import Robustness, Solver, Stop


def compare_methods(
    model: options.Model,
    on: options.On = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="NAMES",
            help="These methods, such as single,heft, or all; without it all but pure searches.",
        ),
    ] = None,
    budget: options.Budget = None,
    evaluations: options.Evaluations = None,
    seed: options.Seed = 0,
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
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Write the best plan to a file such as best.json, or one a method into a folder.",
        ),
    ] = None,
    trace: options.Trace = None,
    robust: options.Robust = False,
    trials: options.CostTrials = None,
    spread: options.CostNoise = None,
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Run every method, each with the whole budget, and show them side by side."""
    arguments = locals()
    from placewright.cli import answer
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import (
        print_json,
        problem_data,
        result_data,
        save_files,
        save_report,
        single_device_data,
    )
    from placewright.cli.render.robustness import (
        SELECTION_RULE,
        print_robustness,
        robust_selection,
        robustness_data,
    )
    from placewright.solvers import METHODS, ON_REQUEST, SEARCHES

    folder = None if output is None else find_folder(output)
    check_writable(None if folder else output, trace, report)
    check_json(None if folder else output, "a result")
    names = [
        method_name for method_name in METHODS if methods == "all" or method_name not in ON_REQUEST
    ]
    if methods not in (None, "all"):
        names = [word.strip() for word in methods.split(",")]
    solvers = [find_method(method_name) for method_name in names]
    stops = [
        stop_rule(budget, evaluations, options.COMPARE_BUDGET if method_name in SEARCHES else None)
        for method_name in names
    ]
    selection = robust_selection(robust, trials, spread, seed)
    problem_options = ProblemOptions.from_arguments(arguments)
    with Progress(f"reading {model}") as progress:
        problem = problem_options.problem()
        single = answer.best_single_device(problem)
        results, skipped, interrupted, figures = _run_methods(
            problem, solvers, stops, seed, progress, selection
        )
        if skipped and (methods not in (None, "all") or not results):
            raise ConfigError(skipped[0][1])
    results = [replace(result, options=options_to_dict(problem_options)) for result in results]
    best = min(results, key=lambda result: result.key)
    if figures:
        best = min(results, key=lambda result: (result.overflow, figures[result.solver].key))
    evaluation = answer.Evaluation(model, problem, best, single, interrupted)
    messages = save_files(evaluation, None if folder else output, trace)
    if folder is not None:
        for result in results:
            path = folder / f"{result.solver}.json"
            messages += save_files(answer.Evaluation(model, problem, result, single), path, None)
    if report is not None:
        from placewright.reporting import build_comparison

        messages += save_report(
            build_comparison(model, problem, results, skipped, interrupted), report
        )
    if json:
        rows = [result_data(problem, result) for result in results]
        for row in rows if figures else ():
            row["robustness"] = robustness_data(figures[row["method"]])
        print_json(
            {
                **problem_data(problem),
                "bound": best.bound,
                "bound_name": best.bound_name,
                "best_single": single_device_data(single),
                "best": best.solver,
                **({"rule": SELECTION_RULE} if figures else {}),
                "methods": rows,
                "skipped": [{"method": name, "reason": reason} for name, reason in skipped],
                "interrupted": interrupted,
            }
        )
    else:
        tables.print_methods(evaluation, results, skipped, bool(figures))
        if figures:
            print_robustness(list(figures.items()), "method", list(figures).index(best.solver))
        tables.print_lines(["", *messages] if messages else [])
    if interrupted:
        raise typer.Exit(answer.INTERRUPTED_STATUS)


def _run_methods(
    problem: "Problem",
    solvers: "list[Solver]",
    stops: "list[Stop]",
    seed: int,
    progress: Progress,
    selection: "RobustSelection | None",
) -> "tuple[list[Result], list[tuple[str, str]], bool, dict[str, Robustness]]":
    """Results, methods that cannot do this problem and why, and whether a person stopped it.

    And each method's robustness, if that is asked for and nobody stopped it.
    """
    from placewright.cli import answer

    results: list[Result] = []
    skipped: list[tuple[str, str]] = []
    figures: dict[str, Robustness] = {}
    for at, (solver, stop) in enumerate(zip(solvers, stops, strict=True)):
        watch = progress.watch(solver.name, at, len(solvers))
        try:
            result, interrupted = answer.run_search(
                problem, solver, stop, seed, watch, None, selection
            )
        except (ConfigError, MissingDependency) as error:
            skipped.append((solver.name, str(error)))
            continue
        except KeyboardInterrupt:
            if not results:
                raise
            return results, skipped, True, {}
        results.append(result)
        if interrupted:
            return results, skipped, True, {}
        if selection is not None:
            figures[result.solver] = selection.ranked[0].robustness
    return results, skipped, False, figures
