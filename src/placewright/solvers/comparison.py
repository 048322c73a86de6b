"""Comparisons: every method on one problem, with the best single device and the default."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.errors import ConfigError, MissingDependency, PlacewrightError, PlanError
from placewright.html_tables import html_card, html_table
from placewright.solvers.accelerate_map import Accelerate
from placewright.solvers.bounds import Bound
from placewright.solvers.pessimistic_costs import PessimisticCosts
from placewright.solvers.progress_display import comparison_progress
from placewright.solvers.registry import METHODS, ON_REQUEST, SEARCHES, find_method
from placewright.solvers.results import solve
from placewright.solvers.single import SingleDevices
from placewright.solvers.stop import MaxEvaluations
from placewright.transforms.bundles import accelerators
from placewright.units import format_bytes, format_percent, format_seconds
from placewright.workers import as_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.solvers.best_plans import Candidate
    from placewright.solvers.search import Search, Solver
    from placewright.solvers.stop import Stop
    from placewright.workers import Workers

DEFAULT_METHOD = Accelerate.name
"""What is used most today: Accelerate's `device_map="auto"`."""
NEEDS_SEVERAL = ("round-robin", "metis", "kahip", "mincut")
"""Methods that spread ops over accelerators without regard to memory: with one they do nothing."""
COMPARE_BUDGET = "10s"
"""Time budget per method of `compare` without a stop rule and a budget."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Results of several methods on one problem.

    Args:
        problem: The problem as given, not as a method that stands for another runtime runs it.
        results: At least one.
        labels: What each result is called; by default its method.
        skipped: Methods that cannot solve the problem, each with the reason.
        interrupted: Whether the comparison was stopped by hand.
        rank: What results are ordered by, the smallest first; by default bytes over the memory,
            then the objective.
        criterion: What that is, in words.
        name: What the model is called; by default the graph's name.
    """

    problem: Problem
    results: tuple[Result, ...]
    labels: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    interrupted: bool = False
    rank: Callable[[Result], tuple[float, ...]] | None = None
    name: str = ""
    criterion: str = ""

    def __post_init__(self) -> None:
        if not self.results:
            raise PlanError("there is no result to compare: expected at least one")
        labels = self.labels or tuple(result.solver for result in self.results)
        if len(labels) != len(self.results):
            raise ConfigError(f"{len(labels)} labels for {len(self.results)} results")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "results", tuple(self.results))
        object.__setattr__(self, "name", self.name or self.problem.graph.name)

    @cached_property
    def best(self) -> Result:
        """The best of the results."""
        return min(self.results, key=self.rank or (lambda result: result.key))

    @property
    def faster_by_estimate(self) -> tuple[Result, ...]:
        """Results with a better prediction than the best one, which ranks before them."""
        return tuple(result for result in self.results if result.key < self.best.key)

    @cached_property
    def single_device(self) -> Result:
        """The best plan with everything on one device, as far as the constraints allow it."""
        for result in self.results:
            if result.solver == SingleDevices.name:
                return result
        return solve(self.problem, SingleDevices(), progress=False)

    @property
    def single_device_name(self) -> str:
        """The best single device."""
        return main_device(self.problem, self.single_device.plan)

    @cached_property
    def default(self) -> Result | None:
        """Accelerate's plan, on its own runtime; None if it cannot solve the problem."""
        for result in self.results:
            if result.solver == DEFAULT_METHOD:
                return result
        try:
            stop = MaxEvaluations(max(4, len(self.problem.cluster)))
            return solve(self.problem, Accelerate(), stop, progress=False)
        except PlacewrightError:
            return None

    @property
    def bound(self) -> Bound | None:
        """The lower bound on plans that fit, as far as a result of this problem has proven it."""
        bounds = [
            Bound(result.bound, result.bound_name)
            for result in self.results
            if result.fits and result.plan.fusion is None and result.bound > 0
        ]
        return max(bounds, key=lambda bound: bound.seconds, default=None)

    @property
    def skipped_line(self) -> str:
        """The skipped methods in one line, each with the beginning of its reason."""
        names: dict[str, list[str]] = {}
        for name, reason in self.skipped:
            names.setdefault(reason.partition(":")[0], []).append(name)
        parts = [f"{', '.join(methods)} ({reason})" for reason, methods in names.items()]
        return f"skipped: {'; '.join(parts)}"

    def speedup(self, result: Result) -> float | None:
        """How many times faster than the best single device; None if one of them does not fit."""
        single = self.single_device
        if not (single.fits and result.fits and result.objective_value > 0):
            return None
        return single.objective_value / result.objective_value

    def _repr_html_(self) -> str:
        """What a notebook shows: the best method first."""
        what = "step time" if self.problem.objective == "step" else "period"
        ranked = sorted(
            zip(self.labels, self.results, strict=True),
            key=lambda pair: (pair[1] is not self.best, pair[1].key),
        )
        rows = [
            (
                label,
                format_seconds(result.objective_value),
                "–" if (ratio := self.speedup(result)) is None else f"{ratio:.2f}×",
                format_percent(result.gap) if result.fits else "–",
                "yes" if result.fits else f"{format_bytes(result.overflow)} over",
                f"{result.evaluations:,}",
                format_seconds(result.seconds),
            )
            for label, result in ranked
        ]
        columns = (
            *("method", what, f"vs {self.single_device_name}", "gap", "fits"),
            *("evaluations", "search time"),
        )
        bound = self.bound
        lines = [] if bound is None else [f"lower bound {format_seconds(bound.seconds)}"]
        lines += ["interrupted: these are the results so far"] if self.interrupted else []
        skipped = ", ".join(name for name, _ in self.skipped)
        lines += [f"skipped: {skipped}"] if skipped else []
        title = f"{self.name} on {self.problem.cluster.name}"
        return html_card(title, lines, html_table(columns, rows, bold_row=0))

    def __str__(self) -> str:
        what = "step time" if self.problem.objective == "step" else "period"
        rows = [("method", what, "gap", "fits", "evaluations", "seconds")]
        for label, result in sorted(
            zip(self.labels, self.results, strict=True),
            key=lambda pair: (pair[1] is not self.best, pair[1].key),
        ):
            rows.append(
                (
                    f"{'* ' if result is self.best else ''}{label}",
                    format_seconds(result.objective_value),
                    f"{result.gap:.1%}" if result.fits and np.isfinite(result.gap) else "–",
                    "yes" if result.fits else f"{format_bytes(result.overflow)} over",
                    f"{result.evaluations:,}",
                    f"{result.seconds:.2f}",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{self.name} on {self.problem.cluster.name}"]
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        single = self.single_device
        fits = "" if single.fits else f", {format_bytes(single.overflow)} over its memory"
        lines.append(
            f"best single device: {self.single_device_name}, "
            f"{format_seconds(single.objective_value)}{fits}"
        )
        lines += [f"best by {self.criterion}"] if self.criterion else []
        lines += [self.skipped_line] if self.skipped else []
        return "\n".join(lines)


def compare(
    problem: Problem,
    methods: Sequence[str | Solver] | Literal["all"] | None = None,
    budget: str | float | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    select: Callable[[Search], Candidate] | None = None,
    *,
    progress: Callable[[Solver, Search], None] | bool | None = None,
    on_result: Callable[[Result], None] | None = None,
    keep_interrupted: bool = False,
    cautious: bool = True,
    workers: Workers | str | int | None = None,
) -> Comparison:
    """Run several methods on one problem, each with the whole budget.

    Args:
        methods: Names or solvers; `"all"` for every method; by default those that are not parts or
            variants of others. Unless named, a method that cannot solve the problem is skipped.
        budget: Time budget per method; 10 s for searches by default.
        stop: A stop rule per method, in addition.
        seed: Random seed of each method.
        select: Chooses one of each search's best plans, as in `solve`.
        progress: Called with the solver and its search after each batch of plans; True, False or
            None as in `solve`.
        on_result: Called with each method's result.
        keep_interrupted: On Ctrl-C, return the results so far instead of raising.
        cautious: As in `solve`, without a `select`. Where costs are estimates and the model fits
            one device, results whose gain survives slow hand-overs also rank before others.
        workers: As in `solve`; all methods use them in turn.

    Raises:
        ConfigError: A method that is named cannot solve the problem, or none can.
        MissingDependency: A method that is named needs a library that is not installed.
    """
    may_skip = methods is None or methods == "all"
    names: Sequence[str | Solver] = list(METHODS) if methods == "all" else methods or ()
    names = default_methods() if methods is None else names
    solvers = [find_method(each) if isinstance(each, str) else each for each in names]
    results: list[Result] = []
    skipped: list[tuple[str, str]] = []
    interrupted = False
    with (
        as_workers(workers) as shared_workers,
        comparison_progress(progress, len(solvers)) as on_progress,
    ):
        for solver in solvers:
            if may_skip and solver.name in NEEDS_SEVERAL and len(accelerators(problem)) < 2:
                skipped.append((solver.name, "one accelerator: it would put everything there"))
                continue
            is_search = solver.name in SEARCHES
            method_budget = (
                COMPARE_BUDGET if is_search and budget is None and stop is None else budget
            )
            watch = False if on_progress is None else _watch(on_progress, solver)
            try:
                result = solve(
                    problem,
                    solver,
                    stop,
                    seed,
                    watch,
                    select=select,
                    budget=method_budget,
                    keep_interrupted=keep_interrupted,
                    cautious=cautious,
                    workers=shared_workers,
                )
            except (ConfigError, MissingDependency) as error:
                if not may_skip:
                    raise
                skipped.append((solver.name, str(error)))
                continue
            except KeyboardInterrupt:
                if not (results and keep_interrupted):
                    raise
                interrupted = True
                break
            results.append(result)
            if on_result is not None:
                on_result(result)
            if result.interrupted:
                interrupted = True
                break
    if not results:
        reason = skipped[0][1] if skipped else "no method was named"
        raise ConfigError(f"there is nothing to compare: {reason}")
    comparison = Comparison(problem, tuple(results), (), tuple(skipped), interrupted)
    return rank_cautiously(comparison) if cautious and select is None else comparison


def rank_cautiously(comparison: Comparison) -> Comparison:
    """The comparison with results whose gain survives slow hand-overs before others.

    Where costs are measured, or the model does not fit one device, it stays as it is.
    """
    costs = PessimisticCosts.of(comparison.problem)
    if costs is None:
        return comparison
    objective = "step time" if comparison.problem.objective == "step" else "period"
    criterion = f"{objective}, of plans whose gain survives slow hand-overs"
    return replace(comparison, rank=costs.rank, criterion=criterion)


def default_methods() -> list[str]:
    """The methods that a comparison runs by default."""
    return [name for name in METHODS if name not in ON_REQUEST]


def main_device(problem: Problem, plan: Plan) -> str:
    """The device that runs most of a plan's scheduled ops: pins may have moved some of them."""
    ops = np.bincount(plan.placement[problem.arrays.scheduled], minlength=len(plan.device_names))
    return plan.device_names[int(ops.argmax())]


def _watch(progress: Callable[[Solver, Search], None], solver: Solver) -> Callable[[Search], None]:
    return lambda search: progress(solver, search)
