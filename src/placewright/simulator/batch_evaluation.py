"""Evaluates batches of plans in this process or on workers, with the same figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.simulator.evaluation import (
    KernelBatch,
    Verdict,
    as_batch,
    check_batch,
    judge_batch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from placewright.plan_batch import PlanBatch
    from placewright.problem import Problem
    from placewright.workers import Workers

PlanFigures = tuple[float, float, int]
"""The objective, the step time and the overflow of a plan."""


def judge(
    problem: Problem,
    placement: ArrayLike,
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
    threads: int = 1,
    fusion: ArrayLike | None = None,
    workers: Workers | None = None,
) -> Verdict:
    """Evaluate a batch of plans.

    Args:
        placement: Plans × ops.
        priority: Plans × ops, or None for the graph's order.
        staging: Plans × devices, -1 for none, or None for none anywhere.
        threads: Threads that share the plans, outside the interpreter's lock.
        fusion: Plans × ops: groups as in a plan, or None for none anywhere.
        workers: Workers that share the plans instead; the figures are the same.

    Raises:
        PlanError: A plan breaks a constraint, a staging buffer is too small, or groups cannot
            be fused.
    """
    plans = as_batch(problem, placement, priority, staging, fusion)
    if workers is not None:
        return verdict_of(problem, plans, evaluate_on_workers(workers, problem, plans))
    return judge_batch(problem, plans, threads)


@dataclass(frozen=True)
class EvaluatePlans:
    """The task that evaluates plans; an item is a row of a `PlanBatch`."""

    def __call__(self, problem: Problem, plans: PlanBatch) -> list[PlanFigures]:
        """The figures of each plan."""
        verdict = judge_batch(problem, plans)
        columns = (verdict.value, verdict.step_time, verdict.overflow)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def evaluate_on_workers(workers: Workers, problem: Problem, plans: PlanBatch) -> list[PlanFigures]:
    """The figures of each plan of a batch, evaluated on workers.

    Raises:
        PlanError: As for `judge`.
        WorkerError: Workers died or hung too often.
    """
    check_batch(problem, plans)
    return workers.map(EvaluatePlans(), plans, problem)


def verdict_of(problem: Problem, plans: PlanBatch, figures: Sequence[PlanFigures]) -> Verdict:
    """The verdict on plans whose figures are known: that of `judge_batch`."""
    value, step_time, overflow = zip(*figures, strict=True) if figures else ((), (), ())
    overflow_bytes = np.array(overflow, dtype=np.int64)
    batch = KernelBatch(problem, plans)
    # Where the properties look: only plans over their memory are simulated again for the excess.
    batch.__dict__["lanes"] = (np.array(step_time), overflow_bytes, 0)
    return Verdict((batch,), np.array(value), np.array(step_time), overflow_bytes)
