"""Robustness: how plans fare when costs differ from the estimates.

Costs are estimates, and the plan that is best for the estimate is often the one that needs it to be
right: in Fast Heterogeneous Serving (arXiv 2604.07472, 2026) exact plans degrade sharply when
parameters are off by a factor of 1.5. So we judge plans under costs that are wrong in many ways at
once, and can choose by how bad it gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.errors import ConfigError
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
_TAIL_SHARE = 0.1  # the worst share of trials, whose mean is what plans are chosen by
_MAX_CHANNEL_TIMES = (
    10_000_000  # channels × tensors above which links of equal speed are off together
)


@dataclass(frozen=True)
class Robustness:
    """A plan's step time or period, whichever is the objective, under perturbed costs.

    Args:
        nominal: Under the costs as they are.
        median, p95, worst: Of all trials.
        tail: Mean of the worst tenth of the trials.
        over: Trials in which the plan needs more memory than there is: when things arrive changes
            what is held at one time, so a plan close to a limit can go over it.
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
        """What plans are chosen by: trials that do not fit, mean of the worst tenth, nominal."""
        return self.over, self.tail, self.nominal


@dataclass(frozen=True)
class RankedCandidate:
    """A plan that a search remembers, and how robust it is."""

    candidate: Candidate
    robustness: Robustness


@dataclass(frozen=True)
class RobustChoice:
    """Chooses, of the best few plans of a search, the one whose bad trials are least bad.

    The rule: of those that fit, the one with the fewest trials over memory; of these, the smallest
    mean of the worst tenth of the trials; then the smallest nominal figure. All plans see the same
    trials. Where none fits, the one that is over by the fewest bytes is taken.

    Args:
        trials: Perturbed problems to judge the plans on.
        spread: How far a factor goes from 1, see `perturbed`.
        seed: For the factors.
    """

    trials: int = TRIALS
    spread: float = SPREAD
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.trials, self.spread)

    def __call__(self, search: Search) -> Candidate:
        return self.rank(search)[0].candidate

    def rank(self, search: Search) -> list[RankedCandidate]:
        """The best few plans of a search, the one to choose first."""
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
    """The same problem with costs that are off, time and again.

    Every factor is uniform in [1 - spread, 1 + spread], so that its mean is 1 and the costs as they
    are lie in the middle. Two kinds multiply each other, because estimates are wrong in two ways:

    - one factor for each device and each channel, for all that runs there: a clock that throttles,
      a share of the peak that was guessed, a busy wire. This does not average out over many ops;
    - one for each op on each device and each tensor: kernels and sizes that the model gets wrong
      one by one. This averages out over a long step, but changes who waits for whom.

    A time is thus off by (1 + spread)² at most. Memory and launch overheads of issuers are as they
    are. The first trials are the same whatever their number; factors of devices and channels are
    the same for a contracted problem. In clusters so large that every channel cannot have times of
    its own, links of equal speed share a factor.

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
    """How each plan fares under perturbed costs, the same for all of them.

    Plans with fused ops have factors of their own for their ops and tensors.
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


PlanArrays = tuple["NDArray[np.int32]", "NDArray[np.float64] | None", "NDArray[np.int64] | None"]
"""Devices, priorities and staging of several plans."""


def _plan_batches(
    problem: Problem, plans: Sequence[Plan]
) -> Iterator[tuple[list[int], Problem, PlanArrays]]:
    """Plans that can be judged together: with priorities, without, and each with fused ops."""
    by_priority: dict[bool, list[int]] = {True: [], False: []}
    for index, plan in enumerate(plans):
        if plan.fusion is None:
            by_priority[plan.priority is not None].append(index)
        else:
            contracted = contract(problem, plan)
            yield [index], contracted.problem, _stack_plans(contracted.problem, [contracted.plan])
    for members in by_priority.values():
        if members:
            yield members, problem, _stack_plans(problem, [plans[index] for index in members])


def _stack_plans(problem: Problem, plans: Sequence[Plan]) -> PlanArrays:
    no_staging = np.full(len(problem.cluster), -1, dtype=np.int64)
    priorities = [plan.priority for plan in plans if plan.priority is not None]
    return (
        np.stack([plan.placement for plan in plans]),
        np.stack(priorities) if priorities else None,
        np.stack([no_staging if plan.staging is None else plan.staging for plan in plans]),
    )


def _judge(problem: Problem, batch: PlanArrays) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    verdict = simulator.judge(problem, *batch, threads=thread_count(batch[0].size))
    return verdict.value, verdict.overflow


def _channel_rows(
    problem: Problem,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of transfer times, one for each channel and speed of link that goes over it.

    Returns:
        Devices × devices: which row holds; for each row, the old row; and which factor it takes.
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
        raise ConfigError(f"a spread of {spread!r}: expected from 0 to below 1, such as 0.2")
