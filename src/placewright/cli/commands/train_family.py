"""`placewright train --graphs`: families in, problems to train on and what came of it out."""

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

    from placewright.cli.problem_options import Asked
    from placewright.problem import Problem
    from placewright.training import Trainer

POLICY = "policy.json"
"""The policy's own file in a run's folder."""

_DRAWN = 15  # plans of a test graph beside the likeliest
_ROUNDS = 10  # of training that are shown


def problems_of(asked: Asked, part: Literal["train", "test"]) -> list[Problem]:
    """The graphs that are asked for: a family's training or test part, or a model of its own.

    Args:
        asked: Its model is the text of `--graphs`: families or models, with commas between.
        part: `train` or `test`; a single model is trained on.
    """
    from placewright.zoo.families import family

    found: list[Problem] = []
    for name in (word.strip() for word in asked.model.split(",")):
        try:
            models = [graph.name for graph in family(name, part)]
        except ConfigError:
            models = [name] if name and part == "train" else []
        found += [replace(asked, model=model).problem() for model in models]
    if part == "train" and not found:
        raise ConfigError(f"--graphs {asked.model!r}: expected families, such as cifar10")
    return found


def rounds(trainer: Trainer) -> list[dict[str, float]]:
    """What each time around all graphs was like; times in terms of each graph's serial time."""
    count, rows = len(trainer.environments), trainer.rows
    scale = np.array([environment.reference for environment in trainer.environments])
    found = []
    for first in range(0, len(rows) - count + 1, count):
        some = rows[first : first + count]
        found.append(
            {
                "round": first // count + 1,
                "plans": some[-1].plans,
                **{
                    name: float(np.nanmean([getattr(row, name) for row in some] / scale))
                    for name in ("best", "mean", "likeliest")
                },
                "entropy": float(np.nanmean([row.entropy for row in some])),
                "invalid": float(np.mean([row.invalid for row in some])),
            }
        )
    return found


def tried(trainer: Trainer, tests: list[Problem]) -> Iterator[dict[str, Any]]:
    """What the policy makes of graphs that it was never shown."""
    from placewright.simulator import judge
    from placewright.solvers import EverySingleDevice, solve

    for problem in tests:
        values = []
        for count, greedy in ((1, True), (_DRAWN, False)):
            episodes = trainer.policy.act(problem, count, 1, greedy=greedy)
            last = np.flatnonzero(np.append(np.diff(episodes.owner) > 0, True))
            order = None if episodes.priority is None else episodes.priority[last]
            verdict = judge(problem, episodes.device[last], order)
            at = verdict.best()
            values.append((float(verdict.overflow[at]), float(verdict.value[at])))
        yield {
            "graph": problem.graph.name,
            "likeliest": values[0][1],
            "of_16": min(values)[1],
            "fits": min(values)[0] == 0,
            "best_single": solve(problem, EverySingleDevice()).value,
        }


def show(curve: list[dict[str, float]], tests: list[dict[str, Any]], folder: Path) -> None:
    """Both tables, and where the policy is."""
    last = len(curve) - 1
    kept = sorted({last * at // (_ROUNDS - 1) for at in range(_ROUNDS)}) if curve else []
    columns = ["round", "plans", "best", "mean", "argmax", "entropy", "do not fit"]
    rows = [
        (
            f"{row['round']:,}",
            f"{row['plans']:,}",
            *(f"{row[name]:.3f}" for name in ("best", "mean", "likeliest")),
            f"{row['entropy']:.0%}",
            f"{row['invalid']:.0%}",
        )
        for row in (curve[at] for at in kept)
    ]
    tables.print_table(columns, rows)
    tables.print_lines(["", "times of a round are means over graphs, in terms of serial time", ""])
    if tests:
        head = ["graph never shown", "argmax", "best of 16", "best single device"]
        body = [
            (
                row["graph"],
                format_seconds(row["likeliest"]),
                format_seconds(row["of_16"]) + ("" if row["fits"] else " (does not fit)"),
                format_seconds(row["best_single"]),
            )
            for row in tests
        ]
        tables.print_table(head, body)
    tables.print_lines(["", f"policy and checkpoint kept in {folder}"])
