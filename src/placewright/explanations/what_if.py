"""What if: a problem and a plan in, what a faster or larger cluster would be worth out.

A plan is judged again under each change, and so are quick new plans for the changed cluster, since
more memory, say, is worth nothing to a plan that was made without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.explanations.cluster_changes import (
    Change,
    Kind,
    faster_channels,
    faster_device,
    more_memory,
    quarter_more_memory,
    shorter_launches,
)
from placewright.explanations.quick_plans import Quick
from placewright.plan import Plan
from placewright.problem import Problem
from placewright.transforms import contract
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.timeline import Timeline

    Seconds = NDArray[np.float64]

Replan = Callable[[Problem], Plan]
"""Makes a plan for a problem whose arrays may be changed; called a dozen times, so be quick."""

_MOST = 3  # devices, and channels, that are asked about
_FULL = 0.85  # of a device's memory: from here on we ask what more would be worth
_MEMORY = 2 * 2**30  # bytes more to ask about, or a quarter of what the device has
_WORTH = 0.005  # share of time that a change must gain to be told


@dataclass(frozen=True)
class Help:
    """What a change would be worth.

    Args:
        change: Such as `2 GiB more on gpu0`.
        kind: `device`, `link`, `memory` or `launch`; `plan` where no change is needed but another
            plan.
        where: The device or channel, if it is one.
        before, after: The objective without and with the change, each with the best plan known.
        over_before, over_after: Bytes over memory likewise.
        same_plan: Whether the plan itself gains this, unchanged.
    """

    change: str
    kind: Kind
    where: str
    before: float
    after: float
    over_before: int
    over_after: int
    same_plan: bool

    @property
    def gain(self) -> float:
        """The share of time that it saves."""
        return 1 - self.after / self.before if self.before > 0 else 0.0

    def __str__(self) -> str:
        again = "" if self.same_plan or self.kind == "plan" else " with another plan"
        if self.over_before and not self.over_after:
            return f"{self.change}: it fits, {format_seconds(self.after)}"
        if self.over_before:
            over = f"{format_bytes(self.over_before)} → {format_bytes(self.over_after)}"
            return f"{self.change}: {over} over memory"
        times = f"{format_seconds(self.before)} → {format_seconds(self.after)}"
        return f"{self.change}: {times} (−{self.gain:.0%}{again})".replace("%", " %")


Key = tuple[int, float]


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A problem and a plan of it, asked what other clusters and plans would be worth.

    Args:
        replan: Makes new plans; without it single devices, contiguous stretches and streamed
            weights are tried.
    """

    problem: Problem
    plan: Plan
    replan: Replan

    @classmethod
    def of(cls, problem: Problem, plan: Plan, replan: Replan | None = None) -> WhatIf:
        return cls(problem, plan, Quick.of(problem, plan) if replan is None else replan)

    def helps(self, timeline: Timeline, devices: Seconds, channels: Seconds) -> tuple[Help, ...]:
        """What would help, the largest gain first; nothing that gains less than half a per cent.

        Args:
            timeline: The plan's own.
            devices, channels: Seconds that count for the objective, of each device and channel.
        """
        own = self._key(self.plan)
        again = self.replan(self.problem)
        replanned = self._key(again)
        known, found = [self.plan], []
        if _clearly(replanned, own):
            # What a change gains must not count what another plan gains without it.
            known.append(again)
            found.append(_help(Change("plan", "another plan", "", _same), own, replanned, False))
        base = min(own, replanned)
        changes = self._larger(timeline)
        if not base[0]:  # where nothing fits, speed is worth nothing
            changes += self._faster(devices, channels)
        for change in changes:
            plans = [*known, self.replan(change.apply(self.problem))]
            keys = [self._key(plan, change) for plan in plans]
            if _clearly(min(keys), base):
                same = base == own and not _clearly(min(keys), keys[0])
                found.append(_help(change, base, min(keys), same))
        found.sort(key=lambda help_: (help_.over_after, -help_.gain))
        return tuple(found)

    def _larger(self, timeline: Timeline) -> list[Change]:
        """More memory on devices that are nearly full, or that weights are streamed to."""
        a = self.problem.arrays
        staged = np.full(a.devices, -1) if self.plan.staging is None else self.plan.staging
        full = (timeline.peak > _FULL * a.capacity) | (staged >= 0)
        fullest = np.argsort(-timeline.peak / np.maximum(a.capacity, 1), kind="stable")
        devices = [at for at in fullest.tolist() if full[at]]
        changes = []
        if len(devices) > 1:
            changes.append(quarter_more_memory(self.problem, sorted(devices)))
        for at in devices[:_MOST]:
            quarter = int(a.capacity[at]) // 4
            over = int(timeline.peak[at] - a.capacity[at])
            for extra in sorted({min(_MEMORY, quarter), quarter, over}):
                changes += [more_memory(self.problem, at, extra)] if extra > 0 else []
        return changes

    def _faster(self, devices: Seconds, channels: Seconds) -> list[Change]:
        problem = self.problem
        changes = [faster_device(problem, at) for at in _largest(devices)]
        busy = _largest(channels)
        changes += [faster_channels(problem, [at]) for at in busy]
        if len(busy) > 1:
            changes.append(faster_channels(problem, range(problem.arrays.channels)))
        if any(device.launch > 0 for device in problem.cluster.devices):
            changes.append(shorter_launches(problem))
        return changes

    def _key(self, plan: Plan, change: Change | None = None) -> Key:
        """Bytes over and objective of a plan; fused ops are contracted before anything changes."""
        problem = self.problem
        if plan.fusion is not None:
            fused = contract(problem, plan)
            problem, plan = fused.problem, fused.plan
        if change is not None:
            problem = change.apply(problem)
        priority = None if plan.priority is None else plan.priority[None]
        staging = None if plan.staging is None else plan.staging[None]
        verdict = simulator.judge(problem, plan.device[None], priority, staging)
        return int(verdict.overflow[0]), float(verdict.value[0])


def _largest(seconds: Seconds) -> list[int]:
    """The few places where most time goes, none where no time goes."""
    order = np.argsort(-seconds, kind="stable")[:_MOST]
    return [int(at) for at in order if seconds[at] > 0]


def _help(change: Change, before: Key, after: Key, same: bool) -> Help:
    return Help(
        change=change.words,
        kind=change.kind,
        where=change.where,
        before=before[1],
        after=after[1],
        over_before=before[0],
        over_after=after[0],
        same_plan=same,
    )


def _clearly(better: Key, than: Key) -> bool:
    """Whether it is better by enough to be worth a word; speed is none where nothing fits."""
    if better[0] or than[0]:
        return better[0] < than[0]
    return better[1] < than[1] * (1 - _WORTH)


def _same(problem: Problem) -> Problem:
    return problem
