"""Walks: pairs of a problem and what a policy thinks of each in, episodes side by side out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placewright.policies.estimates import Lists

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.policies.estimates import Course, Turn

    Logits = Callable[[int, NDArray[np.float32]], NDArray[np.floating]]
    """A group and its pairs (episodes × devices × features) in, episodes × devices out."""

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
    """

    device: NDArray[np.int32]
    features: NDArray[np.float32]
    added: NDArray[np.float32]
    log_prob: NDArray[np.float32]
    start: NDArray[np.float64]


def walk(
    pairs: Told,
    logits_of: Logits,
    luck: NDArray[np.float64] | None = None,
    shake: NDArray[np.float64] | None = None,
    forced: NDArray[np.integer] | None = None,
    keep: bool = False,
) -> Walk:
    """Give each group a device, in all episodes at once, drawn with `luck` or as `forced`.

    Args:
        luck: Decisions × episodes × devices: Gumbel numbers, zeros for the likeliest device.
        shake: The same, normal numbers, added to the logits as a share of their size.
        forced: Episodes × decisions: devices.
        keep: Whether features are kept, for gradients.
    """
    course = pairs.course
    given = forced if luck is None else luck.transpose(1, 0, 2)
    assert given is not None
    count, decisions = given.shape[:2]
    lists = Lists(course, count)
    pairs.begin(lists)
    device = np.zeros((count, decisions), dtype=np.int32)
    log_prob = np.zeros((count, decisions), dtype=np.float32)
    kept: list[NDArray[np.float32]] = []
    added: list[NDArray[np.float32]] = []

    def decide(at: int, features: NDArray[np.float32]) -> NDArray[np.int64]:
        group = int(course.decided[at])
        logits = logits_of(group, features)
        if shake is not None:
            size = np.sqrt(np.square(logits).mean(axis=1, keepdims=True))
            added.append((shake[at] * size).astype(np.float32))
            logits = logits + added[-1]
        logits = np.where(course.legal[group], logits, _NEVER)
        if luck is None:
            assert forced is not None
            choice = np.asarray(forced[:, at], dtype=np.int64)
        else:
            choice = (logits + luck[at]).argmax(axis=1)
        sure = logits - logits.max(axis=1, keepdims=True)
        sure -= np.log(np.exp(sure).sum(axis=1, keepdims=True))
        device[:, at], log_prob[:, at] = choice, sure[lists.rows, choice]
        if keep:
            kept.append(features)
        return choice

    at = 0
    for turn in course.turns:
        if turn.group >= 0:
            # In single precision, as features are kept, so that scores agree.
            features = pairs.features(lists, turn).astype(np.float32)
            lists.decide(turn.group, decide(at, features))
            at += 1
        lists.add(turn)
    nothing = np.zeros((count, lists.a.devices, pairs.width), dtype=np.float32)
    for left in range(at, decisions):  # of groups in which nothing takes a turn
        decide(left, nothing)
    return Walk(
        device,
        np.stack(kept) if keep else nothing[None, :0],
        np.stack(added, axis=1) if added else np.zeros(0, dtype=np.float32),
        log_prob,
        lists.start,
    )
