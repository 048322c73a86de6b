"""A window of a plan: a model of a step in, with all that may not change kept in order, out.

In a window (`free` is given) only some units may change. The others keep their devices and, among
each other, their order, on devices and on channels, so that CP-SAT has little to decide. An op
that is free may not go far in the order either: not past ops that are further than `_MARGIN`
places from all that is free. What began before any of these ops did cannot be changed by anything
that is free, so its times are given.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.solvers.exact.model import Step, Transfer

_MARGIN = 12  # places


def near(p: dict[str, Any]) -> set[int]:
    """The items that free ones may meet on a device; all if there is no window."""
    if p["free"] is None:
        return set(range(len(p["unit"])))
    order = [item for item in p["hint"]["order"] if p["turn"][item]]
    found: set[int] = set()
    for at, item in enumerate(order):
        if p["free"][p["unit"][item]]:
            found.update(order[max(0, at - _MARGIN) : at + _MARGIN + 1])
    return found


def settled(p: dict[str, Any], near: set[int]) -> int:
    """The tick before which all is as it was; 0 if there is no window."""
    if p["free"] is None:
        return 0
    return int(min((p["hint"]["begin"][item] for item in near), default=0))


def keep_order(step: Step) -> None:
    """What may not change keeps its order, and what is free does not go far."""
    p = step.p
    if p["free"] is None:
        return
    order = [item for item in p["hint"]["order"] if p["turn"][item]]
    rank = {item: at for at, item in enumerate(order)}
    free = [item for item in order if p["free"][p["unit"][item]]]
    rest = [item for item in order if not p["free"][p["unit"][item]]]
    for device in step.devices:
        fixed = [item for item in rest if device in step.on(item)]
        for one, other in itertools.pairwise(fixed):
            step.model.add(step.start[other] >= step.end[one])
        far = [item for item in fixed if item not in step.near]
        for item in free:
            here = step.on(item).get(device)
            if here is None:
                continue
            before = [other for other in far if rank[other] < rank[item]]
            after = [other for other in far if rank[other] > rank[item]]
            if before:
                step.model.add(step.start[item] >= step.end[before[-1]]).only_enforce_if(here)
            if after:
                step.model.add(step.start[after[0]] >= step.end[item]).only_enforce_if(here)
    _keep_sends(step)


def _keep_sends(step: Step) -> None:
    begun = {(tensor, target): at for tensor, target, at in step.p["hint"]["sent"]}
    by_channel: dict[int, list[Transfer]] = {}
    for transfer in step.transfers:
        if always(step, transfer) and (transfer.tensor, transfer.target) in begun:
            by_channel.setdefault(transfer.channel, []).append(transfer)
    for transfers in by_channel.values():
        transfers.sort(key=lambda one: (begun[one.tensor, one.target], one.tensor, one.target))
        for one, other in itertools.pairwise(transfers):
            step.model.add(other.start >= one.end)


def always(step: Step, transfer: Transfer) -> bool:
    """Whether a transfer takes place whatever happens in the window."""
    return bool(transfer.present.index == step.true.index)
