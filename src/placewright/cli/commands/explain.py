"""`placewright explain`: a plan and an op in, why it is there and what moving it would do out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewright.cli import options
from placewright.cli.progress import Progress
from placewright.cli.resolve import find_plan, load_plan
from placewright.cli.saved_options import asked_of
from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem

FEW = 10  # moves that are shown where no op is named


def explain_plan(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A result or plan file.", show_default=False)
    ],
    op: Annotated[
        str | None,
        typer.Option("--op", metavar="NAME", help="The op; without it, what gains most by moving."),
    ] = None,
    model: options.PlanModel = None,
    on: options.On = None,
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
    json: options.Json = False,
) -> None:
    """Say what moving an op would do.

    With --op: what the objective becomes on every other device, whether the op is critical, what it
    receives and sends, and what a trained policy prefers. Without it: of the ops on the critical
    path, or on the busiest device or channel, those that gain most by moving. A result file says
    with which options its problem was asked for.
    """
    typed = locals()
    asked = asked_of([plan], [load_plan(plan)], typed)
    with Progress(f"reading {asked.model}"):
        problem = asked.problem()
        given = find_plan(problem, plan)[1]
        place = None if op is None else _position(problem, op)
    if place is None:
        _print_moves(asked.model, problem, given, json)
    else:
        _print_op(asked.model, problem, given, place, json)


def _print_op(model: str, problem: "Problem", plan: "Plan", op: int, json: bool) -> None:
    from placewright.cli.render import explanation, tables
    from placewright.cli.render.json_output import print_json
    from placewright.explanations import explain_op
    from placewright.explanations.policy_preferences import preferences
    from placewright.training.proposers import ADVISERS

    with Progress(f"moving {problem.graph.ops[op].name}"):
        found = explain_op(problem, plan, op)
        preferred, silent = preferences(problem, plan, ADVISERS)
    if json:
        print_json(explanation.op_data(problem, found, preferred, silent))
        return
    tables.print_lines(explanation.op_lines(model, problem, found, preferred, silent))
    tables.print_table(*explanation.op_table(problem, found, preferred))


def _print_moves(model: str, problem: "Problem", plan: "Plan", json: bool) -> None:
    from placewright.cli.render import explanation, tables
    from placewright.cli.render.json_output import print_json
    from placewright.explanations import neighbours

    with Progress("moving ops one by one"):
        found = neighbours(problem, plan)
    shown = found.gaining[:FEW]
    if json:
        print_json(explanation.moves_data(problem, plan, found, shown))
        return
    tables.print_lines(explanation.moves_lines(model, problem, found, len(shown)))
    if shown:
        tables.print_table(*explanation.moves_table(problem, plan, shown))


def _position(problem: "Problem", name: str) -> int:
    """An op's position by its name.

    Raises:
        ConfigError: The graph has no such op.
    """
    known = problem.graph.position
    if name not in known:
        graph = problem.graph.name
        raise ConfigError(f"--op: graph {graph!r} has no op {name!r}: {nearest(name, known)}")
    return known[name]
