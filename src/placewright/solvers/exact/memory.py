"""Memory constraints of the CP-SAT model (rule 8).

They are a relaxation: a plan that fits keeps them. Whether a plan of the model fits is decided by
the simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.solvers.exact.model import Linear, PlacementModel, StepModel

_MAX_BYPASS_ITEMS = 200  # items above which tensors that bypass an op are ignored


def scarce_devices(placement: PlacementModel) -> list[int]:
    """The devices that would be overfull if everything allowed there were there at once."""
    payload, devices = placement.payload, []
    for device in placement.devices:
        units = sum(
            payload["resident"][unit] for unit, on in enumerate(placement.unit_on) if device in on
        )
        max_bytes = (
            units + sum(row["bytes"] for row in placement.tensors) + max(payload["workspace"])
        )
        if max_bytes > payload["capacity"][device]:
            devices.append(device)
    return devices


def add_static_memory(placement: PlacementModel, device: int) -> Linear:
    """Resident bytes fit, with the bytes needed while any op runs. Returns the bytes left.

    Needed are the bytes of the op itself and tensors that bypass it: made or read on this device by
    an op that it depends on, and read on this device by one that depends on it; graph outputs that
    are made here by an op that it depends on. All graph outputs that are made here are here once
    the last op has started.
    """
    payload, model = placement.payload, placement.model
    free_bytes = model.new_int_var(0, payload["capacity"][device], f"free on {device}")
    resident = [
        size * placement.unit_on[unit][device]
        for unit, size in enumerate(payload["resident"])
        if size and device in placement.unit_on[unit]
    ]
    model.add(free_bytes == payload["capacity"][device] - sum(resident))
    owned_rows = [row for row in placement.tensors if not row["stored"] and row["alias"] < 0]
    output_bytes = [
        row["bytes"] * placement.item_on(row["producer"])[device]
        for row in owned_rows
        if row["kept"] and device in placement.item_on(row["producer"])
    ]
    if output_bytes:
        model.add(sum(output_bytes) <= free_bytes)
    bypass_rows = owned_rows if len(placement.items) <= _MAX_BYPASS_ITEMS else []
    for item in placement.items:
        literal = placement.item_on(item).get(device)
        if literal is None or not payload["is_scheduled"][item]:
            continue
        bypass_bytes = []
        for row in bypass_rows:
            bypass_bytes += _bypassing_bytes(placement, row, item, device)
        if bypass_bytes or payload["required_bytes"][item]:
            model.add(
                free_bytes >= payload["required_bytes"][item] + sum(bypass_bytes)
            ).only_enforce_if(literal)
    return free_bytes


def _bypassing_bytes(
    placement: PlacementModel, row: dict[str, Any], item: int, device: int
) -> list[Linear]:
    """The bytes of a tensor that bypasses an item on a device, if it can."""
    producer, readers = row["producer"], row["readers"]
    if item == producer or item in readers or not row["bytes"]:
        return []
    is_available = (
        placement.depends_on(item, producer) or not placement.payload["is_scheduled"][producer]
    )
    if row["kept"] and is_available and device in placement.item_on(producer):
        return [row["bytes"] * placement.item_on(producer)[device]]
    earlier = [producer] * is_available + [
        reader for reader in readers if placement.depends_on(item, reader)
    ]
    later = [reader for reader in readers if placement.depends_on(reader, item)]
    before, after = (
        [placement.item_on(other)[device] for other in items if device in placement.item_on(other)]
        for items in (earlier, later)
    )
    if not before or not after:
        return []
    return [
        row["bytes"]
        * placement.conjunction(placement.disjunction(before), placement.disjunction(after))
    ]


def add_memory_over_time(step: StepModel, device: int, free_bytes: Linear) -> None:
    """All tensors that are on a device at one time fit, besides the resident bytes.

    An output is there from its op's start to the end of that op, of its last reader there and of
    its last send; a copy from its send's start to the end of its last reader there. The model's
    times are below the true ones, by at most the slack, so a lifetime in the model that begins by
    the slack later lies within the true one.
    """
    model, slack = step.model, step.payload["slack"]
    max_ticks = 2 * step.horizon + slack
    intervals, sizes = [], []
    lifetime_end: dict[int, Linear] = {}
    # Backwards, so that aliases of a tensor come before it.
    for tensor, row in reversed(list(enumerate(step.tensors))):
        producer = row["producer"]
        producer_here = step.item_on(producer).get(device)
        arrival = step.arrival.get((tensor, device))
        if row["weight"] and step.payload["streaming"]:
            arrival = None
        if producer_here is None and arrival is None:
            continue
        finish = model.new_int_var(0, max_ticks, "")
        lifetime_end[tensor] = finish
        for reader in row["readers"]:
            is_here = step.item_on(reader).get(device)
            if is_here is not None:
                model.add(finish >= step.end[reader]).only_enforce_if(is_here)
        for alias, alias_row in enumerate(step.tensors):
            is_here = step.item_on(alias_row["producer"]).get(device)
            if alias_row["alias"] == tensor and is_here is not None and alias in lifetime_end:
                model.add(finish >= lifetime_end[alias]).only_enforce_if(is_here)
        if producer_here is not None:
            if producer in step.end:
                model.add(finish >= step.end[producer]).only_enforce_if(producer_here)
            if row["kept"]:
                model.add(finish >= step.makespan).only_enforce_if(producer_here)
            for target in step.devices:
                for source, is_sent, ticks in step.possible_sends(tensor, target):
                    if source == device and not (row["weight"] and step.payload["streaming"]):
                        begin = step.arrival[tensor, target][0]
                        model.add(finish >= begin + ticks).only_enforce_if(is_sent)
        if not row["bytes"]:
            continue
        if producer_here is not None and not row["stored"] and row["alias"] < 0:
            begin = step.start.get(producer, 0)
            intervals.append(_lifetime(step, begin + slack, finish, producer_here))
            sizes.append(row["bytes"])
        if arrival is not None:
            present = step.disjunction(
                [is_sent for _, is_sent, _ in step.possible_sends(tensor, device)]
            )
            intervals.append(_lifetime(step, arrival[0] + slack, finish, present))
            sizes.append(row["bytes"])
    for item in step.scheduled_items:
        literal = step.item_on(item).get(device)
        if literal is not None and step.payload["workspace"][item]:
            intervals.append(_lifetime(step, step.start[item] + slack, step.end[item], literal))
            sizes.append(step.payload["workspace"][item])
    if intervals:
        model.add_cumulative(intervals, sizes, free_bytes)


def _lifetime(step: StepModel, begin: Linear, finish: Linear, present: Linear) -> Any:
    """An interval from `begin` to `finish`, or an empty one if that is earlier."""
    model = step.model
    size = model.new_int_var(0, 2 * step.horizon + step.payload["slack"], "")
    model.add(size >= finish - begin).only_enforce_if(present)
    end = model.new_int_var(0, 4 * step.horizon + 2 * step.payload["slack"], "")
    return model.new_optional_interval_var(begin, size, end, present, "")
