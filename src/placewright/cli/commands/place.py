"""`placewright place`: a model and a cluster in, the best plan that a method finds out."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.problem_options import Asked, stop_rule
from placewright.cli.progress import Progress
from placewright.cli.resolve import check_json, check_writable, find_method, find_plan, is_here
from placewright.cli.saved_options import words_of
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
    start: options.Start = None,
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
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the plan and its figures."),
    ] = None,
    trace: options.Trace = None,
    robust: options.Robust = False,
    trials: options.Trials = None,
    spread: options.Spread = None,
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
    if verify is not None and costs is None and on is not None and is_here(on):
        costs = Path("here")  # who has plans run has ops measured, too
    typed = locals()
    from placewright.cli import answer
    from placewright.cli.render import tables
    from placewright.cli.render.explanation_lines import (
        explained,
        why_data,
        why_lines,
    )
    from placewright.cli.render.json_output import (
        answer_data,
        print_json,
        save,
        save_report,
    )
    from placewright.cli.render.measured import (
        asked_measurement,
        measured_data,
        measured_lines,
        trusted,
    )
    from placewright.cli.render.robustness import (
        asked_choice,
        choice_data,
        print_robust,
    )
    from placewright.solvers import SEARCHES, Auto

    check_writable(output, trace, report)
    check_json(output, "a result")
    choice = asked_choice(robust, trials, spread, seed)
    if verify is not None and choice is not None:
        raise ConfigError("--verify with --robust: they choose by different rules, give one")
    measured = None if verify is None else asked_measurement(model, training, optimizer, verify)
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
    asked = Asked.of(typed)
    with Progress(f"reading {model}") as progress:
        problem = whole = asked.problem()
        given = None if start is None else find_plan(problem, start)[1]
        choose = measured or choice or trusted(problem, solver)
        result, interrupted = answer.search(
            problem, solver, stop, seed, progress.watch(method), given, choose
        )
        if hasattr(solver, "as_run"):  # it stands for another runtime, and is shown on its terms
            problem = solver.as_run(problem)
        result = replace(result, asked=words_of(asked))
        if measured is not None:
            measured.meter.close()
        found = answer.Answer(model, problem, result, answer.best_single(problem), interrupted)
        # A person who stopped the search does not wait for more.
        reason = explained(problem, result, solver) if why and not interrupted else None
    said = save(found, output, trace)
    if report is not None:
        from placewright.reporting import gather

        helps = [] if reason is None else [str(each) for each in reason.best_helps]
        page = gather(model, whole, [result], (), interrupted, helps=helps)
        said += save_report(page, report)
    ranked = [] if choice is None or interrupted else choice.ranked
    if json:
        more: dict[str, Any] = {} if reason is None else {"why": why_data(problem, reason)}
        more |= {"robust": choice_data(choice)} if choice is not None and ranked else {}
        more |= {} if measured is None else {"measured": measured_data(measured)}
        print_json(answer_data(found) | more)
    else:
        tables.print_lines([] if measured is None else measured_lines(measured, method))
        tables.print_answer(found)
        if ranked:
            print_robust([(r.found.found_by or method, r.robustness) for r in ranked], "plan by")
        tables.print_lines([] if reason is None else ["", *why_lines(reason)])
        tables.print_lines(["", *said] if said else [])
    if interrupted:
        raise typer.Exit(answer.INTERRUPTED)
