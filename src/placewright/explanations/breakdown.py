"""Seen: a problem and a plan in, what is looked at to explain the plan's time out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright import simulator
from placewright.explanations.cluster_changes import channel_name
from placewright.solvers.bounds import Bound, bound
from placewright.transforms import contract

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.simulator import Loads, Path
    from placewright.timeline import Timeline

    Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """A part of the time.

    Args:
        kind: `compute`, `send`, `stream` or `issue`, as in `simulator.Piece`.
        where: The device, or the channel: `cpu→gpu0`, or its name where several links share it.
        share: Of the step time or period. Those of a step add up to 1; of a period they do not,
            since all devices and channels work at once.
    """

    kind: Literal["compute", "send", "stream", "issue"]
    where: str
    seconds: float
    share: float


@dataclass(frozen=True, eq=False)
class Seen:
    """A plan with all that is looked at to explain it."""

    problem: Problem
    plan: Plan
    timeline: Timeline
    given: Bound | None

    @cached_property
    def bound(self) -> Bound:
        if self.given is not None:
            return self.given
        fused = self.plan.fusion is not None
        return bound(contract(self.problem, self.plan).problem if fused else self.problem)

    @property
    def value(self) -> float:
        stepwise = self.problem.objective == "step"
        return self.timeline.step_time if stepwise else self.timeline.period

    @property
    def gap(self) -> float:
        return self.value / self.bound.seconds - 1 if self.bound.seconds > 0 else float("inf")

    @cached_property
    def path(self) -> Path:
        return simulator.critical_path(self.problem, self.timeline)

    @cached_property
    def loads(self) -> Loads:
        return simulator.loads(self.problem, self.plan)

    @cached_property
    def spent(self) -> tuple[Seconds, Seconds]:
        """Seconds that count for the objective, of each device and of each channel."""
        if self.problem.objective == "period":
            return self.loads.device, self.loads.channel
        devices = np.zeros(len(self.problem.cluster))
        channels = np.zeros(self.problem.arrays.channels)
        for (kind, at), seconds in self.path.seconds().items():
            (channels if kind in ("send", "stream") else devices)[at] += seconds
        return devices, channels

    @cached_property
    def computing(self) -> list[str]:
        used = np.unique(self.plan.device[self.problem.arrays.turn])
        return [self.plan.devices[at] for at in used]

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        problem = self.problem
        if problem.objective == "step":
            seconds = self.path.seconds()
        else:
            channels = range(problem.arrays.channels)
            loads = self.loads
            seconds = {("compute", at): float(load) for at, load in enumerate(loads.device)}
            if problem.overlap:  # else devices pay for transfers, and that is in their loads
                sent = loads.channel - loads.streamed
                seconds |= {("stream", at): float(loads.streamed[at]) for at in channels}
                seconds |= {("send", at): float(sent[at]) for at in channels}
        shares = []
        for (kind, at), spent in sorted(seconds.items(), key=lambda item: -item[1]):
            moves = kind in ("send", "stream")
            where = channel_name(problem, at) if moves else problem.cluster.devices[at].name
            if spent > 0:
                shares.append(Share(kind, where, spent, spent / self.value))
        return tuple(shares)
