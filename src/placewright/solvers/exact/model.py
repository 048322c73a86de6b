"""The CP-SAT model of a step: the simulator's rules as constraints.

It is built where it is solved, in the child process (`worker.py`). The model of a *step*
(rules of `simulator/reference.py`):

- an op takes its device for its time (rule 1), and its issuer for the launch overhead;
- it starts after its inputs have been made, and have arrived if they were made elsewhere (rule 3);
- a tensor is sent once to each device that reads it, after its op, and takes its channel for that
  time (rules 4 and 5).

These are implied by the rules, so the model is a relaxation and its bound holds for any plan.
`order_constraints.py` adds constraints that exclude unreachable schedules, `memory.py` those of
memory; both are implied by the rules too. `window.py` is for parts of a plan.

**Rounding.** Take any step of the simulator, and round every duration down. Let all devices and
channels do the same in the same order, each activity as early as that order allows. Every time is
then the longest path of rounded durations to it: at most the true time, and less by at most the
slack. This schedule keeps the constraints above, so the model's optimum is no more than the true
step time in ticks. (This would fail if all times were rounded one by one, or durations upwards.)

**Weights that are streamed.** The model sends weights like any tensor, from time 0. A plan may
stream them instead (rule 6), so that its weights do not delay tensors. With `streaming` the
model must not be slower than those plans either: then a weight takes no channel, and only arrives
no earlier than it could; a channel's total load still includes it.

The *period* is in `period_constraints.py`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from placewright.solvers.exact.window import fixed_until_tick, keep_order, nearby_items

Literal = Any  # CP-SAT's types are known only where ortools is installed
Linear = Any


class TransferInterval(NamedTuple):
    """The transfer of one tensor to one device over one channel, from any of its devices."""

    tensor: int
    target: int
    channel: int
    present: Literal
    start: Linear
    end: Linear


class PlacementModel:
    """The devices of units and the transfers of tensors, for both objectives."""

    def __init__(self, payload: dict[str, Any]) -> None:
        from ortools.sat.python import cp_model

        self.payload, self.model = payload, cp_model.CpModel()
        self.devices = range(len(payload["capacity"]))
        self.items = range(len(payload["unit"]))
        self.tensors = payload["tensors"]
        self.reads: list[list[int]] = [[] for _ in self.items]
        """The tensors that each item reads."""
        self.readers: list[list[int]] = [[] for _ in self.items]
        """The items that wait for each item."""
        for tensor, row in enumerate(self.tensors):
            for reader in row["readers"]:
                self.reads[reader].append(tensor)
            if payload["is_scheduled"][row["producer"]]:
                self.readers[row["producer"]].extend(row["readers"])
        self.true = self.model.new_constant(1)
        self.unit_on = [self._unit_literals(unit) for unit in range(len(payload["allowed"]))]
        self._conjunctions: dict[tuple[int, int], Literal] = {}
        self._colocated: dict[tuple[int, int], Literal] = {}
        self._read_on: dict[tuple[int, int], Literal] = {}

    @cached_property
    def _descendants(self) -> list[int]:
        """For each item its descendants, one bit each."""
        descendants = [0] * len(self.items)
        for item in reversed(topological_order(self.readers)):
            for reader in self.readers[item]:
                descendants[item] |= 1 << reader | descendants[reader]
        return descendants

    def depends_on(self, item: int, other: int) -> bool:
        """Whether an item is a descendant of another."""
        return bool(self._descendants[other] >> item & 1)

    def _unit_literals(self, unit: int) -> dict[int, Literal]:
        """The devices that a unit may be on, each with the literal that it is there."""
        payload, model = self.payload, self.model
        devices = [device for device in self.devices if payload["allowed"][unit][device]]
        if payload["free"] is not None and not payload["free"][unit]:
            devices = [payload["hint"]["device"][unit]]
        if len(devices) == 1:
            return {devices[0]: self.true}
        literals = {device: model.new_bool_var(f"unit {unit} on {device}") for device in devices}
        model.add_exactly_one(literals.values())
        if payload["hint"] is not None:
            for device, literal in literals.items():
                model.add_hint(literal, payload["hint"]["device"][unit] == device)
        return literals

    def item_on(self, item: int) -> dict[int, Literal]:
        unit: int = self.payload["unit"][item]
        return self.unit_on[unit]

    def conjunction(self, first: Literal, second: Literal) -> Literal:
        """True if and only if both are."""
        if first.index in (second.index, self.true.index):
            return second
        if second.index == self.true.index:
            return first
        key = (min(first.index, second.index), max(first.index, second.index))
        if key not in self._conjunctions:
            literal = self.model.new_bool_var("")
            self.model.add_bool_and(first, second).only_enforce_if(literal)
            self.model.add_bool_or(~first, ~second, literal)
            self._conjunctions[key] = literal
        return self._conjunctions[key]

    def disjunction(self, literals: list[Literal]) -> Literal:
        """True if and only if one of them is."""
        distinct = list({literal.index: literal for literal in literals}.values())
        if len(distinct) == 1:
            return distinct[0]
        if any(literal.index == self.true.index for literal in distinct):
            return self.true
        result = self.model.new_bool_var("")
        self.model.add_bool_or(*distinct).only_enforce_if(result)
        for literal in distinct:
            self.model.add_implication(literal, result)
        return result

    def colocated(self, first: int, second: int) -> Literal | None:
        """True if two items share a device; None if they cannot."""
        units = self.payload["unit"]
        key = (min(units[first], units[second]), max(units[first], units[second]))
        if key[0] == key[1]:
            return self.true
        if key not in self._colocated:
            shared_devices = self.unit_on[key[0]].keys() & self.unit_on[key[1]].keys()
            pairs = [
                self.conjunction(self.unit_on[key[0]][device], self.unit_on[key[1]][device])
                for device in shared_devices
            ]
            self._colocated[key] = self.disjunction(pairs) if pairs else None
        return self._colocated[key]

    def read_on(self, tensor: int, device: int) -> Literal | None:
        """True if a unit other than its producer's reads it on this device; None if none can."""
        if (tensor, device) not in self._read_on:
            row, units = self.tensors[tensor], self.payload["unit"]
            reader_units = {units[reader] for reader in row["readers"]} - {units[row["producer"]]}
            candidates = [self.unit_on[unit].get(device) for unit in sorted(reader_units)]
            literals = [literal for literal in candidates if literal is not None]
            self._read_on[tensor, device] = self.disjunction(literals) if literals else None
        return self._read_on[tensor, device]

    def possible_sends(self, tensor: int, target: int) -> list[tuple[int, Literal, int]]:
        """(source, whether it sends this tensor to the target, ticks) for each possible source."""
        payload, row = self.payload, self.tensors[tensor]
        is_read = self.read_on(tensor, target)
        if is_read is None:
            return []
        return [
            (
                source,
                self.conjunction(is_source, is_read),
                row["ticks"][payload["link_class"][source][target]],
            )
            for source, is_source in self.item_on(row["producer"]).items()
            if source != target
        ]


class StepModel(PlacementModel):
    """The model of one step."""

    def __init__(self, payload: dict[str, Any]) -> None:
        super().__init__(payload)
        self.horizon = payload["horizon"]
        self.nearby = nearby_items(payload)
        self.fixed_until = fixed_until_tick(payload, self.nearby)
        self.makespan = self.model.new_int_var(0, self.horizon, "last")
        self.start: dict[int, Linear] = {}
        self.end: dict[int, Linear] = {}
        self.transfers: list[TransferInterval] = []
        self.arrival: dict[tuple[int, int], tuple[Linear, Linear]] = {}
        """(start, end) of the send of a tensor to a device."""
        self._device_load: list[list[Linear]] = [[] for _ in self.devices]
        self._channel_load: dict[int, list[Linear]] = {}
        self._add_ops()
        self._add_sends()
        self._add_waits()
        keep_order(self)
        self._add_totals()

    @property
    def scheduled_items(self) -> list[int]:
        return [item for item in self.items if self.payload["is_scheduled"][item]]

    def _add_ops(self) -> None:
        payload, model = self.payload, self.model
        fastest = [
            min(payload["op_ticks"][item][d] for d in self.item_on(item)) for item in self.items
        ]
        heads, tails = self._path_lengths(fastest)
        device_intervals: list[list[Any]] = [[] for _ in self.devices]
        issuer_intervals: dict[int, list[Any]] = {}
        for item in self.scheduled_items:
            latest_end = self.horizon - tails[item]
            earliest, latest_start = heads[item], latest_end - fastest[item]
            if self.fixed_until and payload["hint"]["begin"][item] < self.fixed_until:
                earliest = latest_start = payload["hint"]["begin"][item]
            start = model.new_int_var(earliest, latest_start, f"start {item}")
            op_ticks = payload["op_ticks"][item]
            literals = self.item_on(item)
            if len({op_ticks[d] for d in literals}) == 1:
                end = start + fastest[item]
            else:
                end = model.new_int_var(heads[item] + fastest[item], latest_end, f"end {item}")
                model.add(end == start + sum(op_ticks[d] * literals[d] for d in literals))
            self.start[item], self.end[item] = start, end
            model.add(end + tails[item] <= self.makespan)
            if payload["hint"] is not None:
                model.add_hint(start, payload["hint"]["begin"][item])
            for device, literal in literals.items():
                interval = model.new_optional_fixed_size_interval_var(
                    start, op_ticks[device], literal, ""
                )
                if item in self.nearby:
                    device_intervals[device].append(interval)
                self._device_load[device].append(op_ticks[device] * literal)
                issuer = payload["issuer"][device]
                if issuer >= 0 and op_ticks[device] > 0:
                    issuer_intervals.setdefault(issuer, []).append(
                        model.new_optional_fixed_size_interval_var(
                            start, payload["launch_ticks"][device], literal, ""
                        )
                    )
        for intervals in [*device_intervals, *issuer_intervals.values()]:
            model.add_no_overlap(intervals)

    def _path_lengths(self, fastest: list[int]) -> tuple[list[int], list[int]]:
        """The longest paths to and from each item, everything on its fastest device."""
        heads, tails = [0] * len(fastest), [0] * len(fastest)
        order = topological_order(self.readers)
        for item in order:
            for reader in self.readers[item]:
                heads[reader] = max(heads[reader], heads[item] + fastest[item])
        for item in reversed(order):
            tails[item] = max((fastest[r] + tails[r] for r in self.readers[item]), default=0)
        return heads, tails

    def _add_sends(self) -> None:
        model, payload = self.model, self.payload
        channel_intervals: dict[int, list[Any]] = {}
        for tensor, row in enumerate(self.tensors):
            producer_end = self.end.get(row["producer"], 0)
            uses_channel = not (row["weight"] and payload["streaming"])
            for target in self.devices:
                sources = self.possible_sends(tensor, target)
                if not sources:
                    continue
                start = model.new_int_var(0, self.horizon, f"send {tensor} to {target}")
                ticks = {send_ticks for _, _, send_ticks in sources}
                if len(ticks) == 1:
                    end: Linear = start + ticks.pop()
                else:
                    end = model.new_int_var(0, 2 * self.horizon, "")
                    model.add(
                        end
                        == start + sum(send_ticks * is_sent for _, is_sent, send_ticks in sources)
                    )
                if self.payload["is_scheduled"][row["producer"]]:
                    model.add(start >= producer_end)
                self.arrival[tensor, target] = (start, end)
                by_channel: dict[int, list[tuple[Literal, int]]] = {}
                for source, is_sent, send_ticks in sources:
                    channel = payload["channel"][source][target]
                    by_channel.setdefault(channel, []).append((is_sent, send_ticks))
                    self._channel_load.setdefault(channel, []).append(send_ticks * is_sent)
                    if uses_channel:
                        interval = model.new_optional_fixed_size_interval_var(
                            start, send_ticks, is_sent, ""
                        )
                        channel_intervals.setdefault(channel, []).append(interval)
                if uses_channel:
                    for channel, senders in by_channel.items():
                        present = self.disjunction([is_sent for is_sent, _ in senders])
                        self.transfers.append(
                            TransferInterval(tensor, target, channel, present, start, end)
                        )
        for intervals in channel_intervals.values():
            model.add_no_overlap(intervals)
        if payload["hint"] is not None:
            for tensor, target, begin in payload["hint"]["sent"]:
                if (tensor, target) in self.arrival:
                    model.add_hint(self.arrival[tensor, target][0], begin)
                    is_sent = self.disjunction(
                        [is_sent for _, is_sent, _ in self.possible_sends(tensor, target)]
                    )
                    if begin < self.fixed_until and is_sent.index == self.true.index:
                        model.add(self.arrival[tensor, target][0] == begin)

    def _add_waits(self) -> None:
        """Rule 3."""
        for item in self.scheduled_items:
            literals = self.item_on(item)
            for tensor in self.reads[item]:
                producer = self.tensors[tensor]["producer"]
                if producer in self.end:
                    self.model.add(self.start[item] >= self.end[producer])
                if self.payload["unit"][producer] == self.payload["unit"][item]:
                    continue
                for target, literal in literals.items():
                    for _, is_sent, ticks in self.possible_sends(tensor, target):
                        start = self.arrival[tensor, target][0]
                        constraint = self.model.add(self.start[item] >= start + ticks)
                        constraint.only_enforce_if(literal, is_sent)

    def _add_totals(self) -> None:
        """Loads, which CP-SAT's linear relaxation does not derive by itself."""
        for loads in [*self._device_load, *self._channel_load.values()]:
            if loads:
                self.model.add(sum(loads) <= self.makespan)


def topological_order(readers: list[list[int]]) -> list[int]:
    """Items such that readers come after their inputs."""
    pending = [0] * len(readers)
    for targets in readers:
        for target in targets:
            pending[target] += 1
    order = [item for item, count in enumerate(pending) if not count]
    for item in order:
        for target in readers[item]:
            pending[target] -= 1
            if not pending[target]:
                order.append(target)
    return order
