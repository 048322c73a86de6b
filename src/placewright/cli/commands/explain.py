"""`placewright explain`: shows why an op is where it is, and what moving it would do."""

import fnmatch
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
MAX_MATCHES = 200  # ops that one pattern of --op may match


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
            help="The op, or ops: 'blocks.3.mlp.*'; without it, those that gain most by moving.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            metavar="NAME",
            help="(workloads only) The call to explain.",
            rich_help_panel=panels.PROBLEM,
        ),
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
            positions = [] if op is None else _op_positions(problem, op)
        _print(model, problem, fitted_plan, positions, json)
        return
    if call is not None:
        raise ConfigError(f"--call {call!r}: {plan} is a plan of one problem, not of a workload")
    problem_options = ProblemOptions.from_files([plan], [load_plan(plan)], problem_options)
    with Progress(f"reading {problem_options.model}"):
        problem = problem_options.problem()
        fitted_plan = find_plan(problem, plan)[1]
        positions = [] if op is None else _op_positions(problem, op)
    _print(problem_options.model, problem, fitted_plan, positions, json)


def _print(model: str, problem: "Problem", plan: "Plan", ops: list[int], json: bool) -> None:
    if not ops:
        _print_moves(model, problem, plan, json)
    elif len(ops) == 1:
        _print_op(model, problem, plan, ops[0], json)
    else:
        _print_ops(model, problem, plan, ops, json)


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


def _print_ops(model: str, problem: "Problem", plan: "Plan", ops: list[int], json: bool) -> None:
    """The best other device of each of several ops."""
    from placewright.cli.render import explanation, tables, text
    from placewright.cli.render.json_output import print_json, problem_data
    from placewright.explanations.moves import op_moves

    with Progress("moving ops one by one"):
        moves = [each[0] for op in ops if (each := op_moves(problem, plan, op))]
    if json:
        rows = explanation.moves_rows(problem, plan, moves)
        print_json({**problem_data(problem), "tried": len(ops), "moves": rows})
        return
    tables.print_lines(
        [
            text.problem_line(model, problem),
            f"{len(ops)} ops match: each moved alone to the best other device",
        ]
    )
    tables.print_table(*explanation.moves_table(problem, plan, moves))


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


def _op_positions(problem: "Problem", name: str) -> list[int]:
    """The positions of the ops that a name or a pattern with `*` and `?` matches.

    Raises:
        ConfigError: The graph has no such op, or too many match.
    """
    known = problem.graph.position
    if name in known:
        return [known[name]]
    matches = [at for each, at in known.items() if fnmatch.fnmatchcase(each, name)]
    if len(matches) > MAX_MATCHES:
        raise ConfigError(
            f"--op {name!r}: {len(matches):,} ops match: expected at most {MAX_MATCHES}"
        )
    if not matches:
        graph = problem.graph.name
        raise ConfigError(f"--op: graph {graph!r} has no op {name!r}: {nearest(name, known)}")
    scheduled = problem.arrays.scheduled
    return [at for at in matches if scheduled[at]] or matches
