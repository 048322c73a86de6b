"""`placewright train --graphs`: trains on a family of graphs and tests on the rest of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from placewright.cli.render import tables
from placewright.errors import ConfigError
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from placewright.cli.problem_options import ProblemOptions
    from placewright.problem import Problem
    from placewright.training import Trainer

POLICY_FILE = "policy.json"
"""The policy's own file in a run's folder."""

_SAMPLES = 15  # plans of a test graph beside the likeliest
_MAX_ROUNDS = 10  # of training that are shown


def family_problems(options: ProblemOptions, part: Literal["train", "test"]) -> list[Problem]:
    """The graphs that are asked for: a family's training or test part, or a model of its own.

    Args:
        options: Its model is the text of `--graphs`: families or models, with commas between.
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
        raise ConfigError(f"--graphs {options.model!r}: expected families, such as cifar10")
    return problems


def round_summaries(trainer: Trainer) -> list[dict[str, float]]:
    """What each time around all graphs was like; times in terms of each graph's serial time."""
    count, rows = len(trainer.environments), trainer.log
    scale = np.array([environment.reference_seconds for environment in trainer.environments])
    summaries = []
    for start in range(0, len(rows) - count + 1, count):
        round_rows = rows[start : start + count]
        summaries.append(
            {
                "round": start // count + 1,
                "plans": round_rows[-1].plans,
                **{
                    name: float(np.nanmean([getattr(row, name) for row in round_rows] / scale))
                    for name in ("best", "mean", "greedy")
                },
                "entropy": float(np.nanmean([row.entropy for row in round_rows])),
                "infeasible": float(np.mean([row.infeasible for row in round_rows])),
            }
        )
    return summaries


def test_results(trainer: Trainer, tests: list[Problem]) -> Iterator[dict[str, Any]]:
    """What the policy makes of graphs that it was never shown."""
    from placewright.simulator import judge
    from placewright.solvers import SingleDevices, solve

    for problem in tests:
        values = []
        for count, greedy in ((1, True), (_SAMPLES, False)):
            episodes = trainer.policy.act(problem, count, 1, greedy=greedy)
            last_plans = np.flatnonzero(np.append(np.diff(episodes.episode_of) > 0, True))
            order = None if episodes.priority is None else episodes.priority[last_plans]
            verdict = judge(problem, episodes.placements[last_plans], order)
            at = verdict.best()
            values.append((float(verdict.overflow[at]), float(verdict.value[at])))
        yield {
            "graph": problem.graph.name,
            "greedy": values[0][1],
            "of_16": min(values)[1],
            "fits": min(values)[0] == 0,
            "best_single": solve(problem, SingleDevices()).objective_value,
        }


def print_family(curve: list[dict[str, float]], tests: list[dict[str, Any]], folder: Path) -> None:
    """Both tables, and where the policy is."""
    last = len(curve) - 1
    positions = (
        sorted({last * at // (_MAX_ROUNDS - 1) for at in range(_MAX_ROUNDS)}) if curve else []
    )
    columns = ["round", "plans", "best", "mean", "argmax", "entropy", "do not fit"]
    rows = [
        (
            f"{row['round']:,}",
            f"{row['plans']:,}",
            *(f"{row[name]:.3f}" for name in ("best", "mean", "greedy")),
            f"{row['entropy']:.0%}",
            f"{row['infeasible']:.0%}",
        )
        for row in (curve[at] for at in positions)
    ]
    tables.print_table(columns, rows)
    tables.print_lines(["", "times of a round are means over graphs, in terms of serial time", ""])
    if tests:
        test_columns = ["graph never shown", "argmax", "best of 16", "best single device"]
        test_rows = [
            (
                row["graph"],
                format_seconds(row["greedy"]),
                format_seconds(row["of_16"]) + ("" if row["fits"] else " (does not fit)"),
                format_seconds(row["best_single"]),
            )
            for row in tests
        ]
        tables.print_table(test_columns, test_rows)
    tables.print_lines(["", f"policy and checkpoint kept in {folder}"])
