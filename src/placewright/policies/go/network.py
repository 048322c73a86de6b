"""GO's network: units of a graph in, a vector for each out, and from it and a plan what to do.

GraphSAGE with max pooling both ways (Hamilton et al. 2017), segment-recurrent attention with a
memory that no gradient enters (Dai et al. 2019), and multiplication of every layer's input by a
vector that the pooled graph gives (GO's superposition). All of it is linear in units.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from placewright.policies.go.features import (
    DEVICE,
    GRAPH,
    KINDS,
    UNIT,
)
from placewright.policies.go.plan_features import HERE, PAIR

MODES = 4
"""What is asked for: modules, parts of them, or units in a pass, or units by a search."""


class Sage(nn.Module):
    """One round of messages: the largest of what sources say, and of what readers say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tell = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.join = nn.Linear(3 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        heard = []
        for tell, tail, head in zip(self.tell, (source, target), (target, source), strict=True):
            said = torch.sigmoid(tell(x))[tail]
            # A sigmoid is above 0, which therefore stands for no neighbour at all.
            place = head[:, None].expand_as(said)
            heard.append(torch.zeros_like(x).scatter_reduce(0, place, said, "amax"))
        joined: torch.Tensor = x + torch.relu(self.norm(self.join(torch.cat([x, *heard], dim=1))))
        return joined


class Attention(nn.Module):
    """A segment looks at itself and at the segment before, into which no gradient goes.

    Args:
        modulated: Whether its input is multiplied by a vector from the whole graph.
        attends: Whether it looks at others at all, or is a layer for each unit alone.
    """

    def __init__(
        self, width: int, heads: int, segment: int, modulated: bool, attends: bool
    ) -> None:
        super().__init__()
        self.heads, self.segment = heads, segment
        self.modulate = nn.Linear(width + GRAPH, width) if modulated else None
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask = nn.Linear(width, width) if attends else None
        self.show = nn.Linear(width, 2 * width) if attends else None
        self.take = nn.Linear(width, width) if attends else None
        self.think = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Plans × units × width, and what the pooled graph says."""
        if self.modulate is not None:
            x = x * (2 * torch.sigmoid(self.modulate(whole)))
        if self.ask is not None:
            x = x + self._look(self.before(x))
        thought: torch.Tensor = x + self.think(self.between(x))
        return thought

    def _look(self, x: torch.Tensor) -> torch.Tensor:
        assert self.ask is not None
        assert self.show is not None
        assert self.take is not None
        plans, units, width = x.shape
        size = min(self.segment, units)
        lack = -units % size
        segments = functional.pad(x, (0, 0, 0, lack)).view(plans, -1, size, width)
        memory = functional.pad(segments[:, :-1].detach(), (0, 0, 0, 0, 1, 0))
        both = torch.cat([memory, segments], dim=2)
        count = segments.shape[1]

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.view(plans * count, y.shape[2], self.heads, -1).transpose(1, 2)

        key, value = self.show(both).chunk(2, dim=3)
        exists = torch.ones(count, 2 * size, dtype=torch.bool, device=x.device)
        exists[0, :size] = False  # before the first segment there is nothing
        if lack:
            exists[-1, -lack:] = False
        mask = exists.repeat(plans, 1)[:, None, None]
        seen = functional.scaled_dot_product_attention(
            split(self.ask(segments)), split(key), split(value), attn_mask=mask
        )
        seen = seen.transpose(1, 2).reshape(plans, -1, width)[:, :units]
        taken: torch.Tensor = self.take(seen)
        return taken


class Trunk(nn.Module):
    """What a graph says of its units, whatever the plan: read once for all plans and passes."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.kind = nn.Embedding(KINDS, 16)
        self.read = nn.Linear(UNIT + 16, width)
        self.norm = nn.LayerNorm(width)
        self.rounds = nn.ModuleList(Sage(width) for _ in range(rounds))

    def forward(self, seen: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Units × width, and what the whole graph says."""
        x = torch.cat([seen["told"], self.kind(seen["kind"])], dim=1)
        x = self.norm(self.read(x))
        for each in self.rounds:
            x = each(x, seen["source"], seen["target"])
        return x, torch.cat([x.mean(dim=0), seen["whole"]])


class DeviceHead(nn.Module):
    """A unit's vector, a device, and what they mean for each other in, a logit out.

    A device is also what is on it: the mean of those units' vectors. Equal devices of which one
    holds the decoder and one the encoder are told apart by that, whatever their numbers.
    """

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.unit = nn.Linear(width, wide)
        self.pair = nn.Linear(PAIR, wide, bias=False)
        self.device = nn.Linear(DEVICE, wide, bias=False)
        self.held = nn.Linear(width, wide, bias=False)
        self.ask = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.ask.weight, std=0.01)
        self.out = nn.Parameter(torch.randn(MODES, wide) * 0.2)
        self.linear = nn.Parameter(torch.zeros(MODES, PAIR))

    def forward(
        self, x: torch.Tensor, pairs: torch.Tensor, each: torch.Tensor, mode: int
    ) -> torch.Tensor:
        """Plans × units × devices."""
        here = pairs[..., HERE].transpose(1, 2)  # plans × devices × units
        content = here @ x / (here.sum(dim=2, keepdim=True) + 1)
        told = self.device(each) + self.held(content)
        joined = self.unit(x)[:, :, None] + self.pair(pairs) + told[:, None]
        akin = self.ask(x) @ content.transpose(1, 2) / x.shape[2] ** 0.5
        logits: torch.Tensor = torch.relu(joined) @ self.out[mode] + pairs @ self.linear[mode]
        return logits + akin
