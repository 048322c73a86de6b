"""What `place`, `simulate`, `report` and `explain` do with a workload."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from placewright.cli.output_files import OutputFiles
from placewright.cli.problem_options import ProblemOptions, evaluation_limit, parse_budget
from placewright.cli.progress import Progress
from placewright.cli.workloads import find_workload, find_workload_plan, load_workload_plan
from placewright.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers import Solver
    from placewright.store import Store


def place_workload(
    problem_options: ProblemOptions,
    solver: Solver,
    budget: str | None,
    evaluations: int | None,
    seed: int,
    warm_start: Path | None,
    output: Path | None,
    report: Path | None,
    json: bool,
    store: Store,
    fresh: bool,
) -> None:
    """Find a plan for a workload, print it, and write it to its files and to the store."""
    from placewright import solvers
    from placewright.cli.render import json_output, tables
    from placewright.cli.render import workload as render
    from placewright.cli.render.text import INTERRUPTED_STATUS
    from placewright.store.search_start import find_workload_start, store_result
    from placewright.workload_result import WorkloadResult

    seconds, stop = parse_budget(budget), evaluation_limit(evaluations)
    if seconds is None and stop is None and solver.name in solvers.SEARCHES:
        seconds = parse_budget(solvers.results.DEFAULT_BUDGET)
    name = problem_options.model
    with Progress(f"reading {name}") as progress:
        workload = find_workload(problem_options)
        start = None if warm_start is None else find_workload_plan(workload, warm_start)
        stored = None if fresh else find_workload_start(store, workload)
        if stored is not None:
            start = stored.plan
        result = solvers.solve(
            workload,
            solver,
            stop,
            seed,
            progress.watch(solver.name),
            start.plan if isinstance(start, WorkloadResult) else start,
            budget=seconds,
            keep_interrupted=True,
        )
        result = replace(result, options=problem_options.to_dict())
        store_result(store, workload, result, name)
    written = OutputFiles()
    written.write(render.save_workload_result, result, output)
    written.write(render.save_workload_report, result, report)
    if json:
        data = render.workload_answer_data(name, workload, result)
        json_output.print_json({**data, "start": None if stored is None else stored.data})
    else:
        render.print_workload(name, workload, result)
        tables.print_lines([] if stored is None else ["", stored.text])
        tables.print_lines(["", *written.lines] if written.lines else [])
    written.check()
    if result.interrupted:
        raise typer.Exit(INTERRUPTED_STATUS)


def simulate_workload(problem_options: ProblemOptions, plan: Path, json: bool) -> None:
    """Evaluate an existing plan of a workload."""
    from placewright.cli.render import json_output
    from placewright.cli.render import workload as render
    from placewright.solvers import evaluate

    name = problem_options.model
    with Progress(f"reading {name}"):
        workload = find_workload(problem_options)
        result = evaluate(workload, find_workload_plan(workload, plan))
    if json:
        json_output.print_json(render.workload_answer_data(name, workload, result))
    else:
        render.print_workload(name, workload, result)


def report_workload(path: Path, typed: ProblemOptions, output: Path, json: bool) -> None:
    """Show a saved result of a workload on one page."""
    from placewright.cli.render import json_output, tables
    from placewright.cli.render import workload as render
    from placewright.solvers import evaluate

    problem_options = workload_options(path, typed)
    with Progress(f"reading {problem_options.model}"):
        workload = find_workload(problem_options)
        result = evaluate(workload, find_workload_plan(workload, path))
        lines = render.save_workload_report(result, output)
    if json:
        data = render.workload_answer_data(problem_options.model, workload, result)
        json_output.print_json({**data, "report": str(output)})
    else:
        tables.print_lines(lines)


def call_to_explain(
    path: Path, typed: ProblemOptions, call: str | None
) -> tuple[str, Problem, Plan]:
    """A call of a workload with its weights fixed: its name, problem and plan.

    Raises:
        ConfigError: No call is named, or there is none of this name.
    """
    from placewright.solvers.workloads.call_plans import pin_weights, residency_of
    from placewright.workload_result import WorkloadResult

    problem_options = workload_options(path, typed)
    workload = find_workload(problem_options)
    names = [each.name for each in workload.calls]
    if call is None:
        raise ConfigError(f"--call: {path} has a plan for {', '.join(names)}: name one of them")
    at = workload.position(call)
    found = find_workload_plan(workload, path)
    plan = (found.plan if isinstance(found, WorkloadResult) else found).full_plans(workload)[at]
    pinned = pin_weights(workload, at, residency_of(workload, at, plan))
    return f"{call} of {problem_options.model}", pinned, plan


def workload_options(path: Path, typed: ProblemOptions) -> ProblemOptions:
    """The options of a workload's result; those that are typed now replace them.

    Raises:
        ConfigError: The file does not name its workload, and none is typed.
    """
    from placewright.workload_result import WorkloadResult

    noun = load_workload_plan(path)
    saved = noun.options if isinstance(noun, WorkloadResult) else {}
    if not saved and not typed.model:
        raise ConfigError(f"{path}: does not name its workload: give its file with --model")
    return ProblemOptions.from_dict(saved, typed)
