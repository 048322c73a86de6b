"""Contiguous splits of the graph in which the busiest device has as little to do as can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.transforms import layer_places
from placewright.transforms.bundles import (
    Teams,
    accelerators,
    accelerators_first,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.search import Search

_HALVINGS = 50  # of the interval that holds the least load: down to a share of 1e-15
_EVERY = 16  # up to so many accelerators every number of them is tried, then powers of two and all


@dataclass(frozen=True)
class Balanced:
    """The graph cut into one stretch a device, by cost.

    It tries the first 2, 3, … accelerators (of many, powers of two), and all of them with the
    hosts (who get what their speed is worth), each with and without a look at memory. The graph is
    cut in its own order; in one where ops stand just before they are needed; in one where a layer
    stands as a whole, all of its steps in time and its backward pass with it; and, if it is a
    training graph, in one where a backward op stands with the forward op whose tensor it reads.
    """

    name = "balanced"

    def run(self, search: Search) -> None:
        search.judge(splits(search))


def splits(search: Search) -> NDArray[np.int32]:
    """Plans × ops: all the splits that `Balanced` judges, each once; fewer if time runs out."""
    problem = search.problem
    teams = Teams.of(problem)
    fast = accelerators(problem)
    groups = [fast[:count] for count in _counts(len(fast), len(teams))] or [fast]
    if len(everything := accelerators_first(problem)) > len(fast):
        groups.append(np.concatenate([groups[-1], everything[len(fast) :]]))
    places = [np.arange(len(problem.graph)), as_needed(problem)]
    if any(op.phase != "forward" for op in problem.graph.ops):
        places.append(folded(problem))
    if (layers := layer_places(problem)) is not None:
        places.append(layers)
    orders = [place[teams.leader].argsort(kind="stable") for place in places]
    capacity = problem.arrays.capacity.astype(np.float64)
    plans: list[NDArray[np.int32]] = []
    for devices in groups:
        if plans and search.over:
            break
        for order in orders:
            for room in (capacity[devices], np.full(len(devices), np.inf)):
                cuts = split(teams.seconds[order][:, devices], teams.bytes[order], room)
                device = np.empty(len(teams), dtype=np.int32)
                device[order] = devices[cuts]
                plans.append(teams.placement(device))
    return np.unique(np.stack(plans), axis=0)


def _counts(devices: int, teams: int) -> list[int]:
    """How many accelerators to try: of more than `_EVERY`, no more than there are stretches."""
    if devices <= _EVERY:
        return list(range(2, devices + 1))
    powers = [2**power for power in range(5, devices.bit_length())]
    most = max(2, min(devices, teams))
    return sorted({min(count, most) for count in (*range(2, _EVERY + 1), *powers, devices)})


def split(
    seconds: NDArray[np.float64], sizes: NDArray[np.int64], room: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The device (column) of each item (row), in stretches, with the least largest load.

    For a given load each device in turn takes as many items as its load and room allow, which no
    other way of sharing out can beat; so the least load at which all items are taken is found by
    halving. What memory never lets in goes to the last device.
    """
    sums = np.vstack([np.zeros(seconds.shape[1]), seconds.cumsum(axis=0)])
    bytes_ = np.concatenate([[0], sizes.cumsum()])

    def cuts(load: float) -> list[int]:
        at = [0]
        for device, space in enumerate(room):
            if (done := at[-1]) == len(seconds):
                break
            by_load = np.searchsorted(sums[:, device], sums[done, device] + load, side="right") - 1
            by_room = np.searchsorted(bytes_, bytes_[done] + space, side="right") - 1
            at.append(max(done, int(min(by_load, by_room))))
        return at

    low, high = 0.0, float(sums[-1].max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if cuts(middle)[-1] == len(seconds) else (middle, high)
    ends = cuts(high * (1 + 1e-12))[1:]
    return np.minimum(np.searchsorted(ends, np.arange(len(seconds)), side="right"), len(room) - 1)


def as_needed(problem: Problem) -> NDArray[np.int64]:
    """Where each op stands if it comes just before the first op that needs it.

    Graphs of other tools often begin with all their constants, which would all be cut off with the
    first stretch.
    """
    a = problem.arrays
    first, sources = a.first_input.tolist(), a.producer[a.inputs].tolist()
    place = np.full(a.ops, -1, dtype=np.int64)
    read = np.zeros(a.ops, dtype=bool)
    read[sources] = True
    count = 0
    for end in np.flatnonzero(~read).tolist():
        path = [(end, first[end])]  # ops that wait for their inputs, and the next input of each
        while path:
            op, at = path.pop()
            if at < first[op + 1]:
                path.append((op, at + 1))
                if place[sources[at]] < 0:
                    path.append((sources[at], first[sources[at]]))
            elif place[op] < 0:
                place[op], count = count, count + 1
    return place


def folded(problem: Problem) -> NDArray[np.int64]:
    """Where each op stands once the backward half of a training graph lies on the forward half.

    A forward op stands at its own position, a weight with its first reader. Another op stands with
    the last forward op whose tensor it reads; if it reads none, with the first of its inputs.
    """
    a, ops = problem.arrays, problem.graph.ops
    place = np.zeros(a.ops, dtype=np.int64)
    for op in range(a.ops):
        if ops[op].phase == "forward":
            place[op] = a.leader[op]
            continue
        sources = a.producer[a.inputs[a.first_input[op] : a.first_input[op + 1]]]
        forward = [place[source] for source in sources if ops[source].phase == "forward"]
        behind = [place[source] for source in sources]
        place[op] = max(forward) if forward else min(behind, default=op)
    return place
