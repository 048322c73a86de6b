"""Sentences: a plan with what is seen of it in, why it takes as long as it does, in words, out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.explanations.cluster_changes import channel_words
from placewright.explanations.quick_plans import Quick
from placewright.plan import Plan
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from placewright.explanations.breakdown import Seen

_NEAR = 0.02  # two times that differ by this share or less are near each other
_TELL = 0.05  # share of the time from which on a part of it is told
_PROVED = 1e-9  # a gap this small is rounding


def sentence(seen: Seen) -> str:
    """What binds a plan."""
    if not seen.timeline.fits:
        main = _does_not_fit(seen)
    elif not seen.value > 0:
        main = "nothing in it takes time"
    elif seen.problem.objective == "period":
        main = _busiest(seen)
    elif seen.loads.streamed.any():
        main = _streaming(seen)
    elif len(seen.computing) == 1:
        main = _one_device(seen)
    else:
        main = _parts(seen)
    return main + _near_the_bound(seen)


def _does_not_fit(seen: Seen) -> str:
    over = seen.timeline.peak - seen.timeline.capacity
    worst = int(over.argmax())
    name, lacks = seen.plan.devices[worst], format_bytes(int(over[worst]))
    held = f"{format_bytes(int(seen.timeline.peak[worst]))} at its peak"
    return f"{name} lacks {lacks} of memory: the plan holds {held} there"


def _busiest(seen: Seen) -> str:
    """The device or channel whose load is the period, and the next one."""
    loads, problem = seen.loads, seen.problem
    parts = [
        (float(load), device.name, "with its ops" if problem.overlap else "with ops and transfers")
        for load, device in zip(loads.device, problem.cluster.devices, strict=True)
    ]
    if problem.overlap:
        for at, load in enumerate(loads.channel.tolist()):
            doing = "streaming weights" if loads.streamed[at] > load / 2 else "sending tensors"
            parts.append((load, channel_words(problem, at), doing))
    parts.sort(key=lambda part: -part[0])
    (_, who, doing), *rest = parts
    told = f"{who} is busy {doing} for all of the period"
    if rest and rest[0][0] > 0:
        told += f"; next is {rest[0][1]}, busy {_percent(rest[0][0] / seen.value)} of it"
    return told


def _streaming(seen: Seen) -> str:
    a, plan, streamed = seen.problem.arrays, seen.plan, seen.loads.streamed
    at = int(streamed.argmax())
    moved = seen.timeline.transfers
    copies = (moved.reader >= 0) & (moved.channel == at)
    target = int(np.bincount(moved.target[copies], (moved.end - moved.start)[copies]).argmax())
    weights = int(a.resident[a.weight].sum())
    held = int(a.resident[a.weight & (plan.device == target)].sum())
    return (
        f"{plan.devices[target]} holds {format_bytes(held)} of {format_bytes(weights)} of weights, "
        f"and {channel_words(seen.problem, at)} is busy {_percent(streamed[at] / seen.value)} of "
        f"the step streaming others to it; the critical path is {_told(seen)}"
    )


def _one_device(seen: Seen) -> str:
    """Why nothing is split: what the best split tried pays for transfers, what it could gain."""
    problem, name = seen.problem, seen.computing[0]
    if len(problem.cluster) == 1 or seen.plan.fusion is not None or seen.gap <= _PROVED:
        return _parts(seen)
    turn = problem.arrays.turn
    tried = Quick.of(problem, seen.plan).stretches(problem)
    splits = [row for row in tried if len(np.unique(row[turn])) > 1]
    if not splits:
        return _parts(seen)
    verdict = simulator.judge(problem, np.stack(splits))
    at = verdict.best()
    value = float(verdict.value[at])
    if value < seen.value and not verdict.overflow[at]:
        return f"{name} does everything, though a contiguous split takes {format_seconds(value)}"
    plan = Plan.of(problem, splits[at])
    path = simulator.critical_path(problem, simulator.simulate(problem, plan))
    moving = sum(s for (kind, _), s in path.seconds().items() if kind in ("send", "stream"))
    room = "" if not verdict.overflow[at] else " and does not fit"
    return (
        f"splitting does not pay: the best contiguous split takes {format_seconds(value)}{room}, "
        f"{format_seconds(moving)} of its critical path on transfers, where no plan can gain more "
        f"than {format_seconds(max(0.0, seen.value - seen.bound.seconds))}"
    )


def _parts(seen: Seen) -> str:
    return f"the critical path is {_told(seen)}{_memory(seen)}"


def _told(seen: Seen) -> str:
    """The largest parts of the critical path in words."""
    words = {
        "compute": "compute on {}",
        "send": "tensors over {}",
        "stream": "weights over {}",
        "issue": "issuing ops of {}",
    }
    told = [share for share in seen.shares if share.share >= _TELL][:3] or seen.shares[:1]
    parts = [f"{_percent(each.share)} {words[each.kind].format(each.where)}" for each in told]
    return ", ".join(parts[:-1]) + (" and " if parts[1:] else "") + parts[-1]


def _memory(seen: Seen) -> str:
    """The device that would be faster alone, if only it had the memory."""
    problem = seen.problem
    everything = np.repeat(np.arange(len(problem.cluster))[:, None], problem.arrays.ops, axis=1)
    verdict = simulator.judge(problem, problem.settle(everything))
    wanted = np.flatnonzero((verdict.overflow > 0) & (verdict.value < seen.value * (1 - _NEAR)))
    if not len(wanted):
        return ""
    at = int(wanted[verdict.value[wanted].argmin()])
    alone = format_seconds(float(verdict.value[at]))
    return (
        f"; {seen.plan.devices[at]} alone would take {alone}, but lacks "
        f"{format_bytes(int(verdict.overflow[at]))} of memory"
    )


def _near_the_bound(seen: Seen) -> str:
    if not seen.timeline.fits or not seen.bound.seconds > 0 or seen.gap > _NEAR:
        return ""
    if seen.gap <= _PROVED:
        return f"; no plan can be faster ({seen.bound.name})"
    gain = _percent(1 - seen.bound.seconds / seen.value)
    return f"; no plan can gain more than {gain} ({seen.bound.name})"


def _percent(share: float) -> str:
    return f"{share * 100:.{0 if share >= 0.1 else 1}f} %"
