"""Around a group: pairs of a problem in, what its graph says of each group and device out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placewright.policies import groups as made
from placewright.policies.reach import ancestors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.policies.estimates import Course, Lists, Turn
    from placewright.policies.pairs import Pairs
    from placewright.problem import Problem

MORE = 6
"""Features beside the estimates: three shares of the work around, speed, and two about the end."""


@dataclass(frozen=True, eq=False)
class Around:
    """A problem's pairs, with the graph around each group.

    Args:
        attributes: Groups × plain: what the graph network is told of each.
        near: 2 × groups × groups: means over what a group reads from, and over its readers.
        means: 3 × groups × groups: means over ancestors, descendants and the rest, by work.
    """

    plain: ClassVar[int] = 8

    pairs: Pairs
    attributes: NDArray[np.float32]
    near: NDArray[np.float32]
    means: NDArray[np.float32]
    speed: NDArray[np.float64]  # devices: log of all work there against the fastest device
    left: NDArray[np.float64]  # decisions by group: the share of all work still to be decided
    _last: dict[bytes, NDArray[np.float32]] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, pairs: Pairs) -> Around:
        course = pairs.course
        grouping = course.grouping
        groups = len(grouping)
        source, target = made.edges(problem, grouping)
        near = np.zeros((2, groups, groups), dtype=np.float32)
        near[0, target, source] = near[1, source, target] = 1.0
        degree = near.sum(axis=2)
        before = ancestors(groups, source, target)
        after = before.T & ~before
        rest = ~(before | after | np.eye(groups, dtype=bool))
        work = pairs.fastest + 1e-3 * pairs.mean
        around = np.stack([before, after, rest]) * work
        shares = around.sum(axis=2)  # how much work there is before, after and beside
        sent = made.sent_bytes(problem, grouping)
        total = work.sum()
        attributes = np.stack(
            [
                np.log1p(work / pairs.mean),
                np.log1p(sent / max(sent.mean(), 1e-30)),
                np.log1p(pairs.bytes / max(pairs.bytes.mean(), 1e-30)),
                pairs.critical,
                np.log1p(degree[0]),
                np.log1p(degree[1]),
                shares[0] / total,
                shares[2] / total,
            ],
            axis=1,
        )
        every = pairs.seconds.sum(axis=0)
        left = np.zeros(groups)
        left[course.decided] = 1 - np.cumsum(work[course.decided]) / total
        return cls(
            pairs,
            attributes.astype(np.float32),
            near / np.maximum(degree, 1.0)[:, :, None],
            (around / np.maximum(shares, 1e-30)[:, :, None]).astype(np.float32),
            np.log(np.maximum(every, 1e-30) / max(float(every.min()), 1e-30)),
            left,
        )

    @property
    def course(self) -> Course:
        return self.pairs.course

    @property
    def width(self) -> int:
        return self.pairs.width + MORE

    def features(self, lists: Lists, turn: Turn) -> NDArray[np.float64]:
        """Episodes × devices × features: the estimates, and what is around on each device."""
        estimates = self.pairs.features(lists, turn)
        group, devices = turn.group, lists.a.devices
        more = np.empty((*estimates.shape[:2], MORE))
        more[..., :3] = lists.here @ self.means[:, group].T
        more[..., 3] = self.speed
        more[..., 4] = self.left[group]
        more[..., 5] = np.log(devices)
        return np.concatenate([estimates, more], axis=2)

    def remembered(self, device: NDArray[np.integer]) -> NDArray[np.float32] | None:
        """The features of these episodes (episodes × decisions), if they were walked just now."""
        return self._last.get(device.tobytes())

    def remember(
        self, device: NDArray[np.integer], features: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Keep the features of these episodes alone; they do not depend on any weight."""
        self._last.clear()
        self._last[device.tobytes()] = features
        return features
