"""Large batches of a search on workers, which evaluate some plans ahead of the stop rule.

A search checks its stop rule after every so many plans. Workers get several of these parts at once,
and the search takes their figures part by part, so it stops after the same plan as without workers;
plans behind that are neither counted nor kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.simulator import evaluate_on_workers, judge_batch, verdict_of

if TYPE_CHECKING:
    from placewright.plan_batch import PlanBatch
    from placewright.problem import Problem
    from placewright.simulator import Verdict
    from placewright.simulator.batch_evaluation import PlanFigures
    from placewright.workers import Workers

_MIN_WORK = 1_000_000  # ops × plans below which threads of this process are as fast


class WorkerBatches:
    """Verdicts on parts of a batch, one part after the other.

    Args:
        part: Plans between two checks of the stop rule.
    """

    def __init__(
        self, problem: Problem, plans: PlanBatch, part: int, workers: Workers | None
    ) -> None:
        self._problem, self._plans, self._part, self._workers = problem, plans, part, workers
        self._figures: list[PlanFigures] = []  # of the first plans, as far as workers have come

    def judge(self, first: int, count: int, left: float, threads: int) -> Verdict:
        """The verdict on `count` plans from `first` on.

        Args:
            left: Plans that may still be evaluated.
            threads: For plans that are evaluated in this process.
        """
        rows = self._plans[first : first + count]
        if first + count > len(self._figures):
            end = int(min(len(self._plans), first + left))
            ops = self._problem.arrays.ops
            if self._workers is None or not count or (end - first) * ops < _MIN_WORK:
                return judge_batch(self._problem, rows, threads)
            end = min(end, first + self._part * self._workers.count)
            ahead = self._plans[first:end]
            self._figures[first:] = evaluate_on_workers(self._workers, self._problem, ahead)
        return verdict_of(self._problem, rows, self._figures[first : first + count])
