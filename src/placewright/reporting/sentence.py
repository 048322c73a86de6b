"""One sentence that says why the answer's plan is what it is.

Only facts of the plan's own step and of the plans it is held against: what no single device can do,
what sharing the work saves, what is sent for it, and what the critical path is made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.reporting.waits import path_seconds
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.reporting.content import Comparison

NEGLIGIBLE = 0.005  # a share of the step that is not worth a word


def answer_sentence(comparison: Comparison) -> str:
    """Why the answer is what it is, in one sentence."""
    result, single = comparison.results[comparison.answer], comparison.results[comparison.single]
    view, names = (
        comparison.answer_step,
        [device.name for device in comparison.problem.cluster.devices],
    )
    computing = [names[index] for index in view.computing_devices]
    streamed = view.bytes_sent[1]
    if not computing:
        return "Nothing in this graph takes time: all of it exists before the step."
    if not result.fits:
        opening = f"No plan tried fits: this one is nearest, {format_bytes(result.overflow)} over"
    elif len(computing) == 1 and not streamed:
        opening = f"Everything runs on {computing[0]}{_optimality(comparison)}"
    elif not single.fits:
        opening = (
            f"No single device holds the model ({comparison.single_device} would be "
            f"{format_bytes(single.overflow)} over), so {_plan_summary(comparison, computing)}"
        )
    else:
        saved = (
            1 - result.objective_value / single.objective_value
            if single.objective_value > 0
            else 0.0
        )
        comparison_text = "is as fast as"
        summary = _plan_summary(comparison, computing)
        if abs(saved) > NEGLIGIBLE:
            comparison_text = (
                f"takes {_percent(abs(saved))} {'less' if saved > 0 else 'more'} time than"
            )
        opening = f"{summary[:1].upper()}{summary[1:]}: that {comparison_text} {comparison.single_device} alone"
    return f"{opening}; {_bottleneck(comparison)}."


def _optimality(comparison: Comparison) -> str:
    result = comparison.results[comparison.answer]
    remaining = 1 - result.bound / result.objective_value if result.objective_value > 0 else 0.0
    attempts = f": of {result.evaluations:,} plans tried none is faster"
    if result.evaluations == 1 or comparison.answer == comparison.single:
        attempts = ""
    if remaining <= 1e-9:
        return f"{attempts}, and none can be"
    return f"{attempts}, and no plan can save more than {_percent(remaining)}"


def _plan_summary(comparison: Comparison, computing: Sequence[str]) -> str:
    """What the plan does, in words."""
    view = comparison.answer_step
    tensors, streamed = view.bytes_sent
    several = len(computing) > 1
    if streamed:
        transfers = view.timeline.transfers
        sources = np.unique(transfers.source[transfers.reader >= 0])
        source_names = _join([view.plan.device_names[index] for index in sources])
        verb = "compute" if several else "computes"
        return (
            f"{format_bytes(streamed)} of weights are streamed from {source_names} "
            f"while {_join(computing)} {verb}"
        )
    work = (
        f"the work is shared by {_join(computing)}" if several else f"all is run on {computing[0]}"
    )
    return f"{work}, with {format_bytes(tensors)} sent a step" if tensors else work


def _bottleneck(comparison: Comparison) -> str:
    """What sets the time now."""
    view, timeline = comparison.answer_step, comparison.answer_step.timeline
    channels = comparison.problem.cluster.channels
    if comparison.problem.objective == "period":
        loads = {
            view.plan.device_names[index]: float(busy) for index, busy in enumerate(timeline.busy)
        }
        transfers = timeline.transfers
        channel_seconds = np.bincount(
            transfers.channel, transfers.end - transfers.start, len(channels)
        )
        if comparison.problem.overlap:
            loads |= {
                str(name): float(channel_seconds[index]) for index, name in enumerate(channels)
            }
        busiest = max(loads, key=lambda name: loads[name])
        return f"{busiest} is the busiest, with {format_seconds(loads[busiest])} of each period"
    devices_on_path, channels_on_path = path_seconds(view.waits, timeline)
    total = timeline.step_time or 1.0
    parts = [
        (f"{view.plan.device_names[index]} computing", seconds)
        for index, seconds in devices_on_path.items()
    ]
    parts += [
        (f"transfers over {channels[index]}", seconds)
        for index, seconds in channels_on_path.items()
    ]
    parts = sorted(
        (part for part in parts if part[1] / total > NEGLIGIBLE), key=lambda part: -part[1]
    )
    phrases = [f"{_percent(seconds / total)} {activity}" for activity, seconds in parts[:4]]
    return f"the critical path is {_join(phrases)}" if phrases else "the step takes no time"


def _join(words: Sequence[str]) -> str:
    if len(words) > 6:
        words = [*words[:5], f"{len(words) - 5} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "nothing"


def _percent(share: float) -> str:
    digits = 1 if share < 0.1 else 0
    text = f"{share * 100:.{digits}f}"
    return f"{'99.9' if text == '100' and share < 1 else text} %"
