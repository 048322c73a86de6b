"""Windows of a plan: fixes the order of everything that may not change.

In a window (`free` is set) only some units may change. The others keep their devices and their
relative order, on devices and on channels, so that CP-SAT has little to decide. A free op may not
move far in the order either: not past ops that are further than `_MAX_DISTANCE` positions from all
free ops. Events before any of these ops started do not depend on free ops, so their times are
fixed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.solvers.exact.model import StepModel, TransferInterval

_MAX_DISTANCE = 12  # positions


def nearby_items(payload: dict[str, Any]) -> set[int]:
    """The items that free items may meet on a device; all if there is no window."""
    if payload["free"] is None:
        return set(range(len(payload["unit"])))
    order = [item for item in payload["hint"]["order"] if payload["is_scheduled"][item]]
    items: set[int] = set()
    for index, item in enumerate(order):
        if payload["free"][payload["unit"][item]]:
            items.update(order[max(0, index - _MAX_DISTANCE) : index + _MAX_DISTANCE + 1])
    return items


def fixed_until_tick(payload: dict[str, Any], nearby: set[int]) -> int:
    """The tick before which nothing changes; 0 if there is no window."""
    if payload["free"] is None:
        return 0
    return int(min((payload["hint"]["begin"][item] for item in nearby), default=0))


def keep_order(step: StepModel) -> None:
    """Fixed items keep their order, and free items do not move far."""
    payload = step.payload
    if payload["free"] is None:
        return
    order = [item for item in payload["hint"]["order"] if payload["is_scheduled"][item]]
    rank = {item: index for index, item in enumerate(order)}
    free_items = [item for item in order if payload["free"][payload["unit"][item]]]
    fixed_items = [item for item in order if not payload["free"][payload["unit"][item]]]
    for device in step.devices:
        device_items = [item for item in fixed_items if device in step.item_on(item)]
        for previous_item, next_item in itertools.pairwise(device_items):
            step.model.add(step.start[next_item] >= step.end[previous_item])
        distant = [item for item in device_items if item not in step.nearby]
        for item in free_items:
            is_here = step.item_on(item).get(device)
            if is_here is None:
                continue
            before = [next_item for next_item in distant if rank[next_item] < rank[item]]
            after = [next_item for next_item in distant if rank[next_item] > rank[item]]
            if before:
                step.model.add(step.start[item] >= step.end[before[-1]]).only_enforce_if(is_here)
            if after:
                step.model.add(step.start[after[0]] >= step.end[item]).only_enforce_if(is_here)
    _keep_send_order(step)


def _keep_send_order(step: StepModel) -> None:
    send_start = {(tensor, target): start for tensor, target, start in step.payload["hint"]["sent"]}
    by_channel: dict[int, list[TransferInterval]] = {}
    for transfer in step.transfers:
        if is_certain(step, transfer) and (transfer.tensor, transfer.target) in send_start:
            by_channel.setdefault(transfer.channel, []).append(transfer)
    for transfers in by_channel.values():
        transfers.sort(
            key=lambda earlier: (
                send_start[earlier.tensor, earlier.target],
                earlier.tensor,
                earlier.target,
            )
        )
        for earlier, later in itertools.pairwise(transfers):
            step.model.add(later.start >= earlier.end)


def is_certain(step: StepModel, transfer: TransferInterval) -> bool:
    """Whether a transfer takes place whatever happens in the window."""
    return bool(transfer.present.index == step.true.index)
