"""Busy seconds of each device and channel in one step of a plan.

The largest of them is the period (`period.py` states the rule in plain Python).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.transforms import contract

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem

Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Loads:
    """Seconds of work in one step.

    Args:
        device: Each device's ops; without overlap also what it pays for transfers.
        channel: Each channel's tensors and streamed weights.
        streamed: The part of each channel's load that is streamed weights.
    """

    device: Seconds
    channel: Seconds
    streamed: Seconds


def loads(problem: Problem, plan: Plan) -> Loads:
    """Busy seconds of each device and each channel in one step of a plan."""
    if plan.fusion is not None:
        fused = contract(problem, plan)
        problem, plan = fused.problem, fused.plan
    a, device = problem.arrays, plan.placement
    buffers = np.full(a.devices, -1) if plan.staging is None else plan.staging
    busy = np.bincount(device, a.compute[np.arange(a.ops), device], a.devices)
    tensor, target = a.inputs, device[a.reader]
    source = device[a.producer[tensor]]
    is_sent = (source != target) & a.scheduled[a.reader]
    is_streamed = is_sent & a.is_weight[a.producer[tensor]] & (buffers[target] >= 0)
    # A tensor goes to each device once, a streamed weight to each reader.
    sends = np.flatnonzero(is_sent & ~is_streamed)
    pairs = tensor[sends].astype(np.int64) * a.devices + target[sends]
    sends = sends[np.unique(pairs, return_index=True)[1]]
    streams = np.flatnonzero(is_streamed)
    channel, streamed = np.zeros(a.channels), np.zeros(a.channels)
    transfer_seconds = np.zeros(a.devices)
    for rows, is_stream in ((sends, False), (streams, True)):
        seconds = a.transfer[a.link_class[source[rows], target[rows]], tensor[rows]]
        channels = a.channel[source[rows], target[rows]]
        load = np.bincount(channels, seconds, a.channels)
        channel += load
        streamed += load if is_stream else 0.0
        transfer_seconds += np.bincount(target[rows], seconds, a.devices)
        if is_stream:
            transfer_seconds += np.bincount(source[rows], seconds, a.devices)
        else:  # a sender pays for a tensor once, the longest of its sends
            longest = np.zeros(len(a.sizes))
            np.maximum.at(longest, tensor[rows], seconds)
            transfer_seconds += np.bincount(device[a.producer], longest, a.devices)
    if not problem.overlap:
        busy = busy + np.where(a.is_host, 0.0, transfer_seconds)
    return Loads(busy.astype(np.float64), channel, streamed)
