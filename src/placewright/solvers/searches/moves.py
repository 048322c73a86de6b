"""Moves: random neighbours of placements, one move of one kind in each row.

All are functions of a space, rows (plans × groups) and a random generator; none changes its
arguments. Devices are sampled from those that the group may be on. Where there is nothing to move,
e.g. on one device, rows are returned unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.solvers.searches.search_space import Rows, SearchSpace

    GroupMove = Callable[[SearchSpace, Rows, np.random.Generator], Rows]

Ints = NDArray[np.int64]

_TRIES = 8  # pairs tried to find two groups on different devices


def move_group(space: SearchSpace, rows: Rows, rng: np.random.Generator) -> Rows:
    """One group moves to another device: that of a neighbour, or any."""
    out = rows.copy()
    if not len(space.movable):
        return out
    at = np.arange(len(rows))
    group = space.movable[rng.integers(0, len(space.movable), size=len(rows))]
    out[at, group] = _other_devices(space, rows, group, rng)
    return out


def swap_groups(space: SearchSpace, rows: Rows, rng: np.random.Generator) -> Rows:
    """Two groups exchange devices, if each may be where the other is."""
    out = rows.copy()
    if not len(space.movable):
        return out
    at = np.arange(len(rows))
    group = space.movable[rng.integers(0, len(space.movable), size=len(rows))]
    others = space.movable[rng.integers(0, len(space.movable), size=(len(rows), _TRIES))]
    device, target = rows[at, group], rows[at[:, None], others]
    allowed = (target != device[:, None]) & space.legal[group[:, None], target]
    allowed &= space.legal[others, device[:, None]]
    choice, possible = allowed.argmax(axis=1), allowed.any(axis=1)
    other, target = others[at, choice], target[at, choice]
    out[at[possible], group[possible]] = target[possible]
    out[at[possible], other[possible]] = device[possible]
    return out


def move_run(space: SearchSpace, rows: Rows, rng: np.random.Generator) -> Rows:
    """A run of one of the space's orders moves to one device.

    The logarithm of its length is uniform.
    """
    if not len(space.movable):
        return rows.copy()
    position = _random_positions(space, rng, len(rows))
    group = space.movable[rng.integers(0, len(space.movable), size=len(rows))]
    length = _random_lengths(rng, len(rows), len(space))
    begin = position[np.arange(len(rows)), group] - rng.integers(0, length)
    inside = (position >= begin[:, None]) & (position < (begin + length)[:, None])
    return _move_where_allowed(space, rows, inside, _other_devices(space, rows, group, rng))


def shift_boundary(space: SearchSpace, rows: Rows, rng: np.random.Generator) -> Rows:
    """Where runs on two devices meet, some groups move to the other side."""
    count = len(space)
    at = np.arange(len(rows))
    picks = rng.integers(0, len(space.orders), size=len(rows))
    order = space.orders[picks]
    devices = rows[at[:, None], order]
    is_boundary = devices[:, 1:] != devices[:, :-1]
    # One boundary in each row, all equally likely: the largest of random keys.
    draws = np.where(is_boundary, rng.random(is_boundary.shape), -1.0)
    if not draws.size:
        return rows.copy()
    boundary = draws.argmax(axis=1)
    length = _random_lengths(rng, len(rows), count)
    to_left = rng.random(len(rows)) < 0.5
    begin = np.where(to_left, boundary + 1 - length, boundary + 1)
    device = np.where(to_left, devices[at, boundary + 1], devices[at, boundary])
    positions = np.arange(count)
    inside = (positions >= begin[:, None]) & (positions < (begin + length)[:, None])
    inside &= is_boundary.any(axis=1)[:, None]
    of_group = np.empty_like(inside)
    of_group[at[:, None], order] = inside
    return _move_where_allowed(space, rows, of_group, device)


def move_group_set(space: SearchSpace, rows: Rows, rng: np.random.Generator) -> Rows:
    """A module, or a coarser group, moves to one device."""
    if not len(space.group_sets) or not len(space.movable):
        return move_run(space, rows, rng)
    inside = np.zeros(rows.shape, dtype=bool)
    chosen = rng.integers(0, len(space.group_sets), size=len(rows))
    group = np.zeros(len(rows), dtype=np.int64)
    for row, number in enumerate(chosen.tolist()):
        members = space.group_sets[number]
        inside[row, members] = True
        group[row] = members[int(rng.integers(0, len(members)))]
    return _move_where_allowed(space, rows, inside, _other_devices(space, rows, group, rng))


def gather_neighbours(space: SearchSpace, rows: Rows, rng: np.random.Generator) -> Rows:
    """The neighbours of a group that are on one other device move to its device."""
    out = rows.copy()
    if not len(space.adjacency.values):
        return out
    ends = np.repeat(np.arange(len(space)), space.adjacency.sizes)
    edges = rng.integers(0, len(ends), size=(len(rows), _TRIES))
    for row, tries in enumerate(edges):
        mine, theirs = rows[row, ends[tries]], rows[row, space.adjacency.values[tries]]
        cut = int((mine != theirs).argmax())  # the first of these, or one that changes nothing
        adjacent = space.adjacency[int(ends[tries[cut]])]
        joining = adjacent[(rows[row, adjacent] == theirs[cut]) & space.legal[adjacent, mine[cut]]]
        out[row, joining] = mine[cut]
    return out


MOVES: dict[str, GroupMove] = {
    "one": move_group,
    "swap": swap_groups,
    "stretch": move_run,
    "boundary": shift_boundary,
    "set": move_group_set,
    "gather": gather_neighbours,
}
_MOVE_GROUP = list(MOVES).index("one")


def neighbours(
    space: SearchSpace,
    rows: Rows,
    rng: np.random.Generator,
    probabilities: NDArray[np.float64] | None = None,
) -> tuple[Rows, Ints]:
    """A move of some kind in each row, and the kind's number in `MOVES`.

    Where a move found nothing to change, one group moves instead: no plan is evaluated twice.

    Args:
        probabilities: Of each kind; by default uniform.
    """
    kinds = rng.choice(len(MOVES), size=len(rows), p=probabilities)
    out = rows.copy()
    for number, move in enumerate(MOVES.values()):
        chosen = np.flatnonzero(kinds == number)
        if len(chosen):
            out[chosen] = move(space, rows[chosen], rng)
    unchanged = np.flatnonzero((out == rows).all(axis=1))
    if len(unchanged):
        out[unchanged], kinds[unchanged] = move_group(space, rows[unchanged], rng), _MOVE_GROUP
    return out, kinds


def _other_devices(space: SearchSpace, rows: Rows, group: Ints, rng: np.random.Generator) -> Rows:
    """For each row another device of its group: a neighbour's (every other time), or any."""
    at = np.arange(len(rows))
    current = rows[at, group]
    size = space.adjacency.sizes[group]
    pick = space.adjacency.offsets[group] + (rng.random(len(rows)) * size).astype(np.int64)
    neighbour = group.copy()
    neighbour[size > 0] = space.adjacency.values[pick[size > 0]]
    neighbour_device = rows[at, neighbour]
    allowed = space.legal[group].copy()
    allowed[at, current] &= allowed.sum(axis=1) < 2  # another device, unless there is none
    draws = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
    use_neighbour = (rng.random(len(rows)) < 0.5) & allowed[at, neighbour_device]
    chosen: Rows = np.where(use_neighbour, neighbour_device, draws).astype(np.int32)
    return chosen


def _random_positions(space: SearchSpace, rng: np.random.Generator, count: int) -> Ints:
    """For each row the positions of the groups in a randomly chosen order."""
    positions = np.argsort(space.orders, axis=1)
    return positions[rng.integers(0, len(positions), size=count)]


def _random_lengths(rng: np.random.Generator, count: int, groups: int) -> Ints:
    longest = max(2, groups // 2)
    return np.exp(rng.uniform(0.0, np.log(longest + 1), size=count)).astype(np.int64)


def _move_where_allowed(
    space: SearchSpace, rows: Rows, inside: NDArray[np.bool_], device: Rows
) -> Rows:
    """The marked groups of each row on the row's device, where they may be there."""
    allowed = inside & space.legal.T[device]
    return np.where(allowed, device[:, None], rows).astype(np.int32)
