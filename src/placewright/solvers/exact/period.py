"""The period in CP-SAT: a model in, the largest load as `simulator/period.py` has it out.

Streamed weights are sent once for each reader and are never cheaper than sent ones, so the bound
holds for plans that stream as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.solvers.exact.model import Linear, Literal, Placed


def period(placed: Placed) -> Linear:
    """A variable that is no less than any device's and any channel's load."""
    p, model = placed.p, placed.model
    last = model.new_int_var(0, p["most"], "period")
    busy: list[list[Linear]] = [[] for _ in placed.devices]
    wire: dict[int, list[Linear]] = {}
    for item in placed.items:
        for device, literal in placed.on(item).items():
            busy[device].append(p["takes"][item][device] * literal)
    for tensor in range(len(placed.tensors)):
        if p["overlap"]:
            _occupy(placed, tensor, wire)
        else:
            _pay(placed, tensor, busy)
    for parts in [*busy, *wire.values()]:
        if parts:
            model.add(sum(parts) <= last)
    return last


def _occupy(placed: Placed, tensor: int, wire: dict[int, list[Linear]]) -> None:
    for target in placed.devices:
        for source, sent, ticks in placed.sends(tensor, target):
            wire.setdefault(placed.p["channel"][source][target], []).append(ticks * sent)


def _pay(placed: Placed, tensor: int, busy: list[list[Linear]]) -> None:
    """Without overlap a receiver pays each send, a sender the longest; hosts pay nothing."""
    host = placed.p["host"]
    paid: dict[int, list[tuple[Literal, int]]] = {}
    for target in placed.devices:
        for source, sent, ticks in placed.sends(tensor, target):
            paid.setdefault(source, []).append((sent, ticks))
            if not host[target]:
                busy[target].append(ticks * sent)
    for source, sends in paid.items():
        if host[source]:
            continue
        longest = placed.model.new_int_var(0, max(ticks for _, ticks in sends), "")
        for sent, ticks in sends:
            placed.model.add(longest >= ticks * sent)
        busy[source].append(longest)
