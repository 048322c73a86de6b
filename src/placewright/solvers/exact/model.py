"""The CP-SAT model: a problem in whole numbers in, a model of the simulator's rules out.

It is built where it is solved, in the child process (`worker.py`). The model of a *step*
(rules of `simulator/reference.py`):

- an op takes its device for its time (rule 1), and its issuer for the launch overhead;
- it starts after all it reads has been made, and has arrived if it was made elsewhere (rule 3);
- a tensor is sent once to each device that reads it, after its op, and takes its channel for that
  time (rules 4 and 5).

These say no more than the rules, so the model is a relaxation and its bound holds for any plan.
`order.py` adds what keeps schedules from being reached, `memory.py` what memory
demands, again no more than the rules do. `window.py` is for parts of a plan alone.

**Rounding.** Take any step of the simulator, and round every duration down. Let all devices and
channels do the same in the same order, each thing as early as that order lets it. Every time is
then the longest way of rounded durations to it: at most the true time, and less by at most the
slack. This schedule keeps the constraints above, so the model's optimum is no more than the true
step time in ticks. (This would fail if all times were rounded one by one, or durations upwards.)

**Weights that are streamed.** The model sends weights like any tensor, from time 0. A plan may
stream them instead (rule 6), so that its weights do not hold up tensors. With `streaming` the
model must not be faster than those plans either: then a weight takes no channel, and only arrives
no earlier than it could; a channel's total still counts it.

The *period* is in `period.py`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from placewright.solvers.exact.window import keep_order, near, settled

Literal = Any  # CP-SAT's own types are known where ortools is installed only
Linear = Any


class Transfer(NamedTuple):
    """One tensor to one device over one channel, from whichever of the channel's devices."""

    tensor: int
    target: int
    channel: int
    present: Literal
    start: Linear
    end: Linear


class Placed:
    """Which unit is where, and which tensor has to go where: what both objectives need."""

    def __init__(self, p: dict[str, Any]) -> None:
        from ortools.sat.python import cp_model

        self.p, self.model = p, cp_model.CpModel()
        self.devices = range(len(p["capacity"]))
        self.items = range(len(p["unit"]))
        self.tensors = p["tensors"]
        self.reads: list[list[int]] = [[] for _ in self.items]
        """The tensors that each item reads."""
        self.readers: list[list[int]] = [[] for _ in self.items]
        """The items that wait for each item."""
        for tensor, row in enumerate(self.tensors):
            for reader in row["readers"]:
                self.reads[reader].append(tensor)
            if p["turn"][row["producer"]]:
                self.readers[row["producer"]].extend(row["readers"])
        self.true = self.model.new_constant(1)
        self.unit_on = [self._unit(unit) for unit in range(len(p["allowed"]))]
        self._both: dict[tuple[int, int], Literal] = {}
        self._together: dict[tuple[int, int], Literal] = {}
        self._read_on: dict[tuple[int, int], Literal] = {}

    @cached_property
    def _behind(self) -> list[int]:
        """For each item those that read it, even indirectly, one bit each."""
        found = [0] * len(self.items)
        for item in reversed(topological(self.readers)):
            for reader in self.readers[item]:
                found[item] |= 1 << reader | found[reader]
        return found

    def waits(self, item: int, other: int) -> bool:
        """Whether an item reads another, even indirectly."""
        return bool(self._behind[other] >> item & 1)

    def _unit(self, unit: int) -> dict[int, Literal]:
        """The devices that a unit may be on, each with what says that it is there."""
        p, model = self.p, self.model
        places = [device for device in self.devices if p["allowed"][unit][device]]
        if p["free"] is not None and not p["free"][unit]:
            places = [p["hint"]["device"][unit]]
        if len(places) == 1:
            return {places[0]: self.true}
        on = {device: model.new_bool_var(f"unit {unit} on {device}") for device in places}
        model.add_exactly_one(on.values())
        if p["hint"] is not None:
            for device, literal in on.items():
                model.add_hint(literal, p["hint"]["device"][unit] == device)
        return on

    def on(self, item: int) -> dict[int, Literal]:
        unit: int = self.p["unit"][item]
        return self.unit_on[unit]

    def both(self, one: Literal, other: Literal) -> Literal:
        """True if and only if both are."""
        if one.index in (other.index, self.true.index):
            return other
        if other.index == self.true.index:
            return one
        key = (min(one.index, other.index), max(one.index, other.index))
        if key not in self._both:
            literal = self.model.new_bool_var("")
            self.model.add_bool_and(one, other).only_enforce_if(literal)
            self.model.add_bool_or(~one, ~other, literal)
            self._both[key] = literal
        return self._both[key]

    def any_of(self, literals: list[Literal]) -> Literal:
        """True if and only if one of them is."""
        distinct = list({literal.index: literal for literal in literals}.values())
        if len(distinct) == 1:
            return distinct[0]
        if any(literal.index == self.true.index for literal in distinct):
            return self.true
        found = self.model.new_bool_var("")
        self.model.add_bool_or(*distinct).only_enforce_if(found)
        for literal in distinct:
            self.model.add_implication(literal, found)
        return found

    def together(self, one: int, other: int) -> Literal | None:
        """True if two items share a device; None if they cannot."""
        units = self.p["unit"]
        key = (min(units[one], units[other]), max(units[one], units[other]))
        if key[0] == key[1]:
            return self.true
        if key not in self._together:
            shared = self.unit_on[key[0]].keys() & self.unit_on[key[1]].keys()
            pairs = [self.both(self.unit_on[key[0]][d], self.unit_on[key[1]][d]) for d in shared]
            self._together[key] = self.any_of(pairs) if pairs else None
        return self._together[key]

    def read_on(self, tensor: int, device: int) -> Literal | None:
        """True if a unit other than its producer's reads it on this device; None if none can."""
        if (tensor, device) not in self._read_on:
            row, units = self.tensors[tensor], self.p["unit"]
            others = {units[reader] for reader in row["readers"]} - {units[row["producer"]]}
            found = [self.unit_on[unit].get(device) for unit in sorted(others)]
            literals = [literal for literal in found if literal is not None]
            self._read_on[tensor, device] = self.any_of(literals) if literals else None
        return self._read_on[tensor, device]

    def sends(self, tensor: int, target: int) -> list[tuple[int, Literal, int]]:
        """(source, whether it sends this tensor to the target, ticks) for each possible source."""
        p, row = self.p, self.tensors[tensor]
        read = self.read_on(tensor, target)
        if read is None:
            return []
        return [
            (source, self.both(there, read), row["ticks"][p["link_class"][source][target]])
            for source, there in self.on(row["producer"]).items()
            if source != target
        ]


class Step(Placed):
    """The model of one step."""

    def __init__(self, p: dict[str, Any]) -> None:
        super().__init__(p)
        self.horizon = p["horizon"]
        self.near = near(p)
        self.settled = settled(p, self.near)
        self.last = self.model.new_int_var(0, self.horizon, "last")
        self.start: dict[int, Linear] = {}
        self.end: dict[int, Linear] = {}
        self.transfers: list[Transfer] = []
        self.arrival: dict[tuple[int, int], tuple[Linear, Linear]] = {}
        """(start, end) of the send of a tensor to a device."""
        self._load: list[list[Linear]] = [[] for _ in self.devices]
        self._wire: dict[int, list[Linear]] = {}
        self._ops()
        self._sends()
        self._waits()
        keep_order(self)
        self._totals()

    @property
    def turns(self) -> list[int]:
        return [item for item in self.items if self.p["turn"][item]]

    def _ops(self) -> None:
        p, model = self.p, self.model
        fastest = [min(p["takes"][item][d] for d in self.on(item)) for item in self.items]
        heads, tails = self._ways(fastest)
        running: list[list[Any]] = [[] for _ in self.devices]
        issuing: dict[int, list[Any]] = {}
        for item in self.turns:
            latest = self.horizon - tails[item]
            earliest, last = heads[item], latest - fastest[item]
            if self.settled and p["hint"]["begin"][item] < self.settled:
                earliest = last = p["hint"]["begin"][item]
            start = model.new_int_var(earliest, last, f"start {item}")
            takes = p["takes"][item]
            on = self.on(item)
            if len({takes[d] for d in on}) == 1:
                end = start + fastest[item]
            else:
                end = model.new_int_var(heads[item] + fastest[item], latest, f"end {item}")
                model.add(end == start + sum(takes[d] * on[d] for d in on))
            self.start[item], self.end[item] = start, end
            model.add(end + tails[item] <= self.last)
            if p["hint"] is not None:
                model.add_hint(start, p["hint"]["begin"][item])
            for device, literal in on.items():
                part = model.new_optional_fixed_size_interval_var(start, takes[device], literal, "")
                if item in self.near:
                    running[device].append(part)
                self._load[device].append(takes[device] * literal)
                issuer = p["issuer"][device]
                if issuer >= 0 and takes[device] > 0:
                    issuing.setdefault(issuer, []).append(
                        model.new_optional_fixed_size_interval_var(
                            start, p["launch"][device], literal, ""
                        )
                    )
        for parts in [*running, *issuing.values()]:
            model.add_no_overlap(parts)

    def _ways(self, fastest: list[int]) -> tuple[list[int], list[int]]:
        """The longest ways to and from each item, everything on its fastest device."""
        heads, tails = [0] * len(fastest), [0] * len(fastest)
        order = topological(self.readers)
        for item in order:
            for reader in self.readers[item]:
                heads[reader] = max(heads[reader], heads[item] + fastest[item])
        for item in reversed(order):
            tails[item] = max((fastest[r] + tails[r] for r in self.readers[item]), default=0)
        return heads, tails

    def _sends(self) -> None:
        model, p = self.model, self.p
        busy: dict[int, list[Any]] = {}
        for tensor, row in enumerate(self.tensors):
            made = self.end.get(row["producer"], 0)
            on_wire = not (row["weight"] and p["streaming"])
            for target in self.devices:
                sends = self.sends(tensor, target)
                if not sends:
                    continue
                start = model.new_int_var(0, self.horizon, f"send {tensor} to {target}")
                ticks = {t for _, _, t in sends}
                if len(ticks) == 1:
                    end: Linear = start + ticks.pop()
                else:
                    end = model.new_int_var(0, 2 * self.horizon, "")
                    model.add(end == start + sum(t * sent for _, sent, t in sends))
                if self.p["turn"][row["producer"]]:
                    model.add(start >= made)
                self.arrival[tensor, target] = (start, end)
                by_channel: dict[int, list[tuple[Literal, int]]] = {}
                for source, sent, t in sends:
                    channel = p["channel"][source][target]
                    by_channel.setdefault(channel, []).append((sent, t))
                    self._wire.setdefault(channel, []).append(t * sent)
                    if on_wire:
                        part = model.new_optional_fixed_size_interval_var(start, t, sent, "")
                        busy.setdefault(channel, []).append(part)
                if on_wire:
                    for channel, ways in by_channel.items():
                        present = self.any_of([sent for sent, _ in ways])
                        self.transfers.append(
                            Transfer(tensor, target, channel, present, start, end)
                        )
        for parts in busy.values():
            model.add_no_overlap(parts)
        if p["hint"] is not None:
            for tensor, target, begin in p["hint"]["sent"]:
                if (tensor, target) in self.arrival:
                    model.add_hint(self.arrival[tensor, target][0], begin)
                    sent = self.any_of([sent for _, sent, _ in self.sends(tensor, target)])
                    if begin < self.settled and sent.index == self.true.index:
                        model.add(self.arrival[tensor, target][0] == begin)

    def _waits(self) -> None:
        """Rule 3."""
        for item in self.turns:
            here = self.on(item)
            for tensor in self.reads[item]:
                producer = self.tensors[tensor]["producer"]
                if producer in self.end:
                    self.model.add(self.start[item] >= self.end[producer])
                if self.p["unit"][producer] == self.p["unit"][item]:
                    continue
                for target, literal in here.items():
                    for _, sent, ticks in self.sends(tensor, target):
                        start = self.arrival[tensor, target][0]
                        wait = self.model.add(self.start[item] >= start + ticks)
                        wait.only_enforce_if(literal, sent)

    def _totals(self) -> None:
        """Loads, which CP-SAT's linear relaxation does not see by itself."""
        for parts in [*self._load, *self._wire.values()]:
            if parts:
                self.model.add(sum(parts) <= self.last)


def topological(readers: list[list[int]]) -> list[int]:
    """Items so that readers come after what they read."""
    waiting = [0] * len(readers)
    for targets in readers:
        for target in targets:
            waiting[target] += 1
    order = [item for item, count in enumerate(waiting) if not count]
    for item in order:
        for target in readers[item]:
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    return order
