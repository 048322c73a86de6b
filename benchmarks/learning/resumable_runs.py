"""Long runs of a trainer that go on from checkpoints, and searches beside them, as plain rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import placewright as pw
from placewright.training.run import TrainingRun

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.solvers import Solver
    from placewright.training import Trainer

CHECKPOINT_SECONDS = 60.0
LOG_ROWS = 100  # of a training log that are saved


def search_row(problem: pw.Problem, solver: Solver, plans: int, seed: int) -> dict[str, Any]:
    """What a search finds with so many plans."""
    began = time.process_time()
    result = pw.solve(problem, solver, stop=pw.MaxEvaluations(plans), seed=seed)
    return {
        "best": result.objective_value,
        "over": int(result.overflow),
        "judged": result.evaluations,
        "curve": [[count, best] for count, _, best in result.history],
        "rate": result.evaluations / (time.process_time() - began),
    }


def result_row(trainer: Trainer) -> dict[str, Any]:
    """What a trainer of one environment has found so far."""
    (environment,) = trainer.environments
    over, best = environment.best_key
    return {
        "best": best,
        "over": int(over),
        "judged": environment.evaluations,
        "updates": trainer.updates,
        "curve": [[count, value] for count, _, value in environment.history],
    }


def train_row(trainer: Trainer, folder: Path) -> dict[str, Any]:
    """What a trainer of one environment finds, from its checkpoint on if there is one.

    Raises:
        KeyboardInterrupt: It was interrupted: its checkpoint goes on, and this is no result.
    """
    (environment,) = trainer.environments
    run = TrainingRun(trainer, folder, {}, CHECKPOINT_SECONDS)
    if run.path.exists():
        run.resume()
    before, began = environment.evaluations, time.process_time()
    if not run.train():
        raise KeyboardInterrupt
    seconds = time.process_time() - began
    log = [row for row in trainer.log if row.mean == row.mean]  # NaN is no mean
    log = log[:: -max(1, len(log) // LOG_ROWS)][::-1]
    return {
        **result_row(trainer),
        "learned": [[row.plans, row.mean, row.greedy, row.entropy, row.infeasible] for row in log],
        "rate": (environment.evaluations - before) / max(seconds, 1e-9),
    }
