"""A page's content in, one sentence that says why the plan is what it is out.

Only facts of the plan's own step and of the plans it is held against: what no single device can do,
what sharing the work saves, what is sent for it, and what the critical path is made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.reporting.waits import shares
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.reporting.content import Content

SMALL = 0.005  # a share of the step that is not worth a word


def why(content: Content) -> str:
    """Why the answer is what it is, in one sentence."""
    result, single = content.results[content.answer], content.results[content.single]
    shown, names = content.shown, [device.name for device in content.problem.cluster.devices]
    computing = [names[at] for at in shown.computing]
    streamed = shown.sent[1]
    if not computing:
        return "Nothing in this graph takes time: all of it exists before the step."
    if not result.fits:
        lead = f"No plan tried fits: this one is nearest, {format_bytes(result.overflow)} over"
    elif len(computing) == 1 and not streamed:
        lead = f"Everything runs on {computing[0]}{_nothing_faster(content)}"
    elif not single.fits:
        lead = (
            f"No single device holds the model ({content.alone} would be "
            f"{format_bytes(single.overflow)} over), so {_how(content, computing)}"
        )
    else:
        saved = 1 - result.value / single.value if single.value > 0 else 0.0
        worth = "is as fast as"
        how = _how(content, computing)
        if abs(saved) > SMALL:
            worth = f"takes {_percent(abs(saved))} {'less' if saved > 0 else 'more'} time than"
        lead = f"{how[:1].upper()}{how[1:]}: that {worth} {content.alone} alone"
    return f"{lead}; {_limit(content)}."


def _nothing_faster(content: Content) -> str:
    result = content.results[content.answer]
    left = 1 - result.bound / result.value if result.value > 0 else 0.0
    tried = f": of {result.evaluations:,} plans tried none is faster"
    if result.evaluations == 1 or content.answer == content.single:
        tried = ""
    if left <= 1e-9:
        return f"{tried}, and none can be"
    return f"{tried}, and no plan can save more than {_percent(left)}"


def _how(content: Content, computing: Sequence[str]) -> str:
    """What the plan does, in words."""
    shown = content.shown
    tensors, streamed = shown.sent
    several = len(computing) > 1
    if streamed:
        moved = shown.timeline.transfers
        homes = np.unique(moved.source[moved.reader >= 0])
        home = _join([shown.plan.devices[at] for at in homes])
        verb = "compute" if several else "computes"
        return (
            f"{format_bytes(streamed)} of weights are streamed from {home} "
            f"while {_join(computing)} {verb}"
        )
    work = (
        f"the work is shared by {_join(computing)}" if several else f"all is run on {computing[0]}"
    )
    return f"{work}, with {format_bytes(tensors)} sent a step" if tensors else work


def _limit(content: Content) -> str:
    """What sets the time now."""
    shown, timeline = content.shown, content.shown.timeline
    channels = content.problem.cluster.channels
    if content.problem.objective == "period":
        loads = {shown.plan.devices[at]: float(busy) for at, busy in enumerate(timeline.busy)}
        moved = timeline.transfers
        wire = np.bincount(moved.channel, moved.end - moved.start, len(channels))
        if content.problem.overlap:
            loads |= {str(name): float(wire[at]) for at, name in enumerate(channels)}
        busiest = max(loads, key=lambda name: loads[name])
        return f"{busiest} is the busiest, with {format_seconds(loads[busiest])} of each period"
    devices, wires = shares(shown.waits, timeline)
    total = timeline.step_time or 1.0
    parts = [(f"{shown.plan.devices[at]} computing", spent) for at, spent in devices.items()]
    parts += [(f"transfers over {channels[at]}", spent) for at, spent in wires.items()]
    parts = sorted((part for part in parts if part[1] / total > SMALL), key=lambda part: -part[1])
    said = [f"{_percent(spent / total)} {what}" for what, spent in parts[:4]]
    return f"the critical path is {_join(said)}" if said else "the step takes no time"


def _join(words: Sequence[str]) -> str:
    if len(words) > 6:
        words = [*words[:5], f"{len(words) - 5} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "nothing"


def _percent(share: float) -> str:
    digits = 1 if share < 0.1 else 0
    shown = f"{share * 100:.{digits}f}"
    return f"{'99.9' if shown == '100' and share < 1 else shown} %"
