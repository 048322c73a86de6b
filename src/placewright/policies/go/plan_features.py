"""Features of units on devices under a plan: transfers, loads, memory and times.

All of it is linear in units and edges: sums over neighbours, loads of devices over the whole order
and over windows around a unit, bytes in use along the order. The list-schedule estimates of
`transfer.features` have start times too, but take one op after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from placewright.policies.go.features import WINDOWS

if TYPE_CHECKING:
    from placewright.policies.go.features import MemoryFeatures, UnitFeatures
    from placewright.policies.go.observation import FeatureTensors

_UNTIMED_WIDTH = 13 + len(WINDOWS)
PAIR_WIDTH = _UNTIMED_WIDTH + 6
"""The number of features of a unit on a device under a plan."""
CURRENT_DEVICE = 0
"""The feature that says whether the plan has the unit there."""
_MAX_RATIO = 4.0


UnitTimes = tuple[torch.Tensor, torch.Tensor]
"""Plans × units: when each starts and ends, relative to a mean unit's seconds."""


@torch.no_grad()
def pair_features(
    tensors: FeatureTensors, plan: torch.Tensor, times: UnitTimes | None = None
) -> torch.Tensor:
    """Plans × units × devices × numbers, for plans × units.

    Args:
        times: When units run under each plan; without them the features that need them are 0.
    """
    features, compute = tensors.features, tensors.features.compute
    seconds, scale, legal = compute.seconds, compute.scale, features.legal
    units, devices = seconds.shape
    count = len(plan)
    occupancy = functional.one_hot(plan, devices).to(seconds.dtype)  # plans × units × devices
    flat = occupancy.permute(1, 0, 2).reshape(units, -1)
    input_seconds, output_seconds = _transfers(tensors, flat, count)
    into, out_of = tensors.neighbours
    neighbour_weight = _sparse_product(into, flat) + _sparse_product(out_of, flat)
    degree = neighbour_weight.view(units, count, devices).sum(dim=2, keepdim=True).clamp(min=1e-9)
    neighbour_share = neighbour_weight.view(units, count, devices) / degree
    two_hop_share = neighbour_share.reshape(units, -1)
    two_hop_share = _sparse_product(into, two_hop_share) + _sparse_product(out_of, two_hop_share)
    two_hop_share = (two_hop_share.view(units, count, devices) / degree).permute(1, 0, 2)
    load = (occupancy * seconds).sum(dim=1, keepdim=True)
    other_load = load - occupancy * seconds  # on each device without this unit
    load_ratio = (other_load + seconds) / compute.fair_share.clamp(min=1e-9) - 1
    used_bytes, unit_bytes = _memory_use(features.memory, occupancy)
    capacity = features.memory.capacity
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
        compute.slowdown.clamp(max=_MAX_RATIO).expand_as(occupancy),
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
    """The difference from the best legal device."""
    return values - values.masked_fill(~legal, float("inf")).amin(dim=2, keepdim=True)


def _transfers(
    tensors: FeatureTensors, flat: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plans × units × devices: seconds of the transfers to a unit there, and from it."""
    units = len(flat)
    input_seconds: torch.Tensor = torch.zeros(1, device=flat.device)
    output_seconds: torch.Tensor = torch.zeros(1, device=flat.device)
    class_masks = tensors.features.edges.class_masks
    for (into, out_of), mask in zip(tensors.transfers, class_masks, strict=True):
        inputs = _sparse_product(into, flat).view(units, count, -1)
        outputs = _sparse_product(out_of, flat).view(units, count, -1)
        input_seconds = input_seconds + inputs @ mask
        output_seconds = output_seconds + outputs @ mask.T
    return input_seconds.permute(1, 0, 2), output_seconds.permute(1, 0, 2)


def _memory_use(
    memory: MemoryFeatures, occupancy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plans × 1 × devices: the peak over the order, in bytes; units: the bytes of each."""
    output_bytes = occupancy * memory.output[:, None]
    change = output_bytes.clone()
    freed = torch.zeros_like(output_bytes).index_add_(1, memory.last_reader, output_bytes)
    change[:, 1:] -= freed[:, :-1]
    peak = change.cumsum(dim=1).amax(dim=1, keepdim=True)
    resident = (occupancy * memory.resident[:, None]).sum(dim=1, keepdim=True)
    return peak + resident, memory.resident + memory.output


def _window_loads(features: UnitFeatures, occupancy: torch.Tensor) -> list[torch.Tensor]:
    """Plans × units × devices for each window: other units' work relative to an equal share."""
    windows, work = features.windows, occupancy * features.compute.seconds
    cumulative = functional.pad(work[:, windows.order].cumsum(dim=1), (0, 0, 1, 0))
    devices = occupancy.shape[2]
    loads = []
    for window in range(len(WINDOWS)):
        low, high = windows.low[window], windows.high[window]
        inside = cumulative[:, high] - cumulative[:, low] - work
        equal_share = windows.span[window][:, None].clamp(min=1e-9)
        loads.append((inside * devices / equal_share).clamp(max=_MAX_RATIO))
    return loads


def _time_features(
    features: UnitFeatures, plan: torch.Tensor, occupancy: torch.Tensor, times: UnitTimes
) -> list[torch.Tensor]:
    """Plans × units × devices each: what a move would mean in time.

    How much later than the unit's present start its inputs would arrive, how long before its
    readers start its outputs would arrive there, when the unit runs, and the load around then.
    """
    start, end = times
    devices = occupancy.shape[2]
    edges, seconds = features.edges, features.compute.seconds
    source, target = edges.source, edges.target
    total = end.amax(dim=1, keepdim=True).clamp(min=1e-9)
    link = edges.link_class  # devices × devices; the last class takes no time
    transfer_seconds = edges.seconds_or_none  # classes + 1 × edges
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
    slack = needed - (torch.maximum(ready, start[:, :, None]) + seconds)
    order = start.argsort(dim=1)
    sorted_start = start.gather(1, order)
    work = (occupancy * seconds).gather(1, order[:, :, None].expand(-1, -1, devices))
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
    """Times of either sign on a logarithmic scale."""
    return seconds.sign() * seconds.abs().clamp(max=1e4).log1p() / 2
