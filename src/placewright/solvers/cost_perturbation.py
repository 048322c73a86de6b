"""Robustness: a problem and plans in, how they fare when costs are not what we think out.

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
from placewright.solvers.search import threads
from placewright.transforms import contract

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.best_plans import Found
    from placewright.solvers.search import Search

TRIALS, SPREAD = 100, 0.2
_TAIL = 0.1  # the worst share of trials, whose mean is what plans are chosen by
_WIRES = 10_000_000  # channels × tensors above which links of equal speed are off together


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
class Ranked:
    """A plan that a search remembers, and how robust it is."""

    found: Found
    robustness: Robustness


@dataclass(frozen=True)
class Robust:
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

    def __call__(self, search: Search) -> Found:
        return self.rank(search)[0].found

    def rank(self, search: Search) -> list[Ranked]:
        """The best few plans of a search, the one to choose first."""
        few = search.few
        candidates = [found for found in few if found.key[0] == 0] or few[:1]
        plans = [found.plan for found in candidates]
        figures = robustness(search.problem, plans, self.trials, self.spread, self.seed)
        ranked = [Ranked(*pair) for pair in zip(candidates, figures, strict=True)]
        return sorted(ranked, key=lambda each: each.robustness.key)


def perturbed(
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
    link_class, rows, of_wire = _wires(problem)
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        device = rng.uniform(1 - spread, 1 + spread, a.devices)
        wire = rng.uniform(1 - spread, 1 + spread, int(of_wire.max(initial=-1)) + 1)
        op = rng.uniform(1 - spread, 1 + spread, a.compute.shape)
        tensor = rng.uniform(1 - spread, 1 + spread, len(a.sizes))
        yield problem.with_arrays(
            compute=a.compute * op * device,
            transfer=a.transfer[rows] * wire[of_wire][:, None] * tensor,
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
    over = np.zeros(len(plans), dtype=np.int64)
    nominal = np.empty(len(plans))
    for members, judged, batch in _batches(problem, plans):
        nominal[members] = _judge(judged, batch)[0]
        for trial, changed in enumerate(perturbed(judged, trials, spread, seed)):
            value, overflow = _judge(changed, batch)
            values[members, trial] = value
            over[members] += overflow > 0
    values.sort(axis=1)
    tail = max(1, round(_TAIL * trials))
    return [
        Robustness(
            nominal=float(nominal[at]),
            median=float(np.median(row)),
            p95=float(np.quantile(row, 0.95)),
            tail=float(row[-tail:].mean()),
            worst=float(row[-1]),
            over=int(over[at]),
            trials=trials,
            spread=spread,
        )
        for at, row in enumerate(values)
    ]


Batch = tuple["NDArray[np.int32]", "NDArray[np.float64] | None", "NDArray[np.int64] | None"]
"""Devices, priorities and staging of several plans."""


def _batches(problem: Problem, plans: Sequence[Plan]) -> Iterator[tuple[list[int], Problem, Batch]]:
    """Plans that can be judged together: with priorities, without, and each with fused ops."""
    together: dict[bool, list[int]] = {True: [], False: []}
    for at, plan in enumerate(plans):
        if plan.fusion is None:
            together[plan.priority is not None].append(at)
        else:
            fused = contract(problem, plan)
            yield [at], fused.problem, _stacked(fused.problem, [fused.plan])
    for members in together.values():
        if members:
            yield members, problem, _stacked(problem, [plans[at] for at in members])


def _stacked(problem: Problem, plans: Sequence[Plan]) -> Batch:
    none = np.full(len(problem.cluster), -1, dtype=np.int64)
    priorities = [plan.priority for plan in plans if plan.priority is not None]
    return (
        np.stack([plan.device for plan in plans]),
        np.stack(priorities) if priorities else None,
        np.stack([none if plan.staging is None else plan.staging for plan in plans]),
    )


def _judge(problem: Problem, batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    verdict = simulator.judge(problem, *batch, threads=threads(batch[0].size))
    return verdict.value, verdict.overflow


def _wires(
    problem: Problem,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of transfer times, one for each channel and speed of link that goes over it.

    Returns:
        Devices × devices: which row holds; for each row, the old row; and which factor it takes.
    """
    a = problem.arrays
    real = a.link_class >= 0
    pairs = np.stack([a.channel[real], a.link_class[real]], axis=1)
    rows, number = np.unique(pairs, axis=0, return_inverse=True)
    if len(rows) * len(a.sizes) > _WIRES:
        classes = np.arange(len(a.transfer))
        return a.link_class, classes, classes
    link_class = a.link_class.copy()
    link_class[real] = number.ravel()
    return link_class, rows[:, 1].astype(np.int64), rows[:, 0].astype(np.int64)


def _check(trials: int, spread: float) -> None:
    if trials < 1:
        raise ConfigError(f"{trials} trials: expected at least 1")
    if not 0 <= spread < 1:
        raise ConfigError(f"a spread of {spread!r}: expected from 0 to below 1, such as 0.2")
