"""GO's network: GraphSAGE over units, segment-recurrent attention, and the device head.

GraphSAGE with max pooling in both directions (Hamilton et al. 2017), segment-recurrent attention
with a memory without gradients (Dai et al. 2019), and multiplication of every layer's input by a
vector of the pooled graph (GO's superposition). All of it is linear in the number of units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from placewright.policies.go.features import (
    DEVICE_WIDTH,
    GRAPH_WIDTH,
    KIND_BUCKETS,
    UNIT_WIDTH,
)
from placewright.policies.go.plan_features import CURRENT_DEVICE, PAIR_WIDTH

if TYPE_CHECKING:
    from placewright.policies.go.features import UnitFeatures

MODES = 4
"""Modes of the device head: modules, parts or units in a pass, and units for a search."""


class GraphSage(nn.Module):
    """One round of messages: the maximum over sources, and over readers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tell = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.join = nn.Linear(3 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        pooled = []
        for tell, tail, head in zip(self.tell, (source, target), (target, source), strict=True):
            messages = torch.sigmoid(tell(x))[tail]
            # A sigmoid is above 0, so 0 means that there is no neighbour.
            index = head[:, None].expand_as(messages)
            pooled.append(torch.zeros_like(x).scatter_reduce(0, index, messages, "amax"))
        joined: torch.Tensor = x + torch.relu(self.norm(self.join(torch.cat([x, *pooled], dim=1))))
        return joined


class SegmentAttention(nn.Module):
    """A segment attends to itself and to the segment before, which gets no gradient.

    Args:
        modulated: Whether its input is multiplied by a vector of the whole graph.
        attends: Whether units attend to others at all.
    """

    def __init__(
        self, width: int, heads: int, segment: int, modulated: bool, attends: bool
    ) -> None:
        super().__init__()
        self.heads, self.segment = heads, segment
        self.modulate = nn.Linear(width + GRAPH_WIDTH, width) if modulated else None
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask = nn.Linear(width, width) if attends else None
        self.show = nn.Linear(width, 2 * width) if attends else None
        self.take = nn.Linear(width, width) if attends else None
        self.think = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor, graph_vector: torch.Tensor) -> torch.Tensor:
        """Plans × units × width, given the vector of the graph."""
        if self.modulate is not None:
            x = x * (2 * torch.sigmoid(self.modulate(graph_vector)))
        if self.ask is not None:
            x = x + self._attend(self.before(x))
        output: torch.Tensor = x + self.think(self.between(x))
        return output

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        assert self.ask is not None
        assert self.show is not None
        assert self.take is not None
        plans, units, width = x.shape
        size = min(self.segment, units)
        padding = -units % size
        segments = functional.pad(x, (0, 0, 0, padding)).view(plans, -1, size, width)
        memory = functional.pad(segments[:, :-1].detach(), (0, 0, 0, 0, 1, 0))
        context = torch.cat([memory, segments], dim=2)
        count = segments.shape[1]

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.view(plans * count, y.shape[2], self.heads, -1).transpose(1, 2)

        key, value = self.show(context).chunk(2, dim=3)
        exists = torch.ones(count, 2 * size, dtype=torch.bool, device=x.device)
        exists[0, :size] = False  # there is nothing before the first segment
        if padding:
            exists[-1, -padding:] = False
        mask = exists.repeat(plans, 1)[:, None, None]
        attended = functional.scaled_dot_product_attention(
            split(self.ask(segments)), split(key), split(value), attn_mask=mask
        )
        attended = attended.transpose(1, 2).reshape(plans, -1, width)[:, :units]
        output: torch.Tensor = self.take(attended)
        return output


class Trunk(nn.Module):
    """Encodes a graph independently of plans: once for all plans and passes."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.kind = nn.Embedding(KIND_BUCKETS, 16)
        self.read = nn.Linear(UNIT_WIDTH + 16, width)
        self.norm = nn.LayerNorm(width)
        self.rounds = nn.ModuleList(GraphSage(width) for _ in range(rounds))

    def forward(self, features: UnitFeatures) -> tuple[torch.Tensor, torch.Tensor]:
        """Units × width: the vector of each; and the vector of the graph."""
        x = torch.cat([features.unit, self.kind(features.kind)], dim=1)
        x = self.norm(self.read(x))
        for layer in self.rounds:
            x = layer(x, features.edges.source, features.edges.target)
        return x, torch.cat([x.mean(dim=0), features.graph])


class DeviceHead(nn.Module):
    """The logit of a device for a unit, from the vectors of both and the features of the pair.

    A device is also described by the units on it: the mean of their vectors. This distinguishes
    equal devices of which one has the decoder and one the encoder, whatever their numbers.
    """

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.unit = nn.Linear(width, head_width)
        self.pair = nn.Linear(PAIR_WIDTH, head_width, bias=False)
        self.device = nn.Linear(DEVICE_WIDTH, head_width, bias=False)
        self.held = nn.Linear(width, head_width, bias=False)
        self.ask = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.ask.weight, std=0.01)
        self.out = nn.Parameter(torch.randn(MODES, head_width) * 0.2)
        self.linear = nn.Parameter(torch.zeros(MODES, PAIR_WIDTH))

    def forward(
        self, x: torch.Tensor, pair_features: torch.Tensor, device_features: torch.Tensor, mode: int
    ) -> torch.Tensor:
        """Plans × units × devices."""
        occupancy = pair_features[..., CURRENT_DEVICE].transpose(1, 2)  # plans × devices × units
        content = occupancy @ x / (occupancy.sum(dim=2, keepdim=True) + 1)
        device_vectors = self.device(device_features) + self.held(content)
        joined = self.unit(x)[:, :, None] + self.pair(pair_features) + device_vectors[:, None]
        affinity = self.ask(x) @ content.transpose(1, 2) / x.shape[2] ** 0.5
        logits: torch.Tensor = (
            torch.relu(joined) @ self.out[mode] + pair_features @ self.linear[mode]
        )
        return logits + affinity
