"""Moves: a space and rows in, neighbouring rows out, a move of one kind in each row.

All are pure functions of a space, rows (plans × groups) and a random generator; none changes what
it is given. Devices are drawn from those that the group may take. Where there is nothing to move,
such as on one device, rows come back as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.solvers.searches.search_space import Rows, Space

    Move = Callable[[Space, Rows, np.random.Generator], Rows]

Ints = NDArray[np.int64]

_LOOKS = 8  # pairs looked at to find two groups on different devices


def move_one(space: Space, rows: Rows, rng: np.random.Generator) -> Rows:
    """One group goes to another device: that of a neighbour, or any."""
    out = rows.copy()
    if not len(space.free):
        return out
    at = np.arange(len(rows))
    group = space.free[rng.integers(0, len(space.free), size=len(rows))]
    out[at, group] = _another(space, rows, group, rng)
    return out


def swap(space: Space, rows: Rows, rng: np.random.Generator) -> Rows:
    """Two groups on different devices change places, if each may be where the other is."""
    out = rows.copy()
    if not len(space.free):
        return out
    at = np.arange(len(rows))
    one = space.free[rng.integers(0, len(space.free), size=len(rows))]
    others = space.free[rng.integers(0, len(space.free), size=(len(rows), _LOOKS))]
    here, there = rows[at, one], rows[at[:, None], others]
    lawful = (there != here[:, None]) & space.legal[one[:, None], there]
    lawful &= space.legal[others, here[:, None]]
    look, found = lawful.argmax(axis=1), lawful.any(axis=1)
    other, there = others[at, look], there[at, look]
    out[at[found], one[found]] = there[found]
    out[at[found], other[found]] = here[found]
    return out


def move_stretch(space: Space, rows: Rows, rng: np.random.Generator) -> Rows:
    """A stretch of one of the space's orders goes to one device.

    Lengths are spread evenly over the orders of magnitude.
    """
    if not len(space.free):
        return rows.copy()
    place = _places(space, rng, len(rows))
    centre = space.free[rng.integers(0, len(space.free), size=len(rows))]
    length = _lengths(rng, len(rows), len(space))
    begin = place[np.arange(len(rows)), centre] - rng.integers(0, length)
    inside = (place >= begin[:, None]) & (place < (begin + length)[:, None])
    return _lawful(space, rows, inside, _another(space, rows, centre, rng))


def shift_boundary(space: Space, rows: Rows, rng: np.random.Generator) -> Rows:
    """Where a stretch on one device meets one on another, some groups go over to the other side."""
    count = len(space)
    at = np.arange(len(rows))
    choice = rng.integers(0, len(space.orders), size=len(rows))
    order = space.orders[choice]
    along = rows[at[:, None], order]
    meets = along[:, 1:] != along[:, :-1]
    # One boundary in each row, all equally likely: the largest of random keys.
    draws = np.where(meets, rng.random(meets.shape), -1.0)
    if not draws.size:
        return rows.copy()
    left = draws.argmax(axis=1)
    length = _lengths(rng, len(rows), count)
    leftwards = rng.random(len(rows)) < 0.5
    begin = np.where(leftwards, left + 1 - length, left + 1)
    device = np.where(leftwards, along[at, left + 1], along[at, left])
    steps = np.arange(count)
    inside = (steps >= begin[:, None]) & (steps < (begin + length)[:, None])
    inside &= meets.any(axis=1)[:, None]
    of_group = np.empty_like(inside)
    of_group[at[:, None], order] = inside
    return _lawful(space, rows, of_group, device)


def move_set(space: Space, rows: Rows, rng: np.random.Generator) -> Rows:
    """A module, or a coarser group, goes to one device."""
    if not len(space.sets) or not len(space.free):
        return move_stretch(space, rows, rng)
    inside = np.zeros(rows.shape, dtype=bool)
    chosen = rng.integers(0, len(space.sets), size=len(rows))
    centre = np.zeros(len(rows), dtype=np.int64)
    for row, number in enumerate(chosen.tolist()):
        members = space.sets[number]
        inside[row, members] = True
        centre[row] = members[int(rng.integers(0, len(members)))]
    return _lawful(space, rows, inside, _another(space, rows, centre, rng))


def gather(space: Space, rows: Rows, rng: np.random.Generator) -> Rows:
    """A group draws those of its neighbours that are on some other device to its own."""
    out = rows.copy()
    if not len(space.near.values):
        return out
    ends = np.repeat(np.arange(len(space)), space.near.sizes)
    edges = rng.integers(0, len(ends), size=(len(rows), _LOOKS))
    for row, looks in enumerate(edges):
        mine, theirs = rows[row, ends[looks]], rows[row, space.near.values[looks]]
        cut = int((mine != theirs).argmax())  # the first that is, or one that changes nothing
        near = space.near[int(ends[looks[cut]])]
        some = near[(rows[row, near] == theirs[cut]) & space.legal[near, mine[cut]]]
        out[row, some] = mine[cut]
    return out


MOVES: dict[str, Move] = {
    "one": move_one,
    "swap": swap,
    "stretch": move_stretch,
    "boundary": shift_boundary,
    "set": move_set,
    "gather": gather,
}
_ONE = list(MOVES).index("one")


def neighbours(
    space: Space, rows: Rows, rng: np.random.Generator, share: NDArray[np.float64] | None = None
) -> tuple[Rows, Ints]:
    """A move of some kind in each row, and the kind's number in `MOVES`.

    Where a move found nothing to change, one group moves instead: no plan is judged twice.

    Args:
        share: How likely each kind is; equally likely if not given.
    """
    kinds = rng.choice(len(MOVES), size=len(rows), p=share)
    out = rows.copy()
    for number, move in enumerate(MOVES.values()):
        chosen = np.flatnonzero(kinds == number)
        if len(chosen):
            out[chosen] = move(space, rows[chosen], rng)
    same = np.flatnonzero((out == rows).all(axis=1))
    if len(same):
        out[same], kinds[same] = move_one(space, rows[same], rng), _ONE
    return out, kinds


def _another(space: Space, rows: Rows, group: Ints, rng: np.random.Generator) -> Rows:
    """For each row another device of its group: a neighbour's (every other time), or any."""
    at = np.arange(len(rows))
    here = rows[at, group]
    size = space.near.sizes[group]
    pick = space.near.first[group] + (rng.random(len(rows)) * size).astype(np.int64)
    beside = group.copy()
    beside[size > 0] = space.near.values[pick[size > 0]]
    wanted = rows[at, beside]
    other = space.legal[group].copy()
    other[at, here] &= other.sum(axis=1) < 2  # another device, unless there is none
    draws = np.where(other, rng.random(other.shape), -1.0).argmax(axis=1)
    joins = (rng.random(len(rows)) < 0.5) & other[at, wanted]
    chosen: Rows = np.where(joins, wanted, draws).astype(np.int32)
    return chosen


def _places(space: Space, rng: np.random.Generator, count: int) -> Ints:
    """For each row where the groups stand in an order drawn for it."""
    places = np.argsort(space.orders, axis=1)
    return places[rng.integers(0, len(places), size=count)]


def _lengths(rng: np.random.Generator, count: int, groups: int) -> Ints:
    longest = max(2, groups // 2)
    return np.exp(rng.uniform(0.0, np.log(longest + 1), size=count)).astype(np.int64)


def _lawful(space: Space, rows: Rows, inside: NDArray[np.bool_], device: Rows) -> Rows:
    """The marked groups of each row on the row's device, where they may be there."""
    moved = inside & space.legal.T[device]
    return np.where(moved, device[:, None], rows).astype(np.int32)
