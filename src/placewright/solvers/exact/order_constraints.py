"""Order constraints of the CP-SAT model: rules 2 and 5, which keep schedules reachable.

Without these constraints the model may let a channel serve transfers in any order and let a device
wait for no reason, which can be faster than any plan. With all of them its schedules are those of
plans, except for ties that rounding hides and for devices that share an issuer: which of them is
served first is not modelled, so constraints that would be wrong for them are omitted.

All steps of the simulator keep every constraint, whatever is rounded, so that the model's bound
holds with any of them.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from placewright.solvers.exact.window import is_certain

if TYPE_CHECKING:
    from placewright.solvers.exact.model import Linear, Literal, StepModel, TransferInterval


def transfer_pairs(step: StepModel) -> int:
    """The number of pairs of transfers that may meet on a channel: the cost of their order."""
    per_channel: dict[int, int] = {}
    for transfer in step.transfers:
        per_channel[transfer.channel] = per_channel.get(transfer.channel, 0) + 1
    fixed_per_channel: dict[int, int] = {}
    for transfer in step.transfers:
        if step.payload["free"] is not None and is_certain(step, transfer):
            fixed_per_channel[transfer.channel] = fixed_per_channel.get(transfer.channel, 0) + 1
    return sum(n * (n - 1) // 2 for n in per_channel.values()) - sum(
        n * (n - 1) // 2 for n in fixed_per_channel.values()
    )


def add_channel_order(step: StepModel) -> None:
    """Rule 5: a channel serves transfers in order of request, then by (tensor, receiver).

    A transfer is requested when the tensor's op ends. Two tensors of one op go by number. So do
    tensors of unscheduled ops and any with larger numbers, and those of an op and of its
    descendants: these end later, or at the same instant in a later round. Otherwise the earlier
    end goes first. Ends differ from the true ones by at most the slack, so a difference up to the
    slack decides nothing; and at equal ends the smaller number goes first only if its op takes time
    and so cannot end in a later round.
    """
    ends_first: dict[tuple[int, int], Literal] = {}
    by_channel: dict[int, list[TransferInterval]] = {}
    for transfer in step.transfers:
        by_channel.setdefault(transfer.channel, []).append(transfer)
    for transfers in by_channel.values():
        transfers.sort(key=lambda earlier: (earlier.tensor, earlier.target))
        for earlier, later in combinations(transfers, 2):
            if earlier.tensor == later.tensor and earlier.target == later.target:
                continue
            if (
                step.payload["free"] is not None
                and is_certain(step, earlier)
                and is_certain(step, later)
            ):
                continue  # these keep their order
            producer, other_producer = (
                step.tensors[t.tensor]["producer"] for t in (earlier, later)
            )
            both_present = (earlier.present, later.present)
            if (
                producer == other_producer
                or step.depends_on(other_producer, producer)
                or not step.payload["is_scheduled"][producer]
            ):
                step.model.add(later.start >= earlier.end).only_enforce_if(*both_present)
                continue
            if step.depends_on(
                producer, other_producer
            ):  # a group may be numbered after one that reads it
                step.model.add(earlier.start >= later.end).only_enforce_if(*both_present)
                continue
            if (producer, other_producer) not in ends_first:
                ends_first[producer, other_producer] = _ends_first(step, producer, other_producer)
            literal = ends_first[producer, other_producer]
            step.model.add(later.start >= earlier.end).only_enforce_if(literal, *both_present)
            step.model.add(earlier.start >= later.end).only_enforce_if(~literal, *both_present)


def _ends_first(step: StepModel, producer: int, other: int) -> Literal:
    """True if p's tensors are requested before q's, where p's have smaller numbers."""
    model, slack = step.model, step.payload["slack"]
    literal = model.new_bool_var("")
    if other not in step.end:  # unscheduled: only ops that end at 0 can get ahead of it
        model.add(step.end[producer] <= 0).only_enforce_if(literal)
    else:
        strictly = 1 if not slack and not step.payload["may_take_no_time"][producer] else 0
        model.add(step.end[producer] <= step.end[other] + slack).only_enforce_if(literal)
        model.add(step.end[other] + strictly <= step.end[producer] + slack).only_enforce_if(
            ~literal
        )
    return literal


def add_prompt_starts(step: StepModel) -> None:
    """Rule 2: an op starts as soon as its device is free and its inputs have arrived.

    So it starts at 0, or when the op before it on its device ends, or when an input arrives. This
    holds for both disciplines.
    """
    if any(issuer >= 0 for issuer in step.payload["issuer"]):
        return
    for item in step.scheduled_items:
        reasons = []
        for other in step.scheduled_items:
            if other == item or step.depends_on(other, item):
                continue
            is_colocated = step.colocated(item, other)
            if is_colocated is not None:
                reason = step.model.new_bool_var("")
                step.model.add_implication(reason, is_colocated)
                step.model.add(step.start[item] == step.end[other]).only_enforce_if(reason)
                reasons.append(reason)
        for tensor in step.reads[item]:
            for device, is_here in step.item_on(item).items():
                for _, is_sent, ticks in step.possible_sends(tensor, device):
                    reason = step.model.new_bool_var("")
                    step.model.add_bool_and(is_here, is_sent).only_enforce_if(reason)
                    begin = step.arrival[tensor, device][0]
                    step.model.add(step.start[item] == begin + ticks).only_enforce_if(reason)
                    reasons.append(reason)
        starts_at_zero = step.model.new_bool_var("")
        step.model.add(step.start[item] <= 0).only_enforce_if(starts_at_zero)
        step.model.add_bool_or(*reasons, starts_at_zero)


def add_prompt_sends(step: StepModel) -> None:
    """Rule 5: a transfer starts as soon as it is requested and its channel is free.

    A late transfer can help the model, though it costs time: an op that waits for it ends later,
    which may let another op's tensor go first. These constraints are many and rarely needed. Where
    some weights are not on the channels (`streaming`) they would be wrong, as weights may delay it.
    """
    if step.payload["streaming"] and any(row["weight"] for row in step.tensors):
        return
    by_channel: dict[int, list[TransferInterval]] = {}
    for transfer in step.transfers:
        by_channel.setdefault(transfer.channel, []).append(transfer)
    for transfers in by_channel.values():
        for current in transfers:
            producer = step.tensors[current.tensor]["producer"]
            reason = step.model.new_bool_var("")
            step.model.add(current.start <= step.end.get(producer, 0)).only_enforce_if(reason)
            reasons = [reason, ~current.present]
            for other in transfers:
                if other.tensor == current.tensor and other.target == current.target:
                    continue
                if step.depends_on(step.tensors[other.tensor]["producer"], producer):
                    continue
                reason = step.model.new_bool_var("")
                step.model.add_implication(reason, other.present)
                step.model.add(current.start == other.end).only_enforce_if(reason)
                reasons.append(reason)
            step.model.add_bool_or(*reasons)


def add_no_idling(step: StepModel) -> None:
    """Rule 2, *ready*: an idle device takes a ready op and does not wait for a better one.

    If a device was idle before an op, all ops that run there later were not ready until that op
    started. Idle times up to the slack may be due to rounding.
    """
    if any(issuer >= 0 for issuer in step.payload["issuer"]):
        return
    model, slack = step.model, step.payload["slack"]
    for item in step.scheduled_items:
        others = [(o, step.colocated(item, o)) for o in step.scheduled_items if o != item]
        colocatable = [(other, literal) for other, literal in others if literal is not None]
        busy_literals = [model.new_bool_var("") for _ in range(len(colocatable) + 1)]
        model.add(step.start[item] <= 0).only_enforce_if(busy_literals[-1])
        for reason, (other, literal) in zip(busy_literals, colocatable, strict=False):
            model.add_implication(reason, literal)
            model.add(step.start[item] <= step.end[other] + slack).only_enforce_if(reason)
            model.add(step.end[other] <= step.start[item]).only_enforce_if(reason)
        for other, literal in colocatable:
            if step.depends_on(other, item):
                continue  # waits for the item itself
            earlier = model.new_bool_var("")
            model.add(step.start[other] <= step.start[item]).only_enforce_if(earlier)
            late_arrivals = _late_arrivals(step, other, step.start[item] - slack)
            model.add_bool_or(*busy_literals, ~literal, earlier, *late_arrivals)


def _late_arrivals(step: StepModel, item: int, moment: Linear) -> list[Literal]:
    """Literals, each true only if some input of an item arrives then or later."""
    literals = []
    for tensor in step.reads[item]:
        producer = step.tensors[tensor]["producer"]
        if producer in step.end:
            literal = step.model.new_bool_var("")
            step.model.add(step.end[producer] >= moment).only_enforce_if(literal)
            literals.append(literal)
        for device, is_here in step.item_on(item).items():
            for _, is_sent, ticks in step.possible_sends(tensor, device):
                literal = step.model.new_bool_var("")
                step.model.add_bool_and(is_here, is_sent).only_enforce_if(literal)
                begin = step.arrival[tensor, device][0]
                step.model.add(begin + ticks >= moment).only_enforce_if(literal)
                literals.append(literal)
    return literals
