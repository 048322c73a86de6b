"""What if: what a faster or larger cluster, or another plan, would be worth.

A plan is evaluated again under each change, and so are quick new plans for the changed cluster:
more memory is worth nothing to a plan that was made without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.explanations.cluster_upgrades import (
    ChangeKind,
    ClusterChange,
    faster_channels,
    faster_device,
    more_memory,
    quarter_more_memory,
    shorter_launches,
)
from placewright.explanations.host_memory import HOST_PRESET, add_host
from placewright.explanations.quick_plans import QuickPlans
from placewright.plan import Plan
from placewright.problem import Problem
from placewright.solvers.pessimistic_costs import PessimisticCosts
from placewright.transforms import contract
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.timeline import Timeline

    Seconds = NDArray[np.float64]

Replan = Callable[[Problem], Plan]
"""Makes a plan for a problem whose arrays may be changed. It is called a dozen times."""

_MAX_CHANGES = 3  # devices, and channels, to look at
_NEARLY_FULL = 0.85  # of a device's memory, from which on more memory is tried
_EXTRA_MEMORY = 2 * 2**30  # bytes more to try, or about a quarter of what the device has
_GIB = 2**30
_MIN_GAIN = 0.005  # share of time that a change must gain to be shown


@dataclass(frozen=True)
class Improvement:
    """What a change would be worth.

    Args:
        change: Such as `2 GiB more on gpu0`.
        kind: `host`, `device`, `link`, `memory` or `launch`; `plan` where no change is needed but
            another plan.
        location: The device or channel, if it is one.
        before, after: The objective without and with the change, each with the best plan known.
        overflow_before, overflow_after: Bytes over the memory likewise.
        same_plan: Whether the plan itself gains this, unchanged.
        plan: The other plan, where that is all it takes.
    """

    change: str
    kind: ChangeKind
    location: str
    before: float
    after: float
    overflow_before: int
    overflow_after: int
    same_plan: bool
    plan: Plan | None = field(default=None, repr=False, compare=False)

    @property
    def gain(self) -> float:
        """The share of time that it saves."""
        return 1 - self.after / self.before if self.before > 0 else 0.0

    def __str__(self) -> str:
        suffix = "" if self.same_plan or self.kind == "plan" else " with another plan"
        if self.overflow_before and not self.overflow_after:
            return f"{self.change}: it fits, {format_seconds(self.after)}"
        if self.overflow_before:
            overflow = f"{format_bytes(self.overflow_before)} → {format_bytes(self.overflow_after)}"
            return f"{self.change}: {overflow} over memory"
        times = f"{format_seconds(self.before)} → {format_seconds(self.after)}"
        return f"{self.change}: {times} (−{self.gain:.0%}{suffix})".replace("%", " %")


PlanKey = tuple[int, float]


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What other clusters and plans would be worth to a plan.

    Args:
        replan: Makes new plans; without it single devices, contiguous segments and streamed
            weights are tried.
    """

    problem: Problem
    plan: Plan
    replan: Replan

    @classmethod
    def of(cls, problem: Problem, plan: Plan, replan: Replan | None = None) -> WhatIf:
        return cls(problem, plan, QuickPlans.of(problem, plan) if replan is None else replan)

    def improvements(
        self, timeline: Timeline, devices: Seconds, channels: Seconds
    ) -> tuple[Improvement, ...]:
        """What would help, the largest gain first; nothing that gains less than half a per cent.

        Args:
            timeline: The plan's own.
            devices, channels: Seconds that count for the objective, of each device and channel.
        """
        current_key = self._key(self.plan)
        new_plan = self._credible(self.replan(self.problem))
        new_key = self._key(new_plan)
        known_plans, improvements = [self.plan], []
        if _is_better(new_key, current_key):
            # What a change gains must not count what another plan gains without it.
            known_plans.append(new_plan)
            change = ClusterChange("plan", "another plan", "", _unchanged)
            found = _improvement(change, current_key, new_key, False)
            improvements.append(replace(found, plan=new_plan))
        base = min(current_key, new_key)
        changes = self._memory_changes(timeline)
        if not base[0]:  # where nothing fits, speed is worth nothing
            changes += self._speed_changes(devices, channels)
        for change in changes:
            plans = [*known_plans, self._credible(self.replan(change.apply(self.problem)))]
            keys = [self._key(plan, change) for plan in plans]
            if _is_better(min(keys), base):
                same_plan = base == current_key and not _is_better(min(keys), keys[0])
                improvements.append(_improvement(change, base, min(keys), same_plan))
        improvements.sort(key=lambda improvement: (improvement.overflow_after, -improvement.gain))
        return (*self._added_host(base), *improvements)

    def _added_host(self, base: PlanKey) -> list[Improvement]:
        """Where nothing fits and there is no host: weights that one holds, and streams."""
        added = add_host(self.problem) if base[0] else None
        if added is None:
            return []
        result = added.result
        description = f"adding a host of {format_bytes(added.memory)} ({added.cluster})"
        change = ClusterChange("host", description, HOST_PRESET, _unchanged)
        return [_improvement(change, base, (0, result.objective_value), False)]

    def _credible(self, plan: Plan) -> Plan:
        """A new plan, or the present one if only that survives pessimistic costs."""
        costs = self._pessimistic_costs
        is_credible = costs is None or costs.survives(plan) or not costs.survives(self.plan)
        return plan if is_credible else self.plan

    @cached_property
    def _pessimistic_costs(self) -> PessimisticCosts | None:
        return PessimisticCosts.of(self.problem)

    def _memory_changes(self, timeline: Timeline) -> list[ClusterChange]:
        """More memory on devices that are nearly full, or that weights are streamed to."""
        a = self.problem.arrays
        staging = np.full(a.devices, -1) if self.plan.staging is None else self.plan.staging
        is_full = (timeline.peak > _NEARLY_FULL * a.capacity) | (staging >= 0)
        fullest = np.argsort(-timeline.peak / np.maximum(a.capacity, 1), kind="stable")
        devices = [device for device in fullest.tolist() if is_full[device]]
        changes = []
        if len(devices) > 1:
            changes.append(quarter_more_memory(self.problem, sorted(devices)))
        for device in devices[:_MAX_CHANGES]:
            quarter = _round_size(int(a.capacity[device]) // 4)
            overflow = _enough(int(timeline.peak[device] - a.capacity[device]))
            for extra_bytes in sorted({min(_EXTRA_MEMORY, quarter), quarter, overflow}):
                changes += (
                    [more_memory(self.problem, device, extra_bytes)] if extra_bytes > 0 else []
                )
        return changes

    def _speed_changes(self, devices: Seconds, channels: Seconds) -> list[ClusterChange]:
        problem = self.problem
        changes = [faster_device(problem, index) for index in _busiest(devices)]
        busiest_channels = _busiest(channels)
        changes += [faster_channels(problem, [index]) for index in busiest_channels]
        if len(busiest_channels) > 1:
            changes.append(faster_channels(problem, range(problem.arrays.channels)))
        if any(device.launch_overhead > 0 for device in problem.cluster.devices):
            changes.append(shorter_launches(problem))
        return changes

    def _key(self, plan: Plan, change: ClusterChange | None = None) -> PlanKey:
        """Bytes over and objective of a plan; fused ops are contracted before anything changes."""
        problem = self.problem
        if plan.fusion is not None:
            contracted = contract(problem, plan)
            problem, plan = contracted.problem, contracted.plan
        if change is not None:
            problem = change.apply(problem)
        verdict = simulator.judge(problem, plan.placement, plan.priority, plan.staging)
        return int(verdict.overflow[0]), float(verdict.value[0])


def _round_size(size: int) -> int:
    """A size that memory is sold in: the next power of two."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def _enough(size: int) -> int:
    """A round size that is not less: whole GiB, or a power of two below that."""
    return -(-size // _GIB) * _GIB if size > _GIB else _round_size(size)


def _busiest(seconds: Seconds) -> list[int]:
    """The few devices or channels with the most time, without idle ones."""
    order = np.argsort(-seconds, kind="stable")[:_MAX_CHANGES]
    return [int(index) for index in order if seconds[index] > 0]


def _improvement(
    change: ClusterChange, before: PlanKey, after: PlanKey, same_plan: bool
) -> Improvement:
    return Improvement(
        change=change.description,
        kind=change.kind,
        location=change.location,
        before=before[1],
        after=after[1],
        overflow_before=before[0],
        overflow_after=after[0],
        same_plan=same_plan,
    )


def _is_better(candidate: PlanKey, reference: PlanKey) -> bool:
    """Whether it is better by enough to be shown; speed does not count where nothing fits."""
    if candidate[0] or reference[0]:
        return candidate[0] < reference[0]
    return candidate[1] < reference[1] * (1 - _MIN_GAIN)


def _unchanged(problem: Problem) -> Problem:
    return problem
