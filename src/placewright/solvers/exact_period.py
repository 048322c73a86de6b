"""The CP-SAT model of a period: loads of devices and channels, as `simulator/period.py` adds them.

Streamed weights are sent once for each reader and are never cheaper than sent ones, so the bound
holds for plans that stream as well.
"""

from __future__ import annotations

from typing import Any

from placewright.solvers.exact_model import Linear, Placed


class Period(Placed):
    """The model of the time between steps."""

    def __init__(self, p: dict[str, Any]) -> None:
        super().__init__(p)
        self.last = self.model.new_int_var(0, p["horizon"], "last")
        busy: list[list[Linear]] = [[] for _ in self.devices]
        wire: dict[int, list[Linear]] = {}
        for item in self.items:
            for device, literal in self.on(item).items():
                busy[device].append(p["takes"][item][device] * literal)
        for tensor in range(len(self.tensors)):
            for channel, ticks in self._ways(tensor, busy):
                wire.setdefault(channel, []).append(ticks)
        for parts in [*busy, *(wire.values() if p["overlap"] else ())]:
            if parts:
                self.model.add(sum(parts) <= self.last)
        self.model.minimize(self.last)

    def _ways(self, tensor: int, busy: list[list[Linear]]) -> list[tuple[int, Linear]]:
        """(channel, ticks) of a tensor's sends; without overlap devices pay, each once."""
        p, model = self.p, self.model
        found: list[tuple[int, Linear]] = []
        paid: dict[int, list[tuple[Any, int]]] = {}
        for target in self.devices:
            for source, sent, ticks in self.sends(tensor, target):
                found.append((p["channel"][source][target], ticks * sent))
                if not p["overlap"]:
                    paid.setdefault(source, []).append((sent, ticks))
                    if not p["host"][target]:
                        busy[target].append(ticks * sent)
        for source, sends in paid.items():
            if p["host"][source]:
                continue
            if len(sends) == 1:
                busy[source].append(sends[0][1] * sends[0][0])
                continue
            longest = model.new_int_var(0, max(ticks for _, ticks in sends), "")
            for sent, ticks in sends:
                model.add(longest >= ticks * sent)
            busy[source].append(longest)
        return found
