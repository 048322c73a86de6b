"""Robustness: how plans fare when costs differ from the estimates.

Costs are estimates, and the best plan for an estimate often depends on its being right: in Fast
Heterogeneous Serving (arXiv 2604.07472, 2026) exact plans degrade sharply when parameters are off
by a factor of 1.5. So we evaluate plans under randomly perturbed costs, and can choose the plan
whose bad trials are least bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.errors import ConfigError
from placewright.plan_batch import PlanBatch
from placewright.solvers.search import thread_count
from placewright.transforms import contract

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.best_plans import Candidate
    from placewright.solvers.search import Search

TRIALS, SPREAD = 100, 0.2
_TAIL_SHARE = 0.1  # the worst share of trials, by whose mean plans are chosen
_MAX_CHANNEL_TIMES = (
    10_000_000  # channels × tensors above which links of equal speed share a factor
)


@dataclass(frozen=True)
class Robustness:
    """A plan's step time or period, whichever is the objective, under perturbed costs.

    Args:
        nominal: Under the unperturbed costs.
        median, p95, worst: Over all trials.
        tail: The mean of the worst tenth of the trials.
        over: Trials in which the plan does not fit: other arrival times change which tensors are
            alive at once, so a plan close to a limit can exceed it.
    """

    nominal: float
    median: float
    p95: float
    tail: float
    worst: float
    over: int
    trials: int
    spread: float

    @property
    def key(self) -> tuple[int, float, float]:
        """Plans are chosen by trials that do not fit, mean of the worst tenth, nominal value."""
        return self.over, self.tail, self.nominal


@dataclass(frozen=True)
class RankedCandidate:
    """A plan that a search remembers, and how robust it is."""

    candidate: Candidate
    robustness: Robustness


@dataclass(frozen=True)
class RobustChoice:
    """Chooses the most robust of the best few plans of a search.

    The rule: of those that fit, the one with the fewest trials over memory; of these, the smallest
    mean of the worst tenth of the trials; then the smallest nominal value. All plans have the same
    trials. Where none fits, the plan with the smallest overflow is chosen.

    Args:
        trials: Perturbed problems to evaluate the plans on.
        spread: The largest distance of a factor from 1, see `perturbed_problems`.
        seed: The random seed of the factors.
    """

    trials: int = TRIALS
    spread: float = SPREAD
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.trials, self.spread)

    def __call__(self, search: Search) -> Candidate:
        return self.rank(search)[0].candidate

    def rank(self, search: Search) -> list[RankedCandidate]:
        """The best few plans of a search, the most robust first."""
        top_plans = search.top_plans
        candidates = [candidate for candidate in top_plans if candidate.key[0] == 0] or top_plans[
            :1
        ]
        plans = [candidate.plan for candidate in candidates]
        robustness_figures = robustness(search.problem, plans, self.trials, self.spread, self.seed)
        ranked = [
            RankedCandidate(*pair) for pair in zip(candidates, robustness_figures, strict=True)
        ]
        return sorted(ranked, key=lambda entry: entry.robustness.key)


def perturbed_problems(
    problem: Problem, trials: int = TRIALS, spread: float = SPREAD, seed: int = 0
) -> Iterator[Problem]:
    """The same problem with perturbed costs, `trials` times.

    Every factor is uniform in [1 - spread, 1 + spread], so that its mean is 1. Two kinds of factors
    multiply each other, because estimates are wrong in two ways:

    - one factor per device and per channel, for everything that runs there: a throttled clock, a
      guessed share of the peak, a busy wire. This does not average out over many ops;
    - one per op and device and one per tensor: kernels and sizes that the model gets wrong one by
      one. This averages out over a long step, but changes the order of events.

    A time is thus off by a factor of (1 + spread)² at most. Memory and launch overheads of issuers
    are not changed. The first trials do not depend on their number; factors of devices and channels
    are the same for a contracted problem. In clusters too large for times per channel, links of
    equal speed share a factor.

    Raises:
        ConfigError: There are no trials, or the spread is not from 0 to below 1.
    """
    _check(trials, spread)
    a = problem.arrays
    link_class, transfer_rows, channel_factor = _channel_rows(problem)
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        device_noise = rng.uniform(1 - spread, 1 + spread, a.devices)
        channel_noise = rng.uniform(1 - spread, 1 + spread, int(channel_factor.max(initial=-1)) + 1)
        op_noise = rng.uniform(1 - spread, 1 + spread, a.compute.shape)
        tensor_noise = rng.uniform(1 - spread, 1 + spread, len(a.sizes))
        yield problem.with_arrays(
            compute=a.compute * op_noise * device_noise,
            transfer=a.transfer[transfer_rows]
            * channel_noise[channel_factor][:, None]
            * tensor_noise,
            link_class=link_class,
        )


def robustness(
    problem: Problem,
    plans: Sequence[Plan],
    trials: int = TRIALS,
    spread: float = SPREAD,
    seed: int = 0,
) -> list[Robustness]:
    """The robustness of each plan, under the same perturbed costs.

    Plans with fused ops have their own factors for ops and tensors.
    """
    _check(trials, spread)
    values = np.empty((len(plans), trials))
    infeasible = np.zeros(len(plans), dtype=np.int64)
    nominal = np.empty(len(plans))
    for members, batch_problem, batch in _plan_batches(problem, plans):
        nominal[members] = _judge(batch_problem, batch)[0]
        for trial, perturbed_problem in enumerate(
            perturbed_problems(batch_problem, trials, spread, seed)
        ):
            value, overflow = _judge(perturbed_problem, batch)
            values[members, trial] = value
            infeasible[members] += overflow > 0
    values.sort(axis=1)
    tail_trials = max(1, round(_TAIL_SHARE * trials))
    return [
        Robustness(
            nominal=float(nominal[index]),
            median=float(np.median(plan_values)),
            p95=float(np.quantile(plan_values, 0.95)),
            tail=float(plan_values[-tail_trials:].mean()),
            worst=float(plan_values[-1]),
            over=int(infeasible[index]),
            trials=trials,
            spread=spread,
        )
        for index, plan_values in enumerate(values)
    ]


def _plan_batches(
    problem: Problem, plans: Sequence[Plan]
) -> Iterator[tuple[list[int], Problem, PlanBatch]]:
    """Plans that can be evaluated together: with priorities, without, and each with fused ops."""
    by_priority: dict[bool, list[int]] = {True: [], False: []}
    for index, plan in enumerate(plans):
        if plan.fusion is None:
            by_priority[plan.priority is not None].append(index)
        else:
            contracted = contract(problem, plan)
            yield [index], contracted.problem, PlanBatch.repeat(contracted.plan)
    for with_priorities, members in by_priority.items():
        if members:
            batch_plans = [plans[index] for index in members]
            yield members, problem, PlanBatch.of(problem, batch_plans, with_priorities, True)


def _judge(problem: Problem, batch: PlanBatch) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    verdict = simulator.judge_batch(problem, batch, thread_count(batch.placement.size))
    return verdict.value, verdict.overflow


def _channel_rows(
    problem: Problem,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of transfer times, one per channel and speed of its links.

    Returns:
        Devices × devices: the row; for each row, the old row and the index of its factor.
    """
    a = problem.arrays
    is_link = a.link_class >= 0
    pairs = np.stack([a.channel[is_link], a.link_class[is_link]], axis=1)
    rows, row_of = np.unique(pairs, axis=0, return_inverse=True)
    if len(rows) * len(a.sizes) > _MAX_CHANNEL_TIMES:
        classes = np.arange(len(a.transfer))
        return a.link_class, classes, classes
    link_class = a.link_class.copy()
    link_class[is_link] = row_of.ravel()
    return link_class, rows[:, 1].astype(np.int64), rows[:, 0].astype(np.int64)


def _check(trials: int, spread: float) -> None:
    if trials < 1:
        raise ConfigError(f"{trials} trials: expected at least 1")
    if not 0 <= spread < 1:
        raise ConfigError(f"a spread of {spread!r}: expected from 0 to below 1, e.g. 0.2")
