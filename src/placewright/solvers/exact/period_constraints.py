"""The period in the CP-SAT model: the largest load of any device or channel.

Streamed weights are sent once for each reader, which is never cheaper than sending them once per
device, so the bound holds for plans that stream as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.solvers.exact.model import Linear, Literal, PlacementModel


def period_variable(placement: PlacementModel) -> Linear:
    """A variable that is at least the load of every device and channel."""
    p, model = placement.payload, placement.model
    longest_load = model.new_int_var(0, p["max_ticks"], "period")
    device_load: list[list[Linear]] = [[] for _ in placement.devices]
    channel_load: dict[int, list[Linear]] = {}
    for item in placement.items:
        for device, literal in placement.item_on(item).items():
            device_load[device].append(p["op_ticks"][item][device] * literal)
    for tensor in range(len(placement.tensors)):
        if p["overlap"]:
            _add_channel_load(placement, tensor, channel_load)
        else:
            _add_device_load(placement, tensor, device_load)
    for loads in [*device_load, *channel_load.values()]:
        if loads:
            model.add(sum(loads) <= longest_load)
    return longest_load


def _add_channel_load(
    placement: PlacementModel, tensor: int, channel_load: dict[int, list[Linear]]
) -> None:
    for target in placement.devices:
        for source, is_sent, ticks in placement.possible_sends(tensor, target):
            channel_load.setdefault(placement.payload["channel"][source][target], []).append(
                ticks * is_sent
            )


def _add_device_load(
    placement: PlacementModel, tensor: int, device_load: list[list[Linear]]
) -> None:
    """Without overlap a receiver pays each send, a sender the longest; hosts pay nothing."""
    host = placement.payload["is_host"]
    sends_by_source: dict[int, list[tuple[Literal, int]]] = {}
    for target in placement.devices:
        for source, is_sent, ticks in placement.possible_sends(tensor, target):
            sends_by_source.setdefault(source, []).append((is_sent, ticks))
            if not host[target]:
                device_load[target].append(ticks * is_sent)
    for source, sends in sends_by_source.items():
        if host[source]:
            continue
        longest = placement.model.new_int_var(0, max(ticks for _, ticks in sends), "")
        for is_sent, ticks in sends:
            placement.model.add(longest >= ticks * is_sent)
        device_load[source].append(longest)
