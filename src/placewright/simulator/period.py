"""The period in plain Python: seconds between pipelined steps of one plan.

Steps are independent and pipelined, so the time between them is the largest load over devices
(their ops) and channels (their transfers, streamed weights included). Without overlap channels do
not count; instead a device pays for each tensor it sends, once for all receivers (the longest of
the sends), for each tensor it receives, and for each streamed weight that it sends or receives.
Hosts pay nothing for transfers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.simulator.reference import inputs_of, readers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.problem_arrays import Arrays


def reference_period(
    a: Arrays, device: Sequence[int], staging: Sequence[int] | None = None, overlap: bool = True
) -> float:
    """Seconds between pipelined steps.

    Loads are added up op by op, then tensor by tensor in order of their readers, then streamed
    weight by streamed weight in order of their readers.
    """
    buffers = [-1] * a.devices if staging is None else list(staging)
    busy = [0.0] * a.devices
    channel_load = [0.0] * a.channels
    for op in range(a.ops):
        busy[device[op]] += float(a.compute[op, device[op]])

    def pay(payer: int, seconds: float) -> None:
        if not a.is_host[payer]:
            busy[payer] += seconds

    streamed: list[tuple[int, int, int]] = []
    for tensor in range(len(a.sizes)):
        source = device[a.producer[tensor]]
        longest, targets = 0.0, set()
        for reader in readers_of(a, tensor):
            target = device[reader]
            if target == source or target in targets or not a.scheduled[reader]:
                continue
            if a.is_weight[a.producer[tensor]] and buffers[target] >= 0:
                continue
            targets.add(target)
            seconds = float(a.transfer[a.link_class[source, target], tensor])
            channel_load[a.channel[source, target]] += seconds
            if not overlap:
                pay(target, seconds)
            longest = max(longest, seconds)
        if not overlap and targets:
            pay(source, longest)
    for op in range(a.ops):
        for tensor in inputs_of(a, op):
            source, target = device[a.producer[tensor]], device[op]
            if (
                a.scheduled[op]
                and a.is_weight[a.producer[tensor]]
                and source != target
                and buffers[target] >= 0
            ):
                streamed.append((tensor, source, target))
    for tensor, source, target in streamed:
        seconds = float(a.transfer[a.link_class[source, target], tensor])
        channel_load[a.channel[source, target]] += seconds
        if not overlap:
            pay(target, seconds)
            pay(source, seconds)
    return max([*busy, *channel_load] if overlap else busy)
