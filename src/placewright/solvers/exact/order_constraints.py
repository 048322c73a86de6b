"""What keeps a schedule from being reached: a model of a step in, with rules 2 and 5 added, out.

Without these constraints the model may let a channel serve transfers in any order and let a device
wait for no reason, which can be faster than anything a plan can say. With all of them its schedules
are those of plans, but for ties that rounding hides and for devices that share an issuer: which of
them is served first is not modelled, so what would be wrong for them is left out.

Every constraint is one that all steps of the simulator keep, whatever is rounded, so that the
model's bound holds with any of them.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from placewright.solvers.exact.window import always

if TYPE_CHECKING:
    from placewright.solvers.exact.model import Linear, Literal, Step, Transfer


def pairs(step: Step) -> int:
    """How many pairs of transfers may meet on a channel: what `first_come` costs."""
    count: dict[int, int] = {}
    for transfer in step.transfers:
        count[transfer.channel] = count.get(transfer.channel, 0) + 1
    fixed: dict[int, int] = {}
    for transfer in step.transfers:
        if step.p["free"] is not None and always(step, transfer):
            fixed[transfer.channel] = fixed.get(transfer.channel, 0) + 1
    return sum(n * (n - 1) // 2 for n in count.values()) - sum(
        n * (n - 1) // 2 for n in fixed.values()
    )


def first_come(step: Step) -> None:
    """Rule 5: a channel serves first what is handed over first, then by (tensor, receiver).

    A tensor is handed over when its op ends. Two tensors of one op go by number. So do those of
    what is there before the step and anything with a larger number, and those of an op and of one
    that reads it, even indirectly: the other ends later, or at the same instant in a later round.
    Otherwise the earlier end goes first. Ends differ from the true ones by at most the slack, so a
    difference of no more than that says nothing; and at equal ends the smaller number goes first
    only if its op takes time and so cannot end in a later round.
    """
    first: dict[tuple[int, int], Literal] = {}
    by_channel: dict[int, list[Transfer]] = {}
    for transfer in step.transfers:
        by_channel.setdefault(transfer.channel, []).append(transfer)
    for transfers in by_channel.values():
        transfers.sort(key=lambda one: (one.tensor, one.target))
        for one, other in combinations(transfers, 2):
            if one.tensor == other.tensor and one.target == other.target:
                continue
            if step.p["free"] is not None and always(step, one) and always(step, other):
                continue  # these keep their order
            p, q = (step.tensors[t.tensor]["producer"] for t in (one, other))
            there = (one.present, other.present)
            if p == q or step.waits(q, p) or not step.p["turn"][p]:
                step.model.add(other.start >= one.end).only_enforce_if(*there)
                continue
            if step.waits(p, q):  # a group may be numbered after one that reads it
                step.model.add(one.start >= other.end).only_enforce_if(*there)
                continue
            if (p, q) not in first:
                first[p, q] = _ends_first(step, p, q)
            literal = first[p, q]
            step.model.add(other.start >= one.end).only_enforce_if(literal, *there)
            step.model.add(one.start >= other.end).only_enforce_if(~literal, *there)


def _ends_first(step: Step, p: int, q: int) -> Literal:
    """True if p's tensors are handed over before q's, where p's have smaller numbers."""
    model, slack = step.model, step.p["slack"]
    literal = model.new_bool_var("")
    if q not in step.end:  # there from the start: only what ends at once can get ahead of it
        model.add(step.end[p] <= 0).only_enforce_if(literal)
    else:
        strictly = 1 if not slack and not step.p["quick"][p] else 0
        model.add(step.end[p] <= step.end[q] + slack).only_enforce_if(literal)
        model.add(step.end[q] + strictly <= step.end[p] + slack).only_enforce_if(~literal)
    return literal


def at_once(step: Step) -> None:
    """Rule 2: an op starts as soon as its device and all it reads let it.

    So it starts at 0, or when the op before it on its device ends, or when something arrives. Both
    disciplines do so.
    """
    if any(issuer >= 0 for issuer in step.p["issuer"]):
        return
    for item in step.turns:
        reasons = []
        for other in step.turns:
            if other == item or step.waits(other, item):
                continue
            together = step.together(item, other)
            if together is not None:
                reason = step.model.new_bool_var("")
                step.model.add_implication(reason, together)
                step.model.add(step.start[item] == step.end[other]).only_enforce_if(reason)
                reasons.append(reason)
        for tensor in step.reads[item]:
            for device, here in step.on(item).items():
                for _, sent, ticks in step.sends(tensor, device):
                    reason = step.model.new_bool_var("")
                    step.model.add_bool_and(here, sent).only_enforce_if(reason)
                    begin = step.arrival[tensor, device][0]
                    step.model.add(step.start[item] == begin + ticks).only_enforce_if(reason)
                    reasons.append(reason)
        begins = step.model.new_bool_var("")
        step.model.add(step.start[item] <= 0).only_enforce_if(begins)
        step.model.add_bool_or(*reasons, begins)


def sent_at_once(step: Step) -> None:
    """Rule 5: a transfer starts as soon as it is handed over and its channel lets it.

    A late one can help the model, though it costs time: an op that waits for it ends later, which
    may let another op's tensor go first. These constraints are many and seldom needed. Where some
    weights are not on the channels (`streaming`) they would be wrong, as those may hold it up.
    """
    if step.p["streaming"] and any(row["weight"] for row in step.tensors):
        return
    by_channel: dict[int, list[Transfer]] = {}
    for transfer in step.transfers:
        by_channel.setdefault(transfer.channel, []).append(transfer)
    for transfers in by_channel.values():
        for one in transfers:
            producer = step.tensors[one.tensor]["producer"]
            reason = step.model.new_bool_var("")
            step.model.add(one.start <= step.end.get(producer, 0)).only_enforce_if(reason)
            reasons = [reason, ~one.present]
            for other in transfers:
                if other.tensor == one.tensor and other.target == one.target:
                    continue
                if step.waits(step.tensors[other.tensor]["producer"], producer):
                    continue
                reason = step.model.new_bool_var("")
                step.model.add_implication(reason, other.present)
                step.model.add(one.start == other.end).only_enforce_if(reason)
                reasons.append(reason)
            step.model.add_bool_or(*reasons)


def never_idle(step: Step) -> None:
    """Rule 2, *ready*: a device that is idle takes a ready op and does not wait for a better one.

    If a device was idle before an op, all ops that run there later were not ready until that op
    started. Idle times that are no longer than the slack may not be there at all.
    """
    if any(issuer >= 0 for issuer in step.p["issuer"]):
        return
    model, slack = step.model, step.p["slack"]
    for item in step.turns:
        others = [(o, step.together(item, o)) for o in step.turns if o != item]
        beside = [(other, literal) for other, literal in others if literal is not None]
        busy = [model.new_bool_var("") for _ in range(len(beside) + 1)]
        model.add(step.start[item] <= 0).only_enforce_if(busy[-1])
        for reason, (other, literal) in zip(busy, beside, strict=False):
            model.add_implication(reason, literal)
            model.add(step.start[item] <= step.end[other] + slack).only_enforce_if(reason)
            model.add(step.end[other] <= step.start[item]).only_enforce_if(reason)
        for other, literal in beside:
            if step.waits(other, item):
                continue  # waits for the item itself
            earlier = model.new_bool_var("")
            model.add(step.start[other] <= step.start[item]).only_enforce_if(earlier)
            late = _arrives_after(step, other, step.start[item] - slack)
            model.add_bool_or(*busy, ~literal, earlier, *late)


def _arrives_after(step: Step, item: int, moment: Linear) -> list[Literal]:
    """Literals, one of which can hold only if something that an item reads comes then or later."""
    found = []
    for tensor in step.reads[item]:
        producer = step.tensors[tensor]["producer"]
        if producer in step.end:
            literal = step.model.new_bool_var("")
            step.model.add(step.end[producer] >= moment).only_enforce_if(literal)
            found.append(literal)
        for device, here in step.on(item).items():
            for _, sent, ticks in step.sends(tensor, device):
                literal = step.model.new_bool_var("")
                step.model.add_bool_and(here, sent).only_enforce_if(literal)
                begin = step.arrival[tensor, device][0]
                step.model.add(begin + ticks >= moment).only_enforce_if(literal)
                found.append(literal)
    return found
