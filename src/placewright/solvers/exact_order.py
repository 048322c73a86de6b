"""What keeps a schedule from being reached: a model of a step in, with rules 2 and 5 added, out.

Without these constraints the model may let a channel serve transfers in any order and let a device
wait for no reason, which can be faster than anything a plan can say. With them, its schedules are
those of plans, but for ties that rounding hides, and but for

- devices that share an issuer: which of them is served first is not modelled, so `at_once` would
  be wrong and is left out;
- the *ready* discipline, in which a device may not wait for a better op: that it does so is not
  modelled. Every step of that discipline is also one of the *in order* discipline (with ops in the
  order in which they ran), so the bound holds.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.solvers.exact_model import Literal, Step, Transfer


def pairs(step: Step) -> int:
    """How many pairs of transfers may meet on a channel: what `first_come` costs."""
    count: dict[int, int] = {}
    for transfer in step.transfers:
        count[transfer.channel] = count.get(transfer.channel, 0) + 1
    return sum(n * (n - 1) // 2 for n in count.values())


def first_come(step: Step) -> None:
    """Rule 5: a channel serves first what is handed over first, then by (tensor, receiver).

    A tensor is handed over when its op ends. Two tensors of one op go by number. So do those of
    what is there before the step and anything with a larger number, and those of an op and of one
    that reads it, even indirectly: the other ends later, or at the same instant in a later round.
    Otherwise the earlier end goes first. Ends differ from the true ones by at most the slack, so a
    difference of no more than that says nothing; and at equal ends the smaller number goes first
    only if its op takes time and so cannot end in a later round.
    """
    behind = step.behind
    first: dict[tuple[int, int], Literal] = {}
    by_channel: dict[int, list[Transfer]] = {}
    for transfer in step.transfers:
        by_channel.setdefault(transfer.channel, []).append(transfer)
    for transfers in by_channel.values():
        transfers.sort(key=lambda one: (one.tensor, one.target))
        for one, other in combinations(transfers, 2):
            if one.tensor == other.tensor and one.target == other.target:
                continue
            p, q = (step.tensors[t.tensor]["producer"] for t in (one, other))
            there = (one.present, other.present)
            if p == q or q in behind[p] or not step.p["turn"][p]:
                step.model.add(other.start >= one.end).only_enforce_if(*there)
                continue
            if p in behind[q]:  # a group may be numbered after one that reads it
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

    So it starts at 0, or when the op before it on its device ends, or when something arrives.
    Transfers need no such constraint: one that starts late helps nothing.
    """
    if any(issuer >= 0 for issuer in step.p["issuer"]):
        return
    behind = step.behind
    for item in step.turns:
        reasons = []
        for other in step.turns:
            if other == item or other in behind[item]:
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
