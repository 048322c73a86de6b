"""Bounds: a problem in, seconds that no plan without fusion can beat out.

Each has a proof in words in its docstring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.problem import Problem

Seconds = NDArray[np.float64]

_ROUNDS = 50  # of improving the prices in `work`; each costs one pass over units × devices


@dataclass(frozen=True)
class Bound:
    """Seconds that no plan can beat, and why."""

    seconds: float
    name: str


def bound(problem: Problem) -> Bound:
    """The highest bound we can prove for the problem's objective."""
    bounds = [Bound(work(problem), "work"), Bound(largest_unit(problem), "largest unit")]
    if problem.objective == "step":
        bounds.insert(0, Bound(critical_path(problem), "critical path"))
    return max(bounds, key=lambda found: found.seconds)


def critical_path(problem: Problem) -> float:
    """The longest chain of ops, each on its fastest allowed device, with free communication.

    Proof: an op starts only after every op whose tensor it reads has finished (rules 3 and 4), and
    takes at least its time on its fastest allowed device (rule 1). So by induction along the graph
    no op finishes before the longest such chain that ends in it. What exists before the step
    (weights, states, inputs) finishes at 0. The step lasts at least until its last op has finished.
    Sums here run in the simulator's own order, so rounding cannot lift the bound above it.
    """
    a = problem.arrays
    fastest = np.where(a.turn, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0).tolist()
    first, sources = a.first_input.tolist(), a.producer[a.inputs].tolist()
    finish: list[float] = []
    for op, seconds in enumerate(fastest):
        reads = sources[first[op] : first[op + 1]]
        finish.append(max([finish[source] for source in reads], default=0.0) + seconds)
    return max(finish)


def work(problem: Problem) -> float:
    """All the work, shared out over the devices as well as can be.

    Proof: a device runs one op at a time (rule 1), so the step, like the period, lasts at least as
    long as every device's load, and at least as long as any weighted mean of the loads. Give each
    device a price, all prices adding up to 1. The mean of the loads weighted by price is the sum,
    over units of ops that share a device, of the unit's seconds there times the price there; and no
    term is below the unit's smallest over the devices it is allowed on. So the sum of these minima
    is a bound for any prices whatever. Equal prices give total work / devices; prices in proportion
    to speed are exact for devices that are faster by one factor; raising the price where the load
    would be largest improves on both. We keep the best of all.
    """
    seconds = _unit_seconds(problem)
    devices = seconds.shape[1]
    totals = problem.arrays.compute[problem.arrays.turn].sum(axis=0)
    prices = [np.full(devices, 1 / devices)]
    if (totals > 0).all():
        speeds = 1 / totals
        prices.append(speeds / speeds.sum())
    best = max(_priced(seconds, price)[0] for price in prices)
    price = prices[-1]
    for round_ in range(_ROUNDS):
        value, loads = _priced(seconds, price)
        best = max(best, value)
        if not loads.max() > 0:
            break
        price = price * np.exp((loads / loads.max() - 0.5) / (1 + round_) ** 0.5)
        price = np.maximum(price / price.sum(), 1e-9)
        price = price / price.sum()
    return _rounded_down(problem, best)


def largest_unit(problem: Problem) -> float:
    """The longest unit of ops that must share a device, on its fastest allowed device.

    Proof: the ops of a unit all run on one device (rule 10), one at a time (rule 1); that device's
    load is at least their sum there, and the step, like the period, is at least that load.
    """
    return _rounded_down(problem, float(_unit_seconds(problem).min(axis=1).max()))


def _unit_seconds(problem: Problem) -> Seconds:
    """Units × devices: seconds of all ops of each unit, infinite where it may not be."""
    a = problem.arrays
    units = int(a.unit.max()) + 1
    seconds = np.where(a.turn[:, None], a.compute, 0.0)
    columns = [np.bincount(a.unit, weights=column, minlength=units) for column in seconds.T]
    allowed = np.zeros((units, a.devices), dtype=bool)
    allowed[a.unit] = a.allowed
    return np.where(allowed, np.stack(columns, axis=1), np.inf)


def _priced(seconds: Seconds, price: Seconds) -> tuple[float, Seconds]:
    """The bound that these prices prove, and the loads if every unit goes where it is cheapest."""
    bill = seconds * price
    cheapest = bill.argmin(axis=1)
    units = np.arange(len(seconds))
    times = seconds[units, cheapest]
    loads = np.bincount(cheapest, weights=times, minlength=seconds.shape[1])
    return float(bill[units, cheapest].sum()), loads.astype(np.float64)


def _rounded_down(problem: Problem, seconds: float) -> float:
    """Less what rounding can add to a sum over all ops, so that the bound holds in floats."""
    return seconds * (1 - 4 * problem.arrays.ops * float(np.finfo(np.float64).eps))
