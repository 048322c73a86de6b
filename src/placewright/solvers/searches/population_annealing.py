"""Population annealing: many replicas are annealed side by side, and the better ones multiply.

Hukushima and Iba 2003, "Population annealing and its application to a spin glass". Where it
deviates: a move may also take a run of groups from another replica, energies are relative to the
best replica's, and resampling keeps the size of the population.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placewright.errors import ConfigError, MissingDependency
from placewright.plan_batch import PlanBatch
from placewright.simulator import judge
from placewright.solvers.balanced import balanced_placements
from placewright.solvers.heft import HEFT
from placewright.solvers.searches.initial_plans import distinct_rows
from placewright.solvers.searches.search_space import (
    bundle_grouping,
    check_max_plans,
    group_orders,
    plan_budget,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.simulator.lane_batch import LaneVerdict
    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows
    from placewright.transforms import Grouping

_CPU_REPLICAS, _GPU_REPLICAS = 32, 16_384  # several times the plans that are evaluated at a time
_HOT, _COLD = 0.002, 0.00002  # temperatures, as shares of a replica's cost
_RESAMPLE_INTERVAL = 10  # moves of a replica between two resamplings
_PENALTY = 10.0  # cost of an overflow of a device's memory, in step times
_LEAST_PENALTY = 1.0  # of any overflow: a plan that fits and takes twice as long is no worse


@dataclass(frozen=True)
class PopulationAnnealing:
    """Anneals a population of placements of groups that share one order.

    It starts with the best plan so far (HEFT's, if there is none), single devices and balanced
    splits, each many times, in the graph's order or the best plan's, whichever is better for the
    best of them. A replica moves a run of groups to another device, or takes it from another
    replica. The temperature falls with the budget; each time it does, replicas are drawn anew by
    their weight.

    On the CPU all plans are evaluated exactly. On a GPU they are evaluated by its lanes
    (`simulator/gpu_lanes.py`), and whatever would be the best plan is judged again exactly.

    Args:
        grouping: Makes the grouping; by default bundles.
        replicas: The size of the population; by default 32 on the CPU and 16,384 on a GPU.
        max_plans: Plans to evaluate; by default the stop rule decides, or 4,000 without one.
        device: `cpu`, `cuda` or `cuda:1`.
    """

    grouping: Callable[[Problem], Grouping] | None = None
    replicas: int | None = None
    max_plans: int | None = None
    device: str = "cpu"
    name = "population-annealing"

    def __post_init__(self) -> None:
        if self.replicas is not None and self.replicas < 2:
            raise ConfigError(
                f"PopulationAnnealing with {self.replicas!r} replicas: expected 2 or more"
            )
        check_max_plans("PopulationAnnealing", self.max_plans)

    def run(self, search: Search) -> None:
        """Anneal until the budget is used.

        Raises:
            MissingDependency: PyTorch is not installed.
            ProblemError: Lanes on a GPU are to evaluate plans, and cannot for this problem.
        """
        if find_spec("torch") is None:
            raise MissingDependency("torch", "torch")
        import torch

        from placewright.solvers.searches.replicas import Replicas

        problem = search.problem
        if search.best is None:
            HEFT(contended=True).run(search)
        grouping = (self.grouping or bundle_grouping)(problem)
        evaluator = self._evaluator(search, grouping)
        rows = evaluator.begin(_initial_rows(search, grouping))
        if rows is None:
            return
        count = self.replicas or (_CPU_REPLICAS if self.device == "cpu" else _GPU_REPLICAS)
        population = Replicas.of(
            group_orders(problem, grouping),
            problem.arrays.devices,
            self.device,
            int(search.rng.integers(2**62)),
        )
        legal = problem.arrays.allowed[_leaders(problem, grouping)]
        budget = _Budget(search, plan_budget(search, legal, self.max_plans))
        # The best of the first plans makes up half of the population, all of them the rest.
        first = np.concatenate([np.zeros(count // 2, int), np.arange(count - count // 2)])
        dtype = np.uint8 if problem.arrays.devices <= 255 else np.int32
        columns = torch.from_numpy(rows[first % len(rows)].T.astype(dtype)).to(self.device)
        cost = evaluator.cost(columns)
        moves, resampled_at = 0, budget.temperature
        while cost is not None and not budget.is_used:
            proposed = population.propose(columns)
            proposed_cost = evaluator.cost(proposed)
            if proposed_cost is None:
                return
            accepted = population.accept(cost, proposed_cost, budget.temperature)
            columns = torch.where(accepted, proposed, columns)
            cost = torch.where(accepted, proposed_cost, cost)
            moves += 1
            if moves % _RESAMPLE_INTERVAL == 0 and budget.temperature < resampled_at:
                chosen = population.resample(cost, resampled_at, budget.temperature)
                columns, cost = columns[:, chosen], cost[chosen]
                resampled_at = budget.temperature

    def _evaluator(self, search: Search, grouping: Grouping) -> _Evaluator:
        if self.device == "cpu":
            return _ExactEvaluator(search, grouping)
        return _GpuEvaluator(search, grouping, self.device)


class _Evaluator(Protocol):
    """Evaluates columns of a population for a search."""

    def begin(self, rows: Rows) -> Rows | None:
        """Evaluate the first plans, choose an order, and return them best first; None if over."""
        ...

    def cost(self, columns: torch.Tensor) -> torch.Tensor | None:
        """The cost of each column, or None if the search was over before all were evaluated."""
        ...


class _ExactEvaluator:
    """Evaluates with the search itself, on the CPU."""

    def __init__(self, search: Search, grouping: Grouping) -> None:
        self.search, self.grouping = search, grouping
        self.first_plan = search.best
        self.priority: NDArray[np.float64] | None = None
        self.capacity = max(1.0, float(search.problem.arrays.capacity.mean()))

    def begin(self, rows: Rows) -> Rows | None:
        search, problem = self.search, self.search.problem
        placements = problem.legalize(self.grouping.expand(rows))
        verdict = search.judge(placements)
        if search.over:
            return None
        best = verdict.best()
        order = None if self.first_plan is None else self.first_plan.priority
        if order is not None:
            ranked = search.judge(placements, order)
            if len(ranked.value) < len(rows) or search.over:
                return None
            if ranked.key(ranked.best()) < verdict.key(best):
                self.priority, verdict = order, ranked
        return rows[verdict.best_first(len(rows))]

    def cost(self, columns: torch.Tensor) -> torch.Tensor | None:
        import torch

        rows = columns.T.numpy().astype(np.int32)
        verdict = self.search.judge(
            self.search.problem.legalize(self.grouping.expand(rows)), self.priority
        )
        if len(verdict.value) < len(rows):
            return None
        return _penalised(torch.from_numpy(verdict.value), torch.from_numpy(verdict.overflow), self)


class _GpuEvaluator:
    """Evaluates with lanes on a GPU; what would be the best plan goes to the search, exactly.

    A plan whose bounds leave open whether it fits counts as one that fits if all such plans among
    the first ones do, and else with an overflow in the middle of its bounds.
    """

    def __init__(self, search: Search, grouping: Grouping, device: str) -> None:
        from placewright.simulator.gpu_lanes import check_scope

        check_scope(search.problem)
        self.search, self.grouping, self.device = search, grouping, device
        self.exact = _ExactEvaluator(search, grouping)
        self.best_cost = np.inf
        self.open_plans_fit = False

    def begin(self, rows: Rows) -> Rows | None:
        from placewright.simulator.gpu_lanes import GpuLanes

        best_first = self.exact.begin(rows)
        self.lanes = GpuLanes(
            self.search.problem, self.grouping.group, self.exact.priority, self.device
        )
        if best_first is not None:
            self.open_plans_fit = self._do_open_plans_fit(best_first)
        return best_first

    def _do_open_plans_fit(self, rows: Rows) -> bool:
        """Whether all of these plans that the bounds leave open fit."""
        import torch

        columns = np.ascontiguousarray(rows.T.astype(np.uint8))
        verdict = self.lanes.evaluate(torch.from_numpy(columns).to(self.device))
        is_open = ~verdict.fits & (verdict.least_excess.sum(dim=0) == 0)
        placements = self.search.problem.legalize(self.grouping.expand(rows[is_open.cpu().numpy()]))
        if not len(placements):
            return True
        order = self.exact.priority
        priority = None if order is None else np.tile(order, (len(placements), 1))
        return not judge(self.search.problem, placements, priority).overflow.any()

    def cost(self, columns: torch.Tensor) -> torch.Tensor | None:
        """What may be the best is judged exactly; a plan between its bounds may turn out not to
        fit, and the search then does not take it."""
        if self.search.stop.left(self.search) < columns.shape[1] or self.search.over:
            return None
        verdict = self.lanes.evaluate(columns.byte())
        cost = self._costs(verdict)
        least, at = cost.min(dim=0)
        best = None
        if float(least) < self.best_cost:
            self.best_cost = float(least)
            row = columns[:, int(at)].cpu().numpy().astype(np.int32)[None]
            placement = self.search.problem.legalize(self.grouping.expand(row))
            priority = self.exact.priority
            best = PlanBatch(placement, None if priority is None else priority[None])
        self.search.count_external(int(columns.shape[1]), best)
        return cost

    def _costs(self, verdict: LaneVerdict) -> torch.Tensor:
        """As on the CPU, with the overflow as its bounds have it."""
        least, most = verdict.least_excess.sum(dim=0), verdict.most_excess.sum(dim=0)
        middle = (least.double() + most.double()) / 2
        overflow = least.double() if self.open_plans_fit else middle
        return _penalised(verdict.step_time, overflow, self.exact)


def _penalised(
    value: torch.Tensor, overflow: torch.Tensor, evaluator: _ExactEvaluator
) -> torch.Tensor:
    penalty = _PENALTY * overflow / evaluator.capacity + _LEAST_PENALTY * (overflow > 0)
    return value.double() * (1.0 + penalty)


class _Budget:
    """The share of a search's budget that is used, and the temperature by it."""

    def __init__(self, search: Search, plans: float) -> None:
        self.search, self.plans = search, plans
        self.first_plan = search.evaluations
        self.all_plans = min(plans, search.stop.left(search))
        self.all_seconds = search.stop.seconds_left(search)

    @property
    def is_used(self) -> bool:
        return self.search.over or self.search.evaluations - self.first_plan >= self.plans

    @property
    def temperature(self) -> float:
        """Falls geometrically from hot to cold."""
        by_plans = (self.search.evaluations - self.first_plan) / max(self.all_plans, 1.0)
        by_seconds = 0.0
        if np.isfinite(self.all_seconds):
            seconds_left = self.search.stop.seconds_left(self.search)
            by_seconds = 1.0 - seconds_left / max(self.all_seconds, 1e-9)
        return float(_HOT * (_COLD / _HOT) ** min(max(by_plans, by_seconds), 1.0))


def _initial_rows(search: Search, grouping: Grouping) -> Rows:
    """The best plan so far, every single device, and the balanced splits, each once."""
    problem = search.problem
    placements = [problem.single_device_placements(), balanced_placements(search)]
    if search.best is not None:
        placements.insert(0, search.best.placement[None].astype(np.int32))
    return distinct_rows(np.concatenate(placements)[:, _leaders(problem, grouping)])


def _leaders(problem: Problem, grouping: Grouping) -> NDArray[np.int64]:
    """The op whose device stands for each group: the leader of the group's first op."""
    first_op = np.unique(grouping.group, return_index=True)[1]
    leaders: NDArray[np.int64] = problem.arrays.leader[first_op].astype(np.int64)
    return leaders
