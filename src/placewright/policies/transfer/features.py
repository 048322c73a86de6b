"""Pairs: a list schedule under construction in, what is known of a group on each device out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.scheduling.batched_schedules import (
        Course,
        Lists,
        Turn,
    )

_FAR = 4.0  # how many times its own length a delay may count
_NO_TIME = 1e-3  # what counts as none, in terms of what others take

FEATURES = (
    "end",  # how much later it ends there than where it ends first
    "end, own scale",  # the same, in terms of its own length
    "start, own scale",  # how much later it starts than where it starts first
    "end, critical",  # as `end`, times how long the way to the end of the graph is
    "bring",  # seconds on links for what it reads and is not there
    "bring, own scale",
    "with",  # transfers that its readers save, as a share of all that may be saved
    "load",  # the device's work after it, against an equal share of what there is in all
    "slow",  # how much longer it takes there than on its fastest device, in terms of that
    "unused",  # nothing is there yet
    "full",  # memory in use after it, beyond half
    "over",  # memory that is lacking
)
"""What is known of a pair; seconds are in terms of a mean group's unless they are in its own."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """A problem's groups on its devices.

    Args:
        seconds: Groups × devices: all work of a group.
        fastest: Groups: the same on its fastest device.
        own: Groups: its length and what it takes to bring its inputs: the scale of its delays.
        mean: The mean of those: the scale of all delays.
        bytes: Groups: resident bytes, and outputs and workspace of its largest op.
        share: Devices: an equal share of all work.
        critical: Groups: its first op's rank, as a share of the largest.
    """

    course: Course
    seconds: NDArray[np.float64]
    fastest: NDArray[np.float64]
    own: NDArray[np.float64]
    mean: float
    bytes: NDArray[np.float64]
    share: NDArray[np.float64]
    critical: NDArray[np.float64]

    @classmethod
    def of(cls, course: Course) -> Pairs:
        a, group = course.problem.arrays, course.grouping.group
        count = len(course.grouping)
        # Where an op may not be, its work is done where the problem settles it.
        compute = np.where(a.turn[:, None], a.compute, 0.0)
        compute = np.take_along_axis(compute, course.table.astype(np.int64), axis=1)
        columns = [np.bincount(group, column, count).astype(float) for column in compute.T]
        seconds = np.stack(columns, axis=1)
        fastest = np.where(course.legal, seconds, np.inf).min(axis=1)
        pulled = np.zeros(count)
        critical = np.zeros(count)
        for turn in course.turns:
            if turn.group >= 0:
                pulled[turn.group] = course.mean_transfer[turn.pulled].sum()
                critical[turn.group] = course.rank[turn.op]
        own = fastest + pulled
        # Where all work takes no time on some device, that of the others gives the scale.
        mean = max(float(own.mean()) or _NO_TIME * float(seconds.mean()), 1e-30)
        own = np.maximum(own, 1e-3 * mean)
        output = np.bincount(a.producer, course.held, minlength=a.ops)
        most = np.zeros(count)
        np.maximum.at(most, group[a.turn], (output + a.workspace)[a.turn])
        resident = np.bincount(group, a.resident, count)
        # Devices share the work as they would if each took the same seconds for it.
        whole = seconds.sum(axis=0)
        speed = 1 / np.maximum(np.where(whole > 0, whole, _NO_TIME * whole.mean()), 1e-30)
        share = np.full(a.devices, 1 / speed.sum())
        top = max(float(critical.max(initial=0.0)), 1e-30)
        return cls(course, seconds, fastest, own, mean, resident + most, share, critical / top)

    @property
    def width(self) -> int:
        """How many features there are."""
        return len(FEATURES)

    def begin(self, lists: Lists) -> None:
        """Nothing is there before anything is decided."""

    def features(self, lists: Lists, turn: Turn) -> NDArray[np.float64]:
        """Episodes × devices × features of the group that is decided at this op."""
        a, group = lists.a, turn.group
        legal = self.course.legal[group]
        ready, bring, size = lists.reach(turn.inputs, turn.sources)
        if len(turn.pulled) > len(turn.inputs):
            _, bring, size = lists.reach(turn.pulled, turn.pullers)
        own, mean = self.own[group], self.mean
        start = np.maximum(ready, lists.free)
        end = start + self.seconds[group]
        late = end - np.where(legal, end, np.inf).min(axis=1, keepdims=True)
        wait = start - np.where(legal, start, np.inf).min(axis=1, keepdims=True)
        bring = bring - np.where(legal, bring, np.inf).min(axis=1, keepdims=True)
        with_ = np.zeros_like(end)
        if len(turn.near):
            place = lists.device[:, turn.near]
            here = place[:, :, None] == np.arange(a.devices)
            with_ = (turn.weight[:, None] * here).sum(axis=1) / own
        load = (lists.busy + self.seconds[group]) / self.share
        after = (lists.used + size + self.bytes[group]) / np.maximum(a.capacity, 1)
        slow = self.seconds[group] / max(self.fastest[group], 1e-3 * mean)
        columns = (
            late / mean,
            np.minimum(late / own, _FAR),
            np.minimum(wait / own, _FAR),
            late / mean * self.critical[group],
            bring / mean,
            np.minimum(bring / own, _FAR),
            np.minimum(with_, _FAR),
            load,
            np.broadcast_to(np.log(np.maximum(slow, 1e-3)), end.shape),
            (lists.busy == 0).astype(float),
            np.clip(after - 0.5, 0.0, 0.5),
            np.minimum(np.maximum(after - 1.0, 0.0) * 10 + (after > 1.0), _FAR),
        )
        features: NDArray[np.float64] = np.stack(columns, axis=2)
        return features
