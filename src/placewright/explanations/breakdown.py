"""Breakdown: what a plan's time goes into, for explaining it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright import simulator
from placewright.explanations.cluster_upgrades import channel_name
from placewright.solvers.bounds import Bound, bound
from placewright.transforms import contract

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.simulator import CriticalPath, Loads
    from placewright.timeline import Timeline

    Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class TimeShare:
    """A part of the time.

    Args:
        kind: `compute`, `send`, `stream` or `issue`, as in `simulator.PathSegment`.
        location: The device, or the channel: `cpu→gpu0`, or its name where several links share it.
        fraction: Of the step time or period. Those of a step add up to 1; of a period they do not,
            since all devices and channels work at once.
    """

    kind: Literal["compute", "send", "stream", "issue"]
    location: str
    seconds: float
    fraction: float


@dataclass(frozen=True, eq=False)
class Breakdown:
    """A plan with everything that explains it."""

    problem: Problem
    plan: Plan
    timeline: Timeline
    known_bound: Bound | None

    @cached_property
    def bound(self) -> Bound:
        if self.known_bound is not None:
            return self.known_bound
        is_fused = self.plan.fusion is not None
        return bound(contract(self.problem, self.plan).problem if is_fused else self.problem)

    @property
    def objective_value(self) -> float:
        is_step = self.problem.objective == "step"
        return self.timeline.step_time if is_step else self.timeline.period

    @property
    def gap(self) -> float:
        return (
            self.objective_value / self.bound.seconds - 1
            if self.bound.seconds > 0
            else float("inf")
        )

    @cached_property
    def critical_path(self) -> CriticalPath:
        return simulator.find_critical_path(self.problem, self.timeline)

    @cached_property
    def loads(self) -> Loads:
        return simulator.loads(self.problem, self.plan)

    @cached_property
    def busy_seconds(self) -> tuple[Seconds, Seconds]:
        """Seconds that count for the objective, of each device and of each channel."""
        if self.problem.objective == "period":
            return self.loads.device, self.loads.channel
        devices = np.zeros(len(self.problem.cluster))
        channels = np.zeros(self.problem.arrays.channels)
        for (kind, index), seconds in self.critical_path.seconds().items():
            (channels if kind in ("send", "stream") else devices)[index] += seconds
        return devices, channels

    @cached_property
    def computing_devices(self) -> list[str]:
        used_devices = np.unique(self.plan.placement[self.problem.arrays.scheduled])
        return [self.plan.device_names[device] for device in used_devices]

    @cached_property
    def shares(self) -> tuple[TimeShare, ...]:
        problem = self.problem
        if problem.objective == "step":
            seconds = self.critical_path.seconds()
        else:
            channels = range(problem.arrays.channels)
            loads = self.loads
            seconds = {("compute", index): float(load) for index, load in enumerate(loads.device)}
            if problem.overlap:  # else devices pay for transfers, and that is in their loads
                send_seconds = loads.channel - loads.streamed
                seconds |= {("stream", index): float(loads.streamed[index]) for index in channels}
                seconds |= {("send", index): float(send_seconds[index]) for index in channels}
        shares = []
        for (kind, index), busy_seconds in sorted(seconds.items(), key=lambda item: -item[1]):
            is_transfer = kind in ("send", "stream")
            location = (
                channel_name(problem, index) if is_transfer else problem.cluster.devices[index].name
            )
            if busy_seconds > 0:
                shares.append(
                    TimeShare(kind, location, busy_seconds, busy_seconds / self.objective_value)
                )
        return tuple(shares)
