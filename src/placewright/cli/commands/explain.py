"""`placewright explain`: shows why an op is where it is, and what moving it would do."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli import options, panels
from placewright.cli.paths import find_plan, load_plan
from placewright.cli.problem_options import ProblemOptions, with_saved_problem_options
from placewright.cli.progress import Progress
from placewright.cli.workload_commands import call_to_explain
from placewright.cli.workloads import holds_workload_plan
from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem

MAX_MOVES = 10  # moves that are shown without --op


@with_saved_problem_options
def explain_plan(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A result or plan file.", show_default=False)
    ],
    problem_options: ProblemOptions,
    op: Annotated[
        str | None,
        typer.Option(
            "--op",
            metavar="NAME",
            help="The op; without it, the ops that gain most by moving.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option("--call", metavar="NAME", help="(workloads only) The call to explain."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what moving an op would do.

    With --op: the objective with the op on every other device, whether the op is critical, its
    transfers, and what trained policies prefer. Without it: of the ops on the critical path, or on
    the busiest device or channel, those that gain most by moving. A result file has the options of
    its problem; those given here replace them. Of a workload, one call is explained, with the
    weights where they are.
    """
    if holds_workload_plan(plan):
        with Progress(f"reading {plan}"):
            model, problem, fitted_plan = call_to_explain(plan, problem_options, call)
            position = None if op is None else _op_position(problem, op)
        _print(model, problem, fitted_plan, position, json)
        return
    if call is not None:
        raise ConfigError(f"--call {call!r}: {plan} is a plan of one problem, not of a workload")
    problem_options = ProblemOptions.from_files([plan], [load_plan(plan)], problem_options)
    with Progress(f"reading {problem_options.model}"):
        problem = problem_options.problem()
        fitted_plan = find_plan(problem, plan)[1]
        position = None if op is None else _op_position(problem, op)
    _print(problem_options.model, problem, fitted_plan, position, json)


def _print(model: str, problem: "Problem", plan: "Plan", op: int | None, json: bool) -> None:
    if op is None:
        _print_moves(model, problem, plan, json)
    else:
        _print_op(model, problem, plan, op, json)


def _print_op(model: str, problem: "Problem", plan: "Plan", op: int, json: bool) -> None:
    from placewright.cli.render import explanation, tables
    from placewright.cli.render.json_output import print_json
    from placewright.explanations import explain_op
    from placewright.explanations.policy_preferences import preferences
    from placewright.training.proposers import ADVISERS

    with Progress(f"moving {problem.graph.ops[op].name}"):
        found = explain_op(problem, plan, op)
        by_policy, unavailable = preferences(problem, plan, ADVISERS)
    if json:
        print_json(explanation.op_data(problem, found, by_policy, unavailable))
        return
    tables.print_lines(explanation.op_lines(model, problem, found, by_policy, unavailable))
    tables.print_table(*explanation.op_table(problem, found, by_policy))


def _print_moves(model: str, problem: "Problem", plan: "Plan", json: bool) -> None:
    from placewright.cli.render import explanation, tables
    from placewright.cli.render.json_output import print_json
    from placewright.explanations import neighbours

    with Progress("moving ops one by one"):
        moves = neighbours(problem, plan)
    best_moves = moves.improving_moves[:MAX_MOVES]
    if json:
        print_json(explanation.moves_data(problem, plan, moves, best_moves))
        return
    tables.print_lines(explanation.moves_lines(model, problem, moves, len(best_moves)))
    if best_moves:
        tables.print_table(*explanation.moves_table(problem, plan, best_moves))


def _op_position(problem: "Problem", name: str) -> int:
    """An op's position by its name.

    Raises:
        ConfigError: The graph has no such op.
    """
    known = problem.graph.position
    if name not in known:
        graph = problem.graph.name
        raise ConfigError(f"--op: graph {graph!r} has no op {name!r}: {nearest(name, known)}")
    return known[name]
