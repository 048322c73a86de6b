"""`placewright place`: finds a plan for a model on a cluster."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.problem_options import ProblemOptions, stop_rule
from placewright.cli.progress import Progress
from placewright.cli.resolve import (
    check_json,
    check_writable,
    find_method,
    find_plan,
    is_this_machine,
)
from placewright.cli.saved_options import options_to_dict
from placewright.errors import ConfigError


def place_model(
    model: options.Model,
    on: options.On = None,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="How to look: see docs/methods.md.")
    ] = "auto",
    fuse: Annotated[
        bool,
        typer.Option("--fuse", help="Also fuse ops, for a runtime that does so; with auto alone."),
    ] = False,
    proposer: Annotated[
        str | None,
        typer.Option(
            "--proposer",
            metavar="NAME",
            help="What was learnt on other graphs and helps auto: scout looks at moves before they "
            "are judged, pair and go propose plans; none. [default: scout]",
        ),
    ] = None,
    budget: options.Budget = None,
    evaluations: options.Evaluations = None,
    seed: options.Seed = 0,
    start: options.WarmStart = None,
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
        typer.Option("-o", "--output", metavar="FILE", help="Write the plan and its figures."),
    ] = None,
    trace: options.Trace = None,
    robust: options.Robust = False,
    trials: options.CostTrials = None,
    spread: options.CostNoise = None,
    verify: Annotated[
        int | None,
        typer.Option(
            "--verify",
            metavar="K",
            min=1,
            help="Run the best K plans and every single device here, and take the quickest; on "
            "here, its ops are measured first.",
        ),
    ] = None,
    why: Annotated[
        bool, typer.Option(help="Say what binds the plan and what would help; takes a moment.")
    ] = True,
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Find a plan: which device each op runs on, and in which order."""
    if verify is not None and costs is None and on is not None and is_this_machine(on):
        costs = Path("here")  # who has plans run has ops measured, too
    arguments = locals()
    from placewright.cli import answer
    from placewright.cli.render import tables
    from placewright.cli.render.explanation_lines import (
        explain_result,
        explanation_data,
        reason_lines,
    )
    from placewright.cli.render.json_output import (
        evaluation_data,
        print_json,
        save_files,
        save_report,
    )
    from placewright.cli.render.measured import (
        cautious_selection,
        measured_data,
        measured_lines,
        measured_selection,
    )
    from placewright.cli.render.robustness import (
        print_robustness,
        robust_selection,
        selection_data,
    )
    from placewright.solvers import SEARCHES, Auto

    check_writable(output, trace, report)
    check_json(output, "a result")
    robust_choice = robust_selection(robust, trials, spread, seed)
    if verify is not None and robust_choice is not None:
        raise ConfigError("--verify with --robust: they choose by different rules, give one")
    measured_choice = (
        None if verify is None else measured_selection(model, training, optimizer, verify)
    )
    solver = find_method(method)
    if fuse:
        if not isinstance(solver, Auto):
            raise ConfigError(f"--fuse with method {method!r}: only auto decides what is fused")
        solver = replace(solver, fuse=True)
    if proposer is not None:
        if not isinstance(solver, Auto):
            raise ConfigError(f"--proposer with method {method!r}: only auto asks proposers")
        from placewright.training.proposers import named

        solver = replace(solver, proposers=named(proposer))
    stop = stop_rule(budget, evaluations, options.PLACE_BUDGET if method in SEARCHES else None)
    problem_options = ProblemOptions.from_arguments(arguments)
    with Progress(f"reading {model}") as progress:
        problem = full_problem = problem_options.problem()
        warm_start = None if start is None else find_plan(problem, start)[1]
        select = measured_choice or robust_choice or cautious_selection(problem, solver)
        result, interrupted = answer.run_search(
            problem, solver, stop, seed, progress.watch(method), warm_start, select
        )
        if hasattr(
            solver, "as_executed"
        ):  # it stands for another runtime, and is shown on its terms
            problem = solver.as_executed(problem)
        result = replace(result, options=options_to_dict(problem_options))
        if measured_choice is not None:
            measured_choice.meter.close()
        evaluation = answer.Evaluation(
            model, problem, result, answer.best_single_device(problem), interrupted
        )
        # A person who stopped the search does not wait for more.
        explanation = explain_result(problem, result, solver) if why and not interrupted else None
    messages = save_files(evaluation, output, trace)
    if report is not None:
        from placewright.reporting import build_comparison

        improvements = (
            []
            if explanation is None
            else [str(improvement) for improvement in explanation.best_improvements]
        )
        page = build_comparison(
            model, full_problem, [result], (), interrupted, improvements=improvements
        )
        messages += save_report(page, report)
    ranked = [] if robust_choice is None or interrupted else robust_choice.ranked
    if json:
        extra: dict[str, Any] = (
            {} if explanation is None else {"why": explanation_data(problem, explanation)}
        )
        extra |= (
            {"robust": selection_data(robust_choice)}
            if robust_choice is not None and ranked
            else {}
        )
        extra |= {} if measured_choice is None else {"measured": measured_data(measured_choice)}
        print_json(evaluation_data(evaluation) | extra)
    else:
        tables.print_lines(
            [] if measured_choice is None else measured_lines(measured_choice, method)
        )
        tables.print_evaluation(evaluation)
        if ranked:
            print_robustness(
                [(r.candidate.found_by or method, r.robustness) for r in ranked], "plan by"
            )
        tables.print_lines([] if explanation is None else ["", *reason_lines(explanation)])
        tables.print_lines(["", *messages] if messages else [])
    if interrupted:
        raise typer.Exit(answer.INTERRUPTED_STATUS)
