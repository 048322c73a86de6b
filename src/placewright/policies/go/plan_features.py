"""Features of units on devices under a plan: transfers, loads, memory and times.

All of it is linear in units and edges: sums over neighbours, loads of devices over all and over
the stretch of the order around a unit, bytes held along the order. The list scheduler's estimates
of `pairs` would know start times too, but take one op after the other.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from placewright.policies.go.features import WINDOWS

_UNTIMED_WIDTH = 13 + len(WINDOWS)
PAIR_WIDTH = _UNTIMED_WIDTH + 6
"""How many numbers tell a unit on a device, given a plan."""
CURRENT_DEVICE = 0
"""Which of them says that the plan has it there."""
_MAX_RATIO = 4.0


UnitTimes = tuple[torch.Tensor, torch.Tensor]
"""Plans × units: when each starts and ends, in terms of a mean unit's seconds."""


@torch.no_grad()
def pair_features(
    features: dict[str, torch.Tensor], plan: torch.Tensor, times: UnitTimes | None = None
) -> torch.Tensor:
    """Plans × units × devices × numbers, for plans × units.

    Args:
        times: When units run under each plan; without them what depends on it is 0.
    """
    seconds, scale, legal = features["seconds"], features["own"], features["legal"]
    units, devices = seconds.shape
    count = len(plan)
    occupancy = functional.one_hot(plan, devices).to(seconds.dtype)  # plans × units × devices
    flat = occupancy.permute(1, 0, 2).reshape(units, -1)
    input_seconds, output_seconds = _transfers(features, flat, count)
    neighbour_weight = _sparse_product(features["near0"], flat) + _sparse_product(
        features["near0t"], flat
    )
    degree = neighbour_weight.view(units, count, devices).sum(dim=2, keepdim=True).clamp(min=1e-9)
    neighbour_share = neighbour_weight.view(units, count, devices) / degree
    two_hop_share = neighbour_share.reshape(units, -1)
    two_hop_share = _sparse_product(features["near0"], two_hop_share) + _sparse_product(
        features["near0t"], two_hop_share
    )
    two_hop_share = (two_hop_share.view(units, count, devices) / degree).permute(1, 0, 2)
    load = (occupancy * seconds).sum(dim=1, keepdim=True)
    other_load = load - occupancy * seconds  # on each device without this unit
    load_ratio = (other_load + seconds) / features["share"].clamp(min=1e-9) - 1
    used_bytes, unit_bytes = _memory_use(features, occupancy)
    capacity = features["capacity"]
    memory_ratio = (used_bytes - occupancy * unit_bytes[:, None] + unit_bytes[:, None]) / capacity
    columns = [
        occupancy,
        _above_best(input_seconds, legal).clamp(max=20.0).log1p(),
        (_above_best(input_seconds, legal) / scale[:, None]).clamp(max=_MAX_RATIO),
        _above_best(output_seconds, legal).clamp(max=20.0).log1p(),
        (_above_best(output_seconds, legal) / scale[:, None]).clamp(max=_MAX_RATIO),
        neighbour_share.permute(1, 0, 2),
        two_hop_share,
        load_ratio.clamp(-1.0, _MAX_RATIO),
        features["slow"].clamp(max=_MAX_RATIO).expand_as(occupancy),
        (memory_ratio - 0.5).clamp(0.0, 1.0),
        ((memory_ratio - 1.0).clamp(min=0.0) * 10 + (memory_ratio > 1.0)).clamp(max=_MAX_RATIO),
        (load == 0).to(occupancy.dtype).expand_as(occupancy),
        (
            input_seconds
            + output_seconds
            - ((input_seconds + output_seconds) * occupancy).sum(dim=2, keepdim=True)
        ).clamp(-_MAX_RATIO, _MAX_RATIO),
        *_window_loads(features, occupancy),
    ]
    if times is None:
        columns += [torch.zeros_like(occupancy)] * (PAIR_WIDTH - _UNTIMED_WIDTH)
    else:
        columns += _time_features(features, plan, occupancy, times)
    return torch.stack(columns, dim=3)


def _sparse_product(edges: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.sparse.mm(edges, values)
    return product


def _above_best(values: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    """How much more than on the best device."""
    return values - values.masked_fill(~legal, float("inf")).amin(dim=2, keepdim=True)


def _transfers(
    features: dict[str, torch.Tensor], flat: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plans × units × devices: seconds on links for what a unit would read, and would send."""
    units = len(flat)
    input_seconds: torch.Tensor = torch.zeros(1, device=flat.device)
    output_seconds: torch.Tensor = torch.zeros(1, device=flat.device)
    for link_class, mask in enumerate(features["between"]):
        inputs = _sparse_product(features[f"into{link_class}"], flat).view(units, count, -1)
        outputs = _sparse_product(features[f"into{link_class}t"], flat).view(units, count, -1)
        input_seconds = input_seconds + inputs @ mask
        output_seconds = output_seconds + outputs @ mask.T
    return input_seconds.permute(1, 0, 2), output_seconds.permute(1, 0, 2)


def _memory_use(
    features: dict[str, torch.Tensor], occupancy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plans × 1 × devices: bytes at the worst moment of the order; units: a unit's own."""
    output_bytes = occupancy * features["held"][:, None]
    change = output_bytes.clone()
    change[:, 1:] -= torch.zeros_like(output_bytes).index_add_(1, features["last"], output_bytes)[
        :, :-1
    ]
    peak = change.cumsum(dim=1).amax(dim=1, keepdim=True)
    resident = (occupancy * features["resident"][:, None]).sum(dim=1, keepdim=True)
    return peak + resident, features["resident"] + features["held"]


def _window_loads(features: dict[str, torch.Tensor], occupancy: torch.Tensor) -> list[torch.Tensor]:
    """Plans × units × devices for each window: others' work there against an equal share of it."""
    work = occupancy * features["seconds"]
    cumulative = functional.pad(work[:, features["order"]].cumsum(dim=1), (0, 0, 1, 0))
    devices = occupancy.shape[2]
    loads = []
    for window in range(len(WINDOWS)):
        inside = (
            cumulative[:, features["high"][window]] - cumulative[:, features["low"][window]] - work
        )
        loads.append(
            (inside * devices / features["span"][window][:, None].clamp(min=1e-9)).clamp(
                max=_MAX_RATIO
            )
        )
    return loads


def _time_features(
    features: dict[str, torch.Tensor], plan: torch.Tensor, occupancy: torch.Tensor, times: UnitTimes
) -> list[torch.Tensor]:
    """Plans × units × devices each: what a move would mean in time.

    How much later a unit's inputs would be there than it starts now, how long before its readers
    start its outputs would be with them, how long the device is idle around then, and when that is.
    """
    start, end = times
    devices = occupancy.shape[2]
    source, target = features["source"], features["target"]
    total = end.amax(dim=1, keepdim=True).clamp(min=1e-9)
    link = features["link"]  # devices × devices: which class; the last one takes no time
    transfer_seconds = features["sent_and_none"]  # classes + 1 × edges
    edge = torch.arange(len(source), device=plan.device)
    # Plans × edges × devices: a tensor from where its source is, and to where its reader is.
    arrivals = end[:, source, None] + transfer_seconds[link[plan[:, source]], edge[None, :, None]]
    index = target[None, :, None].expand_as(arrivals)
    unset = torch.full_like(occupancy, -1.0)
    ready = unset.scatter_reduce(1, index, arrivals, "amax")
    ready = torch.where(ready < 0, start[:, :, None], ready)
    deadlines = (
        start[:, target, None] - transfer_seconds[link.T[plan[:, target]], edge[None, :, None]]
    )
    index = source[None, :, None].expand_as(deadlines)
    needed = torch.full_like(occupancy, float("inf")).scatter_reduce(1, index, deadlines, "amin")
    needed = torch.where(needed.isinf(), total[:, :, None].expand_as(occupancy), needed)
    delay = ready - start[:, :, None]
    slack = needed - (torch.maximum(ready, start[:, :, None]) + features["seconds"])
    order = start.argsort(dim=1)
    sorted_start = start.gather(1, order)
    work = (occupancy * features["seconds"]).gather(1, order[:, :, None].expand(-1, -1, devices))
    cumulative = functional.pad(work.cumsum(dim=1), (0, 0, 1, 0))
    columns = [
        _signed_log(delay),
        _signed_log(slack),
        (start / total)[:, :, None].expand_as(occupancy),
        ((end - start) / total).clamp(max=1.0)[:, :, None].expand_as(occupancy),
    ]
    for window_share in (0.02, 0.1):
        half_width = window_share * total
        low = torch.searchsorted(sorted_start, (start - half_width).contiguous())
        high = torch.searchsorted(sorted_start, (end + half_width).contiguous())
        bounds = [
            cumulative.gather(1, position[:, :, None].expand(-1, -1, devices))
            for position in (low, high)
        ]
        span = (end - start + 2 * half_width).clamp(min=1e-9)[:, :, None]
        columns.append(((bounds[1] - bounds[0]) / span).clamp(max=2.0))
    return columns


def _signed_log(seconds: torch.Tensor) -> torch.Tensor:
    """Times of either sign, on a scale that small and large ones fit on."""
    return seconds.sign() * seconds.abs().clamp(max=1e4).log1p() / 2
