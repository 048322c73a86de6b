"""Walks: pairs of a problem and what a policy thinks of each in, episodes side by side out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placewright.scheduling.batched_schedules import Lists

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.scheduling.batched_schedules import Course, Turn

    Logits = Callable[[int, NDArray[np.float32]], NDArray[np.floating]]
    """A group and its pairs (episodes × devices × features) in, episodes × devices out."""
    Merging = Callable[[int, NDArray[np.float32], NDArray[np.int64]], NDArray[np.floating]]
    """A group, its pairs, and the device of what it is bound to (episodes; -1 for none) in;
    episodes out: what it thinks of going there, whatever is known of that device."""

_NEVER = -1e9  # the logit of a device that a group may not be on


class Told(Protocol):
    """What a policy is told of a group on each device."""

    @property
    def course(self) -> Course: ...

    @property
    def width(self) -> int:
        """How many features there are."""
        ...

    def begin(self, lists: Lists) -> None:
        """Say what is there before anything is decided."""
        ...

    def features(self, lists: Lists, turn: Turn) -> NDArray[np.float64]:
        """Episodes × devices × features of the group that is decided at this op."""
        ...


@dataclass(frozen=True, eq=False)
class Walk:
    """Episodes as they were walked.

    Args:
        device: Episodes × decisions: the device of each group, in the order of deciding.
        features: Decisions × episodes × devices × features.
        start: Episodes × ops: when the list schedule starts each op.
        option: As `device`, but one beyond the last device where a group was merged.
        bound: Decisions × episodes: the device a group may merge with, -1 for none.
        end: Episodes: when the list schedule ends.
        over: Episodes: the most bytes that it reckons to lack on a device at once.
    """

    device: NDArray[np.int32]
    features: NDArray[np.float32]
    added: NDArray[np.float32]
    log_prob: NDArray[np.float32]
    start: NDArray[np.float64]
    option: NDArray[np.int32]
    bound: NDArray[np.int64]
    end: NDArray[np.float64]
    over: NDArray[np.float64]


def walk(
    pairs: Told,
    logits_of: Logits,
    luck: NDArray[np.float64] | None = None,
    shake: NDArray[np.float64] | None = None,
    forced: NDArray[np.integer] | None = None,
    keep: bool = False,
    merging: Merging | None = None,
) -> Walk:
    """Give each group a device, in all episodes at once, drawn with `luck` or as `forced`.

    Args:
        luck: Decisions × episodes × devices: Gumbel numbers, zeros for the likeliest device.
        shake: The same, normal numbers, added to the logits as a share of their size.
        forced: Episodes × decisions: options, which are devices unless groups may merge.
        keep: Whether features are kept, for gradients.
        merging: If given, a group may also merge with the one whose tensor takes it longest to
            bring, which is an option beyond the devices: it goes wherever that one went.
    """
    course = pairs.course
    given = forced if luck is None else luck.transpose(1, 0, 2)
    assert given is not None
    count, decisions = given.shape[:2]
    lists = Lists(course, count)
    pairs.begin(lists)
    devices = lists.a.devices
    device = np.zeros((count, decisions), dtype=np.int32)
    option = np.zeros((count, decisions), dtype=np.int32)
    bound = np.full((decisions, count), -1, dtype=np.int64)
    log_prob = np.zeros((count, decisions), dtype=np.float32)
    kept: list[NDArray[np.float32]] = []
    added: list[NDArray[np.float32]] = []

    def decide(at: int, features: NDArray[np.float32], turn: Turn | None) -> NDArray[np.int64]:
        group = int(course.decided[at])
        logits = logits_of(group, features)
        legal = np.broadcast_to(course.legal[group], (count, devices))
        if merging is not None:
            bound[at] = _bound(course, lists, group, turn)
            more = merging(group, features, bound[at])
            logits = np.concatenate([logits, more[:, None]], axis=1)
            legal = np.concatenate([legal, bound[at][:, None] >= 0], axis=1)
        if shake is not None:
            size = np.sqrt(np.square(logits).mean(axis=1, keepdims=True))
            added.append((shake[at] * size).astype(np.float32))
            logits = logits + added[-1]
        logits = np.where(legal, logits, _NEVER)
        if luck is None:
            assert forced is not None
            choice = np.asarray(forced[:, at], dtype=np.int64)
        else:
            choice = (logits + luck[at]).argmax(axis=1)
        sure = logits - logits.max(axis=1, keepdims=True)
        sure -= np.log(np.exp(sure).sum(axis=1, keepdims=True))
        option[:, at], log_prob[:, at] = choice, sure[lists.rows, choice]
        choice = np.where(choice == devices, bound[at], choice)
        device[:, at] = choice
        if keep:
            kept.append(features)
        return choice

    at, over = 0, np.zeros(count)
    for turn in course.turns:
        if turn.group >= 0:
            # In single precision, as features are kept, so that scores agree.
            features = pairs.features(lists, turn).astype(np.float32)
            lists.decide(turn.group, decide(at, features, turn))
            at += 1
        lists.add(turn)
        over = np.maximum(over, (lists.used - lists.a.capacity).max(axis=1))
    nothing = np.zeros((count, lists.a.devices, pairs.width), dtype=np.float32)
    for left in range(at, decisions):  # of groups in which nothing takes a turn
        decide(left, nothing, None)
    return Walk(
        device,
        np.stack(kept) if keep else nothing[None, :0],
        np.stack(added, axis=1) if added else np.zeros(0, dtype=np.float32),
        log_prob,
        lists.start,
        option,
        bound,
        lists.end.max(axis=1),
        over,
    )


def _bound(course: Course, lists: Lists, group: int, turn: Turn | None) -> NDArray[np.int64]:
    """Episodes: the device of what a group may merge with, -1 where it may not be there."""
    op = -1 if turn is None else bound_to(course, turn)
    if op < 0:
        return np.full(lists.count, -1, dtype=np.int64)
    place = lists.device[:, op]
    return np.where(course.legal[group][place], place, -1).astype(np.int64)


def bound_to(course: Course, turn: Turn) -> int:
    """The op whose tensor takes the group longest to bring, of those that take a turn; or -1."""
    if not len(turn.pulled):
        return -1
    turns = course.problem.arrays.turn[turn.pullers]
    seconds = np.where(turns, course.mean_transfer[turn.pulled], -1.0)
    at = int(seconds.argmax())
    return int(turn.pullers[at]) if turns[at] else -1
