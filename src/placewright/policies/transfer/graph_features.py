"""Around a group: pairs of a problem in, what its graph says of each group and device out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.policies import grouping as made
from placewright.policies.transfer.diffusion import (
    SENSES,
    kernels,
    through,
)
from placewright.scheduling.reachability import ancestors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.policies.transfer.features import Pairs
    from placewright.problem import Problem
    from placewright.scheduling.batched_schedules import (
        Course,
        Lists,
        Turn,
    )


@dataclass(frozen=True)
class Sight:
    """What is to be seen of the graph, beside the estimates.

    Args:
        senses: Whether the shares of a group's neighbours (`kernels.SENSES`) on each device are.
        draft: Whether a whole placement is, which groups keep until they are decided, as in
            Placeto: where readers will probably be, and how much each device will have to do.
        blind: Whether nothing of the graph is seen, to find out what it is worth.
    """

    senses: bool = False
    draft: bool = False
    blind: bool = False

    @property
    def plain(self) -> int:
        """How many attributes a group has."""
        return 8 + 2 * self.senses + self.draft

    @property
    def more(self) -> int:
        """How many features a pair has: shares of the work around, speed, the end, and so on."""
        return 6 + len(SENSES) * self.senses + 2 * self.draft


@dataclass(frozen=True, eq=False)
class Draft:
    """A whole placement: devices × groups, 1 where a group is; and when each group starts."""

    here: NDArray[np.float32]
    start: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Around:
    """A problem's pairs, with the graph around each group.

    Args:
        attributes: Groups × plain: what the graph network is told of each.
        near: 2 × groups × groups: means over what a group reads from, and over its readers.
        shares: Groups × groups × senses: shares of work in ancestors, descendants and the rest,
            and all kernels.
    """

    pairs: Pairs
    sight: Sight
    attributes: NDArray[np.float32]
    near: NDArray[np.float32]
    shares: NDArray[np.float32]
    speed: NDArray[np.float64]  # devices: log of all work there against the fastest device
    left: NDArray[np.float64]  # decisions by group: the share of all work still to be decided
    draft: Draft | None

    @classmethod
    def of(
        cls, problem: Problem, pairs: Pairs, sight: Sight | None = None, draft: Draft | None = None
    ) -> Around:
        course = pairs.course
        sight = sight or Sight()
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
        columns = [
            np.log1p(work / pairs.mean),
            np.log1p(sent / max(sent.mean(), 1e-30)),
            np.log1p(pairs.bytes / max(pairs.bytes.mean(), 1e-30)),
            pairs.critical,
            np.log1p(degree[0]),
            np.log1p(degree[1]),
            shares[0] / total,
            shares[2] / total,
        ]
        means = (around / np.maximum(shares, 1e-30)[:, :, None]).astype(np.float32)
        every = means
        if sight.senses:
            columns += through(course)
            every = np.concatenate([means, kernels(course)])
        if draft is not None:
            columns.append(draft.start / max(float(draft.start.max()), 1e-30))
        seconds = pairs.seconds.sum(axis=0)
        left = np.zeros(groups)
        left[course.decided] = 1 - np.cumsum(work[course.decided]) / total
        return cls(
            pairs,
            sight,
            (np.stack(columns, axis=1) * (not sight.blind)).astype(np.float32),
            near / np.maximum(degree, 1.0)[:, :, None],
            np.ascontiguousarray(every.transpose(1, 2, 0)),
            np.log(np.maximum(seconds, 1e-30) / max(float(seconds.min()), 1e-30)),
            left,
            draft,
        )

    @property
    def course(self) -> Course:
        return self.pairs.course

    @property
    def width(self) -> int:
        return self.pairs.width + self.sight.more

    @property
    def means(self) -> NDArray[np.float32]:
        """3 × groups × groups: means over ancestors, descendants and the rest, by work."""
        return self.shares[..., :3].transpose(2, 0, 1)

    def begin(self, lists: Lists) -> None:
        """Let a draft stand where nothing is decided yet."""
        if self.draft is not None:
            lists.here[:] = self.draft.here

    def features(self, lists: Lists, turn: Turn) -> NDArray[np.float64]:
        """Episodes × devices × features: the estimates, and what is around on each device."""
        estimates = self.pairs.features(lists, turn)
        group, devices = turn.group, lists.a.devices
        more = np.empty((*estimates.shape[:2], self.sight.more))
        senses = self.shares.shape[2]
        more[..., :senses] = 0.0 if self.sight.blind else lists.here @ self.shares[group]
        more[..., senses] = self.speed
        more[..., senses + 1] = self.left[group]
        more[..., senses + 2] = np.log(devices)
        if self.draft is not None:
            stands = lists.here[:, :, group]
            # What a device will have done in the end if this group goes there.
            load = np.einsum("edg,gd->ed", lists.here, self.pairs.seconds)
            load = load + (1 - stands) * self.pairs.seconds[group]
            more[..., senses + 3] = stands
            more[..., senses + 4] = np.minimum(load / self.pairs.share - 1.0, 4.0)
        return np.concatenate([estimates, more], axis=2)
