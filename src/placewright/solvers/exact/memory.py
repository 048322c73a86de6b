"""Memory in the CP-SAT model: a model in, with what rule 8 demands of memory added, out.

All of it is a relaxation: a plan that fits keeps these constraints. Whether a plan of the model
fits is for the simulator to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.solvers.exact.model import Linear, Placed, Step

_BYPASSED = 200  # items above which tensors that bypass an op are left out


def scarce(placed: Placed) -> list[int]:
    """The devices that could be overfull if all that may be there were there at once."""
    p, found = placed.p, []
    for device in placed.devices:
        units = sum(p["resident"][u] for u, on in enumerate(placed.unit_on) if device in on)
        most = units + sum(row["bytes"] for row in placed.tensors) + max(p["workspace"])
        if most > p["capacity"][device]:
            found.append(device)
    return found


def at_any_time(placed: Placed, device: int) -> Linear:
    """Resident bytes fit, with what must be there while any op runs. Returns the bytes left.

    That is what the op itself needs and tensors that bypass it: made or read on this device by an
    op that it depends on, and read on this device by one that depends on it. All graph outputs
    that are made here are here once the last op has started.
    """
    p, model = placed.p, placed.model
    left = model.new_int_var(0, p["capacity"][device], f"free on {device}")
    resident = [
        size * placed.unit_on[unit][device]
        for unit, size in enumerate(p["resident"])
        if size and device in placed.unit_on[unit]
    ]
    model.add(left == p["capacity"][device] - sum(resident))
    own = [row for row in placed.tensors if not row["stored"] and row["alias"] < 0]
    kept = [
        row["bytes"] * placed.on(row["producer"])[device]
        for row in own
        if row["kept"] and device in placed.on(row["producer"])
    ]
    if kept:
        model.add(sum(kept) <= left)
    bypassed = own if len(placed.items) <= _BYPASSED else []
    for item in placed.items:
        literal = placed.on(item).get(device)
        if literal is None or not p["turn"][item]:
            continue
        passing = []
        for row in bypassed:
            passing += _bypass(placed, row, item, device)
        if passing or p["need"][item]:
            model.add(left >= p["need"][item] + sum(passing)).only_enforce_if(literal)
    return left


def _bypass(placed: Placed, row: dict[str, Any], item: int, device: int) -> list[Linear]:
    """The bytes of a tensor that bypasses an item on a device, if it can."""
    producer, readers = row["producer"], row["readers"]
    if item == producer or item in readers or not row["bytes"]:
        return []
    there = placed.waits(item, producer) or not placed.p["turn"][producer]
    earlier = [producer] * there + [reader for reader in readers if placed.waits(item, reader)]
    later = [reader for reader in readers if placed.waits(reader, item)]
    before, after = (
        [placed.on(other)[device] for other in others if device in placed.on(other)]
        for others in (earlier, later)
    )
    if not before or not after:
        return []
    return [row["bytes"] * placed.both(placed.any_of(before), placed.any_of(after))]


def over_time(step: Step, device: int, left: Linear) -> None:
    """What is on a device at one time fits beside the resident bytes.

    An output is there from its op's start to the end of that op, of its last reader there and of
    its last send; a copy from its send's start to the end of its last reader there. The model's
    times are below the true ones, by at most the slack, so a life in the model that begins by the
    slack later lies within the true one.
    """
    model, slack = step.model, step.p["slack"]
    most = 2 * step.horizon + slack
    parts, sizes = [], []
    lives: dict[int, Linear] = {}
    # Backwards, so that what aliases a tensor comes before it.
    for tensor, row in reversed(list(enumerate(step.tensors))):
        producer = row["producer"]
        made_here = step.on(producer).get(device)
        sent_here = step.arrival.get((tensor, device))
        if row["weight"] and step.p["streaming"]:
            sent_here = None
        if made_here is None and sent_here is None:
            continue
        until = model.new_int_var(0, most, "")
        lives[tensor] = until
        for reader in row["readers"]:
            here = step.on(reader).get(device)
            if here is not None:
                model.add(until >= step.end[reader]).only_enforce_if(here)
        for alias, other in enumerate(step.tensors):
            here = step.on(other["producer"]).get(device)
            if other["alias"] == tensor and here is not None and alias in lives:
                model.add(until >= lives[alias]).only_enforce_if(here)
        if made_here is not None:
            if producer in step.end:
                model.add(until >= step.end[producer]).only_enforce_if(made_here)
            if row["kept"]:
                model.add(until >= step.last).only_enforce_if(made_here)
            for target in step.devices:
                for source, sent, ticks in step.sends(tensor, target):
                    if source == device and not (row["weight"] and step.p["streaming"]):
                        begin = step.arrival[tensor, target][0]
                        model.add(until >= begin + ticks).only_enforce_if(sent)
        if not row["bytes"]:
            continue
        if made_here is not None and not row["stored"] and row["alias"] < 0:
            begin = step.start.get(producer, 0)
            parts.append(_life(step, begin + slack, until, made_here))
            sizes.append(row["bytes"])
        if sent_here is not None:
            present = step.any_of([sent for _, sent, _ in step.sends(tensor, device)])
            parts.append(_life(step, sent_here[0] + slack, until, present))
            sizes.append(row["bytes"])
    for item in step.turns:
        literal = step.on(item).get(device)
        if literal is not None and step.p["workspace"][item]:
            parts.append(_life(step, step.start[item] + slack, step.end[item], literal))
            sizes.append(step.p["workspace"][item])
    if parts:
        model.add_cumulative(parts, sizes, left)


def _life(step: Step, begin: Linear, until: Linear, present: Linear) -> Any:
    """An interval from `begin` to `until`, or an empty one if that is earlier."""
    model = step.model
    size = model.new_int_var(0, 2 * step.horizon + step.p["slack"], "")
    model.add(size >= until - begin).only_enforce_if(present)
    end = model.new_int_var(0, 4 * step.horizon + 2 * step.p["slack"], "")
    return model.new_optional_interval_var(begin, size, end, present, "")
