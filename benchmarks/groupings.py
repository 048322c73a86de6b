"""`placewright groups`: compares groupings of ops under one search."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.problem_options import ProblemOptions
from placewright.cli.progress import Progress
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.transforms import Grouping


def compare_groupings(
    model: options.Model,
    on: options.On = None,
    objective: options.ObjectiveOption = None,
    discipline: options.DisciplineOption = None,
    count: Annotated[
        int, typer.Option("--groups", metavar="N", min=1, help="Groups that coarsening makes.")
    ] = 64,
    evaluations: Annotated[
        int, typer.Option(metavar="N", min=1, help="Plans that each grouping may judge.")
    ] = 4000,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Show what a grouping of ops is worth: the same search and budget on each."""
    arguments = locals()
    from placewright.cli.render import tables, text
    from placewright.cli.render.json_output import print_json
    from placewright.solvers import LocalSearch, MaxEvaluations, SingleDevices, solve

    with Progress(f"reading {model}") as progress:
        problem = ProblemOptions.from_arguments(arguments).problem()
        single = solve(problem, SingleDevices(), seed=seed)
        figure = "step_time" if problem.objective == "step" else "period"
        rows: list[dict[str, Any]] = []
        for name, group in _groupings(count).items():
            grouping = group(problem)
            watch = progress.watch(name)
            stop = MaxEvaluations(evaluations)
            result = solve(problem, LocalSearch(group, max_plans=evaluations), stop, seed, watch)
            rows.append(
                {
                    "grouping": name,
                    "groups": len(grouping),
                    "convex": grouping.is_convex(problem),
                    "step_time": result.step_time,
                    "period": result.period,
                    "fits": result.fits,
                    "gap": result.gap,
                    "evaluations": result.evaluations,
                    "seconds": result.seconds,
                }
            )
    if json:
        print_json(
            {"model": problem.graph.name, "single": single.objective_value, "groupings": rows}
        )
        return
    tables.print_lines([text.problem_line(model, problem)])
    tables.print_table(
        (
            "grouping",
            "groups",
            "convex",
            text.objective_name(single),
            "vs one",
            "gap",
            "fits",
            "seconds",
        ),
        [
            (
                row["grouping"],
                f"{row['groups']:,}",
                "yes" if row["convex"] else "no",
                format_seconds(row[figure]),
                f"{single.objective_value / row[figure]:.2f}x",
                text.format_percent(row["gap"]),
                "yes" if row["fits"] else "no",
                f"{row['seconds']:.2f}",
            )
            for row in rows
        ],
    )
    tables.print_lines(["", f"best single device: {format_seconds(single.objective_value)}"])


def _groupings(count: int) -> dict[str, "Callable[[Problem], Grouping]"]:
    from placewright.transforms import Grouping, by_colocation, by_heavy_edges, by_module_count

    return {
        "none": lambda problem: Grouping.of("none", problem, range(len(problem.graph))),
        "colocation": by_colocation,
        "module": lambda problem: by_module_count(problem, count),
        "coarse": lambda problem: by_heavy_edges(problem, count),
    }
