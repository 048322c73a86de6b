"""`placewright train --family`: trains on a family of graphs and tests on the rest of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from placewright.cli.render import tables
from placewright.errors import ConfigError
from placewright.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from placewright.cli.problem_options import ProblemOptions
    from placewright.problem import Problem
    from placewright.training import Environment, Recipe, Trainer, UpdateLog

_SAMPLES = 15  # plans of a test graph besides the argmax plan
_MAX_ROUNDS = 10  # of training that are printed


def family_problems(options: ProblemOptions, part: Literal["train", "test"]) -> list[Problem]:
    """The problems of a family's training or test graphs.

    Args:
        options: Its model is the text of `--family`: families or models, with commas between them.
        part: `train` or `test`; a single model is trained on.
    """
    from placewright.zoo.families import family

    problems: list[Problem] = []
    for name in (word.strip() for word in options.model.split(",")):
        try:
            models = [graph.name for graph in family(name, part)]
        except ConfigError:
            models = [name] if name and part == "train" else []
        problems += [replace(options, model=model).problem() for model in models]
    if part == "train" and not problems:
        raise ConfigError(f"--family {options.model!r}: expected families, e.g. cifar10")
    return problems


def demonstrated(recipe: Recipe, path: Path) -> list[Environment]:
    """The problems of a file of demonstrations, for a recipe that imitates them.

    Raises:
        ConfigError: The recipe does not imitate, or the file has no plans.
        FileError: A line is damaged or was made from another graph.
    """
    from placewright.training.go.demonstrations import read_demonstrations

    if recipe.name != "go":
        raise ConfigError(f"recipe {recipe.name!r} imitates no plans: leave out --demonstrations")
    demonstrations = read_demonstrations(path, path.parent)
    if not demonstrations:
        raise ConfigError(f"--demonstrations {path}: expected a file with plans")
    return [recipe.environment(item.problem, demonstration=item) for item in demonstrations]


def learning_rows(rows: list[UpdateLog]) -> list[UpdateLog]:
    """The rows of updates that learned from rewards; all rows if there is none."""
    return [row for row in rows if np.isfinite(row.mean)] or rows


def round_summaries(trainer: Trainer) -> list[dict[str, float]]:
    """Means over as many rows as there are graphs; times relative to each graph's serial time."""
    rows = learning_rows(trainer.log)
    count = min(len(trainer.environments), max(len(rows), 1))
    scale = [environment.reference_seconds for environment in trainer.environments]
    summaries = []
    for start in range(0, len(rows) - count + 1, count):
        round_rows = rows[start : start + count]
        summaries.append(
            {
                "round": start // count + 1,
                "plans": round_rows[-1].plans,
                **{
                    name: _mean([getattr(row, name) / scale[row.problem] for row in round_rows])
                    for name in ("best", "mean", "greedy")
                },
                "entropy": _mean([row.entropy for row in round_rows]),
                "infeasible": _mean([row.infeasible for row in round_rows]),
            }
        )
    return summaries


def _mean(values: list[float]) -> float:
    """The mean of those that are numbers."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def test_results(trainer: Trainer, tests: list[Problem]) -> Iterator[dict[str, Any]]:
    """The policy's plans for graphs that it was not trained on."""
    from placewright.policies.policy import last_plans
    from placewright.solvers import SingleDevices, solve
    from placewright.training.environment import best_plan

    for problem in tests:
        environment = trainer.recipe.environment(problem)
        values = []
        for count, greedy in ((1, True), (_SAMPLES, False)):
            episodes = trainer.policy.act(problem, count, 1, greedy=greedy)
            last = last_plans(episodes)
            order = None if episodes.priority is None else episodes.priority[last]
            outcome = environment.judge(episodes.placements[last], "sampled", order)
            best = best_plan(outcome)
            values.append((float(outcome.overflow[best]), float(outcome.seconds[best])))
        yield {
            "graph": problem.graph.name,
            "greedy": values[0][1],
            "of_16": min(values)[1],
            "fits": min(values)[0] == 0,
            "best_single": solve(problem, SingleDevices()).objective_value,
        }


def print_family(curve: list[dict[str, float]], tests: list[dict[str, Any]]) -> None:
    """The table of rounds and that of test graphs."""
    last = len(curve) - 1
    positions = (
        sorted({last * at // (_MAX_ROUNDS - 1) for at in range(_MAX_ROUNDS)}) if curve else []
    )
    columns = ["round", "plans", "best", "mean", "argmax", "entropy", "out of memory"]
    rows = [
        (
            f"{row['round']:,}",
            f"{row['plans']:,}",
            *(_format_ratio(row[name]) for name in ("best", "mean", "greedy")),
            format_share(row["entropy"]),
            format_share(row["infeasible"]),
        )
        for row in (curve[at] for at in positions)
    ]
    tables.print_table(columns, rows)
    tables.print_lines(["", "times of a round are means over graphs, relative to serial time"])
    if tests:
        test_columns = ["test graph", "argmax", "best of 16", "best single device"]
        test_rows = [
            (
                row["graph"],
                format_seconds(row["greedy"]),
                format_seconds(row["of_16"]) + ("" if row["fits"] else " (out of memory)"),
                format_seconds(row["best_single"]),
            )
            for row in tests
        ]
        tables.print_table(test_columns, test_rows)


def format_figure(seconds: float) -> str:
    """Seconds as a person reads them; a dash where there is no number."""
    return format_seconds(seconds) if np.isfinite(seconds) else "–"


def format_share(share: float) -> str:
    """A share as a percentage; a dash where there is no number."""
    return format_percent(share) if np.isfinite(share) else "–"


def _format_ratio(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "–"
