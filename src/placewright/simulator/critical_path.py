"""The critical path of a step: the activity that each moment of it was spent on.

We go back from the op that ended last: which activity ended when this one began, so that it could
not begin earlier? An input arrived, the device or the channel became free, the issuer did, or an op
released a part of the staging buffer. By the rules (`reference.py`) everything starts at the end of
something else, and the timeline has those times bit for bit, so the segments leave no gap.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.errors import PlanError
from placewright.simulator.evaluation import simulate
from placewright.simulator.reference import plan_order
from placewright.transforms import contract

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.timeline import Timeline

SegmentKind = Literal["compute", "send", "stream", "issue"]
WaitReason = Literal["end", "input", "device", "channel", "staging", "issuer"]


@dataclass(frozen=True)
class PathSegment:
    """One segment of the critical path.

    Args:
        kind: `compute`, an op; `send`, the transfer of a tensor; `stream`, the transfer of a
            streamed weight; `issue`, an issuer that started another device's op.
        op: The op that ran, made the tensor, is the weight, or was started.
        device: Where the op ran, or where the tensor or weight went.
        source: Where the tensor or weight came from; the device itself for the others.
        channel: The channel of a transfer, else -1.
        wait_reason: What the next segment waited for: an `input`, the `device`, the `channel`, the
            `staging` buffer or the `issuer`; `end` for the last one.
    """

    kind: SegmentKind
    op: int
    device: int
    source: int
    channel: int
    wait_reason: WaitReason
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class CriticalPath:
    """Segments from the start of the step to its end: each begins when the one before it ends.

    Args:
        op_names: Names of the ops; a fused group has the name of its first member.
    """

    segments: tuple[PathSegment, ...]
    op_names: tuple[str, ...]

    def seconds(self) -> dict[tuple[SegmentKind, int], float]:
        """Seconds by kind and device (`compute`, `issue`) or channel, the largest first."""
        totals: dict[tuple[SegmentKind, int], float] = defaultdict(float)
        for segment in self.segments:
            is_transfer = segment.kind in ("send", "stream")
            totals[segment.kind, segment.channel if is_transfer else segment.device] += (
                segment.seconds
            )
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def waits(self) -> dict[WaitReason, float]:
        """Seconds of segments by what the next one waited for, the largest first.

        Waits for inputs come from the graph; the others come from sharing a device, a channel, an
        issuer or a staging buffer.
        """
        totals: dict[WaitReason, float] = defaultdict(float)
        for segment in self.segments:
            totals[segment.wait_reason] += segment.seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def __len__(self) -> int:
        return len(self.segments)


def find_critical_path(problem: Problem, timeline: Timeline) -> CriticalPath:
    """The path that ends with the step's last op; every moment of the step is in one segment.

    Where several activities ended at once, an input goes before the device, and these before the
    channel, the issuer and the staging buffer.

    Raises:
        PlanError: The timeline is not one of this problem.
    """
    plan = timeline.plan
    if plan.fusion is not None:
        fused = contract(problem, plan)
        problem, timeline = fused.problem, simulate(fused.problem, fused.plan)
    return Causes(problem, timeline).path()


Activity = tuple[Literal["op", "row", "issue"], int]
"""An op; a row of the timeline's transfers; or an op while its issuer starts it."""


class Causes:
    """A timeline without fused groups, indexed to look up why an activity began when it did."""

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.problem, self.timeline, self.plan = problem, timeline, timeline.plan
        self.a = a = problem.arrays
        if len(timeline.start) != a.ops:
            raise PlanError(f"the timeline has {len(timeline.start)} ops: the graph has {a.ops}")
        self.device: list[int] = self.plan.placement.tolist()
        self.staging = [-1] * a.devices if self.plan.staging is None else self.plan.staging.tolist()
        self.start: list[float] = timeline.start.tolist()
        self.end: list[float] = timeline.end.tolist()
        self.scheduled: list[bool] = a.scheduled.tolist()
        self.weight: list[bool] = a.is_weight.tolist()
        self.producer: list[int] = a.producer.tolist()
        self.first_input: list[int] = a.first_input.tolist()
        self.inputs: list[int] = a.inputs.tolist()
        takes_time = timeline.end > timeline.start
        self.op_ending_at = {
            (self.device[op], self.end[op]): op for op in np.flatnonzero(takes_time).tolist()
        }
        transfers = timeline.transfers
        self.tensor: list[int] = transfers.tensor.tolist()
        self.source: list[int] = transfers.source.tolist()
        self.target: list[int] = transfers.target.tolist()
        self.channel: list[int] = transfers.channel.tolist()
        self.reader: list[int] = transfers.reader.tolist()
        self.send_start: list[float] = transfers.start.tolist()
        self.send_end: list[float] = transfers.end.tolist()
        self.transfer_ending_at = {
            (self.channel[row], self.send_end[row]): row
            for row in np.flatnonzero(transfers.end > transfers.start).tolist()
        }
        self.transfer_rows: dict[tuple[int, int, int], list[int]] = defaultdict(list)  # by start
        for row, key in enumerate(zip(self.tensor, self.target, self.reader, strict=True)):
            self.transfer_rows[key].append(row)

    def path(self) -> CriticalPath:
        segments: list[PathSegment] = []
        activity = self.last()
        reason: WaitReason = "end"
        while activity is not None:
            segment = self._segment(activity, reason if segments else "end")
            if segment.end > segment.start:
                segments.append(segment)
            if not segment.start > 0:
                break
            activity, reason = self._cause(activity)
        op_names = tuple(op.name for op in self.problem.graph.ops)
        return CriticalPath(tuple(reversed(segments)), op_names)

    def last(self) -> Activity | None:
        """The op that ended last, None if the step took no time."""
        candidates = np.flatnonzero(
            self.a.scheduled & (self.timeline.end == self.timeline.step_time)
        )
        if not self.timeline.step_time > 0:
            return None
        if not len(candidates):
            raise self._no_cause_error(self.timeline.step_time)
        return "op", int(candidates[np.argmin(self.timeline.start[candidates])])

    def _segment(self, activity: Activity, reason: WaitReason) -> PathSegment:
        category, at = activity
        if category == "row":
            kind: SegmentKind = "send" if self.reader[at] < 0 else "stream"
            source, target = self.source[at], self.target[at]
            op, times = self.producer[self.tensor[at]], (self.send_start[at], self.send_end[at])
            return PathSegment(kind, op, target, source, self.channel[at], reason, *times)
        device, start = self.device[at], self.start[at]
        if category == "issue":
            end = start + float(self.a.launch_overhead[device])
            return PathSegment("issue", at, device, device, -1, reason, start, end)
        return PathSegment("compute", at, device, device, -1, reason, start, self.end[at])

    def _cause(self, activity: Activity) -> tuple[Activity, WaitReason]:
        category, at = activity
        cause = self.cause_of_transfer(at) if category == "row" else self.cause_of_op(at)
        if cause is None:
            raise self._no_cause_error(self.send_start[at] if category == "row" else self.start[at])
        return cause

    # -- ops ---------------------------------------------------------------------------------

    def cause_of_op(self, op: int) -> tuple[Activity, WaitReason] | None:
        """The activity that ended when this op began, and why the op waited for it."""
        now, device = self.start[op], self.device[op]
        arrivals = self._arrivals(op, now)
        for activity in arrivals:
            if self._takes_time(activity):
                return activity, "input"
        if (device, now) in self.op_ending_at:
            return ("op", self.op_ending_at[device, now]), "device"
        if self.end[op] > now and (device, now) in self._issue_ending_at:
            return ("issue", self._issue_ending_at[device, now]), "issuer"
        # An activity without duration has causes of its own, which lead on.
        if arrivals:
            return arrivals[0], "input"
        previous = self._previous_op.get(op) if self.problem.discipline == "in order" else None
        if previous is not None and self.end[previous] == now:
            return ("op", previous), "device"
        # A copy without duration has no row: it waited for its channel or for staging.
        for tensor in self._inputs(op):
            if self._is_streamed(tensor, device):
                channel = int(self.a.channel[self.device[self.producer[tensor]], device])
                if (channel, now) in self.transfer_ending_at:
                    return ("row", self.transfer_ending_at[channel, now]), "channel"
        return self._staging_cause(op, now)

    def _arrivals(self, op: int, now: float) -> list[Activity]:
        """The ops and transfers that made an input of this op available at this time."""
        device = self.device[op]
        arrivals: list[Activity] = []
        for tensor in self._inputs(op):
            source = self.producer[tensor]
            if self.device[source] == device:
                if self.scheduled[source] and self.end[source] == now:
                    arrivals.append(("op", source))
                continue
            reader = op if self._is_streamed(tensor, device) else -1
            rows = self.transfer_rows.get((tensor, device, reader), ())
            arrivals += [("row", row) for row in rows[-1:] if self.send_end[row] == now]
        return arrivals

    def _takes_time(self, activity: Activity) -> bool:
        category, at = activity
        if category == "row":
            return self.send_end[at] > self.send_start[at]
        return self.end[at] > self.start[at]

    # -- transfers ---------------------------------------------------------------------------

    def cause_of_transfer(self, row: int) -> tuple[Activity, WaitReason] | None:
        """The activity that ended when this row of the transfers began, and why it waited."""
        now, channel, reader = self.send_start[row], self.channel[row], self.reader[row]
        source = self.producer[self.tensor[row]]
        if reader < 0 and self.scheduled[source] and self.end[source] == now:
            return ("op", source), "input"
        if (channel, now) in self.transfer_ending_at:
            return ("row", self.transfer_ending_at[channel, now]), "channel"
        return None if reader < 0 else self._staging_cause(reader, now)

    def _staging_cause(self, reader: int, now: float) -> tuple[Activity, WaitReason] | None:
        """The op that released the staging bytes which a copy for this reader then took."""
        device = self.device[reader]
        for op in self._staging_holders.get((device, now), ()):
            if self._rank[op] < self._rank[reader]:
                return ("op", op), "staging"
        return None

    # -- indexes, built on first use -----------------------------------------------------------

    @cached_property
    def _order(self) -> list[int]:
        priority = self.plan.priority
        return plan_order(self.a, None if priority is None else priority.tolist())

    @cached_property
    def _rank(self) -> dict[int, int]:
        return {op: at for at, op in enumerate(self._order)}

    @cached_property
    def _previous_op(self) -> dict[int, int]:
        """The op before each op in its device's order."""
        previous: dict[int, int] = {}
        latest: dict[int, int] = {}
        for op in self._order:
            if self.device[op] in latest:
                previous[op] = latest[self.device[op]]
            latest[self.device[op]] = op
        return previous

    @cached_property
    def _issue_ending_at(self) -> dict[tuple[int, float], int]:
        """By device and time: the op whose start kept the device's issuer busy until then."""
        issuer, launch = self.a.issuer.tolist(), self.a.launch_overhead.tolist()
        devices_of: dict[int, list[int]] = defaultdict(list)
        for peer, thread in enumerate(issuer):
            devices_of[thread].append(peer)
        issue_ends: dict[tuple[int, float], int] = {}
        for op in self.op_ending_at.values():
            device = self.device[op]
            if issuer[device] >= 0 and launch[device] > 0:
                for peer in devices_of[issuer[device]]:
                    issue_ends[peer, self.start[op] + launch[device]] = op
        return issue_ends

    @cached_property
    def _staging_holders(self) -> dict[tuple[int, float], list[int]]:
        """By device and time: ops that ended then and held staging bytes, the longest first."""
        holders: dict[tuple[int, float], list[int]] = defaultdict(list)
        for op in self._order:
            device = self.device[op]
            if self.staging[device] >= 0 and any(
                self.a.sizes[tensor] and self._is_streamed(tensor, device)
                for tensor in self._inputs(op)
            ):
                holders[device, self.end[op]].append(op)
        for ops in holders.values():
            ops.sort(key=lambda op: self.start[op])
        return holders

    def _is_streamed(self, tensor: int, device: int) -> bool:
        source = self.producer[tensor]
        return self.weight[source] and self.device[source] != device and self.staging[device] >= 0

    def _inputs(self, op: int) -> list[int]:
        return self.inputs[self.first_input[op] : self.first_input[op + 1]]

    def _no_cause_error(self, moment: float) -> PlanError:
        return PlanError(
            f"something begins at {moment!r} s but nothing ends then: "
            "the timeline is not one of this problem and plan"
        )
