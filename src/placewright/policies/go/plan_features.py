"""What a plan means for GO: plans in, what each unit would meet on each device out.

All of it is linear in units and edges: sums over neighbours, loads of devices over all and over
the stretch of the order around a unit, bytes held along the order. The list scheduler's estimates
of `pairs` would know start times too, but take one op after the other.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from placewright.policies.go.features import WINDOWS

_UNTIMED = 13 + len(WINDOWS)
PAIR = _UNTIMED + 6
"""How many numbers tell a unit on a device, given a plan."""
HERE = 0
"""Which of them says that the plan has it there."""
_FAR = 4.0


Times = tuple[torch.Tensor, torch.Tensor]
"""Plans × units: when each starts and ends, in terms of a mean unit's seconds."""


@torch.no_grad()
def pairs(
    seen: dict[str, torch.Tensor], plan: torch.Tensor, times: Times | None = None
) -> torch.Tensor:
    """Plans × units × devices × numbers, for plans × units.

    Args:
        times: When units run under each plan; without them what depends on it is 0.
    """
    seconds, own, legal = seen["seconds"], seen["own"], seen["legal"]
    units, devices = seconds.shape
    count = len(plan)
    here = functional.one_hot(plan, devices).to(seconds.dtype)  # plans × units × devices
    flat = here.permute(1, 0, 2).reshape(units, -1)
    into, out = _transfers(seen, flat, count)
    near = _along(seen["near0"], flat) + _along(seen["near0t"], flat)
    degree = near.view(units, count, devices).sum(dim=2, keepdim=True).clamp(min=1e-9)
    share = near.view(units, count, devices) / degree
    twice = share.reshape(units, -1)
    twice = _along(seen["near0"], twice) + _along(seen["near0t"], twice)
    twice = (twice.view(units, count, devices) / degree).permute(1, 0, 2)
    load = (here * seconds).sum(dim=1, keepdim=True)
    rest = load - here * seconds  # on each device without this unit
    after = (rest + seconds) / seen["share"].clamp(min=1e-9) - 1
    used, own_bytes = _memory(seen, here)
    room = seen["capacity"]
    full = (used - here * own_bytes[:, None] + own_bytes[:, None]) / room
    columns = [
        here,
        _least(into, legal).clamp(max=20.0).log1p(),
        (_least(into, legal) / own[:, None]).clamp(max=_FAR),
        _least(out, legal).clamp(max=20.0).log1p(),
        (_least(out, legal) / own[:, None]).clamp(max=_FAR),
        share.permute(1, 0, 2),
        twice,
        after.clamp(-1.0, _FAR),
        seen["slow"].clamp(max=_FAR).expand_as(here),
        (full - 0.5).clamp(0.0, 1.0),
        ((full - 1.0).clamp(min=0.0) * 10 + (full > 1.0)).clamp(max=_FAR),
        (load == 0).to(here.dtype).expand_as(here),
        (into + out - ((into + out) * here).sum(dim=2, keepdim=True)).clamp(-_FAR, _FAR),
        *_stretches(seen, here),
    ]
    if times is None:
        columns += [torch.zeros_like(here)] * (PAIR - _UNTIMED)
    else:
        columns += _moments(seen, plan, here, times)
    return torch.stack(columns, dim=3)


def _along(edges: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.sparse.mm(edges, values)
    return found


def _least(values: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    """How much more than on the best device."""
    return values - values.masked_fill(~legal, float("inf")).amin(dim=2, keepdim=True)


def _transfers(
    seen: dict[str, torch.Tensor], flat: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plans × units × devices: seconds on links for what a unit would read, and would send."""
    units = len(flat)
    into: torch.Tensor = torch.zeros(1, device=flat.device)
    out: torch.Tensor = torch.zeros(1, device=flat.device)
    for at, between in enumerate(seen["between"]):
        read = _along(seen[f"into{at}"], flat).view(units, count, -1)
        send = _along(seen[f"into{at}t"], flat).view(units, count, -1)
        into = into + read @ between
        out = out + send @ between.T
    return into.permute(1, 0, 2), out.permute(1, 0, 2)


def _memory(seen: dict[str, torch.Tensor], here: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Plans × 1 × devices: bytes at the worst moment of the order; units: a unit's own."""
    held = here * seen["held"][:, None]
    change = held.clone()
    change[:, 1:] -= torch.zeros_like(held).index_add_(1, seen["last"], held)[:, :-1]
    peak = change.cumsum(dim=1).amax(dim=1, keepdim=True)
    stay = (here * seen["resident"][:, None]).sum(dim=1, keepdim=True)
    return peak + stay, seen["resident"] + seen["held"]


def _stretches(seen: dict[str, torch.Tensor], here: torch.Tensor) -> list[torch.Tensor]:
    """Plans × units × devices for each window: others' work there against an equal share of it."""
    work = here * seen["seconds"]
    sums = functional.pad(work[:, seen["order"]].cumsum(dim=1), (0, 0, 1, 0))
    devices = here.shape[2]
    found = []
    for at in range(len(WINDOWS)):
        inside = sums[:, seen["high"][at]] - sums[:, seen["low"][at]] - work
        found.append((inside * devices / seen["span"][at][:, None].clamp(min=1e-9)).clamp(max=_FAR))
    return found


def _moments(
    seen: dict[str, torch.Tensor], plan: torch.Tensor, here: torch.Tensor, times: Times
) -> list[torch.Tensor]:
    """Plans × units × devices each: what a move would mean in time.

    How much later a unit's inputs would be there than it starts now, how long before its readers
    start its outputs would be with them, how long the device is idle around then, and when that is.
    """
    start, end = times
    devices = here.shape[2]
    source, target = seen["source"], seen["target"]
    total = end.amax(dim=1, keepdim=True).clamp(min=1e-9)
    link = seen["link"]  # devices × devices: which class; the last one takes no time
    sent = seen["sent_and_none"]  # classes + 1 × edges
    edge = torch.arange(len(source), device=plan.device)
    # Plans × edges × devices: a tensor from where its source is, and to where its reader is.
    come = end[:, source, None] + sent[link[plan[:, source]], edge[None, :, None]]
    index = target[None, :, None].expand_as(come)
    nothing = torch.full_like(here, -1.0)
    ready = nothing.scatter_reduce(1, index, come, "amax")
    ready = torch.where(ready < 0, start[:, :, None], ready)
    reach = start[:, target, None] - sent[link.T[plan[:, target]], edge[None, :, None]]
    index = source[None, :, None].expand_as(reach)
    needed = torch.full_like(here, float("inf")).scatter_reduce(1, index, reach, "amin")
    needed = torch.where(needed.isinf(), total[:, :, None].expand_as(here), needed)
    late = ready - start[:, :, None]
    spare = needed - (torch.maximum(ready, start[:, :, None]) + seen["seconds"])
    order = start.argsort(dim=1)
    begun = start.gather(1, order)
    work = (here * seen["seconds"]).gather(1, order[:, :, None].expand(-1, -1, devices))
    sums = functional.pad(work.cumsum(dim=1), (0, 0, 1, 0))
    found = [
        _signed(late),
        _signed(spare),
        (start / total)[:, :, None].expand_as(here),
        ((end - start) / total).clamp(max=1.0)[:, :, None].expand_as(here),
    ]
    for share in (0.02, 0.1):
        half = share * total
        low = torch.searchsorted(begun, (start - half).contiguous())
        high = torch.searchsorted(begun, (end + half).contiguous())
        inside = [sums.gather(1, at[:, :, None].expand(-1, -1, devices)) for at in (low, high)]
        span = (end - start + 2 * half).clamp(min=1e-9)[:, :, None]
        found.append(((inside[1] - inside[0]) / span).clamp(max=2.0))
    return found


def _signed(seconds: torch.Tensor) -> torch.Tensor:
    """Times of either sign, on a scale that small and large ones fit on."""
    return seconds.sign() * seconds.abs().clamp(max=1e4).log1p() / 2
