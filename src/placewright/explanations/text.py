"""Explanation text: why a plan takes as long as it does, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.explanations.cluster_upgrades import channel_description
from placewright.explanations.quick_plans import QuickPlans
from placewright.plan import Plan
from placewright.result import PROVEN_GAP
from placewright.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from placewright.explanations.breakdown import Breakdown

_NEAR_SHARE = 0.02  # two times that differ by this share or less are near each other
_MIN_SHARE = 0.05  # share of the time from which on a part of it is told


def sentence(breakdown: Breakdown) -> str:
    """What binds a plan, in one sentence."""
    if not breakdown.timeline.fits:
        cause = _overflow_sentence(breakdown)
    elif not breakdown.objective_value > 0:
        cause = "nothing in it takes time"
    elif breakdown.problem.objective == "period":
        cause = _bottleneck_sentence(breakdown)
    elif breakdown.loads.streamed.any():
        cause = _streaming_sentence(breakdown)
    elif len(breakdown.computing_devices) == 1:
        cause = _single_device_sentence(breakdown)
    else:
        cause = _critical_path_sentence(breakdown)
    return cause + _bound_clause(breakdown)


def _overflow_sentence(breakdown: Breakdown) -> str:
    overflow = breakdown.timeline.peak - breakdown.timeline.capacity
    worst = int(overflow.argmax())
    name, missing = breakdown.plan.device_names[worst], format_bytes(int(overflow[worst]))
    peak_text = f"{format_bytes(int(breakdown.timeline.peak[worst]))} at its peak"
    return f"{name} lacks {missing} of memory: the plan holds {peak_text} there"


def _bottleneck_sentence(breakdown: Breakdown) -> str:
    """The device or channel whose load is the period, and the next one."""
    loads, problem = breakdown.loads, breakdown.problem
    loads_by_name = [
        (float(load), device.name, "with its ops" if problem.overlap else "with ops and transfers")
        for load, device in zip(loads.device, problem.cluster.devices, strict=True)
    ]
    if problem.overlap:
        for channel, load in enumerate(loads.channel.tolist()):
            activity = (
                "streaming weights" if loads.streamed[channel] > load / 2 else "sending tensors"
            )
            loads_by_name.append((load, channel_description(problem, channel), activity))
    loads_by_name.sort(key=lambda entry: -entry[0])
    (_, busiest, activity), *others = loads_by_name
    text = f"{busiest} is busy {activity} for all of the period"
    if others and others[0][0] > 0:
        share = _percentage(others[0][0] / breakdown.objective_value)
        text += f"; next is {others[0][1]}, busy {share} of it"
    return text


def _streaming_sentence(breakdown: Breakdown) -> str:
    a, plan, streamed = breakdown.problem.arrays, breakdown.plan, breakdown.loads.streamed
    channel = int(streamed.argmax())
    transfers = breakdown.timeline.transfers
    copies = (transfers.reader >= 0) & (transfers.channel == channel)
    target = int(
        np.bincount(transfers.target[copies], (transfers.end - transfers.start)[copies]).argmax()
    )
    weight_bytes = int(a.resident[a.is_weight].sum())
    held_bytes = int(a.resident[a.is_weight & (plan.placement == target)].sum())
    link = channel_description(breakdown.problem, channel)
    busy = _percentage(streamed[channel] / breakdown.objective_value)
    return (
        f"{plan.device_names[target]} holds {format_bytes(held_bytes)} of "
        f"{format_bytes(weight_bytes)} of weights, and {link} is busy {busy} of the step streaming "
        f"others to it; the critical path is {_largest_shares(breakdown)}"
    )


def _single_device_sentence(breakdown: Breakdown) -> str:
    """Why nothing is split: the transfers of the best split that was tried, and its gain."""
    problem, name = breakdown.problem, breakdown.computing_devices[0]
    if (
        len(problem.cluster) == 1
        or breakdown.plan.fusion is not None
        or breakdown.gap <= PROVEN_GAP
    ):
        return _critical_path_sentence(breakdown)
    scheduled = problem.arrays.scheduled
    placements = QuickPlans.of(problem, breakdown.plan).contiguous_placements(problem)
    splits = [placement for placement in placements if len(np.unique(placement[scheduled])) > 1]
    if not splits:
        return _critical_path_sentence(breakdown)
    verdict = simulator.judge(problem, np.stack(splits))
    best = verdict.best()
    value = float(verdict.value[best])
    if value < breakdown.objective_value and not verdict.overflow[best]:
        return f"{name} does everything, though a contiguous split takes {format_seconds(value)}"
    plan = Plan.of(problem, splits[best])
    path = simulator.find_critical_path(problem, simulator.simulate(problem, plan))
    transfer_seconds = sum(
        seconds for (kind, _), seconds in path.seconds().items() if kind in ("send", "stream")
    )
    overflow_text = "" if not verdict.overflow[best] else " and does not fit"
    most_gain = max(0.0, breakdown.objective_value - breakdown.bound.seconds)
    return (
        f"splitting does not pay: the best contiguous split takes {format_seconds(value)}"
        f"{overflow_text}, {format_seconds(transfer_seconds)} of its critical path on transfers, "
        f"where no plan can gain more than {format_seconds(most_gain)}"
    )


def _critical_path_sentence(breakdown: Breakdown) -> str:
    return f"the critical path is {_largest_shares(breakdown)}{_memory_clause(breakdown)}"


def _largest_shares(breakdown: Breakdown) -> str:
    """The largest parts of the critical path in words."""
    words = {
        "compute": "compute on {}",
        "send": "tensors over {}",
        "stream": "weights over {}",
        "issue": "launching ops of {}",
    }
    largest = [share for share in breakdown.shares if share.fraction >= _MIN_SHARE][
        :3
    ] or breakdown.shares[:1]
    parts = [
        f"{_percentage(part_share.fraction)} {words[part_share.kind].format(part_share.location)}"
        for part_share in largest
    ]
    return ", ".join(parts[:-1]) + (" and " if parts[1:] else "") + parts[-1]


def _memory_clause(breakdown: Breakdown) -> str:
    """The device that would be faster alone, if it had the memory."""
    problem = breakdown.problem
    verdict = simulator.judge(problem, problem.single_device_placements())
    faster = np.flatnonzero(
        (verdict.overflow > 0) & (verdict.value < breakdown.objective_value * (1 - _NEAR_SHARE))
    )
    if not len(faster):
        return ""
    device = int(faster[verdict.value[faster].argmin()])
    seconds_text = format_seconds(float(verdict.value[device]))
    return (
        f"; {breakdown.plan.device_names[device]} alone would take {seconds_text}, but lacks "
        f"{format_bytes(int(verdict.overflow[device]))} of memory"
    )


def _bound_clause(breakdown: Breakdown) -> str:
    if (
        not breakdown.timeline.fits
        or not breakdown.bound.seconds > 0
        or breakdown.gap > _NEAR_SHARE
    ):
        return ""
    if breakdown.gap <= PROVEN_GAP:
        return f"; no plan can be faster ({breakdown.bound.name})"
    gain = _percentage(1 - breakdown.bound.seconds / breakdown.objective_value)
    return f"; no plan can gain more than {gain} ({breakdown.bound.name})"


def _percentage(share: float) -> str:
    return format_percent(share, decimal_below=0.1)
