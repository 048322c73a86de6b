"""Hierarchical: a grouper puts ops into groups, a placer puts groups on devices; both learn.

Mirhoseini, Goldie et al. 2018, "A Hierarchical Model for Device Placement". What TensorFlow's open
code got wrong is not copied: we score the groups and devices that were executed, with the group
features they were made from; types and shapes have columns of their own; an op knows all its
neighbours. Where our graphs know less or more: bytes stand for shapes, a place in the graph for the
paper's breadth-first index. All features are scaled, as raw ones saturate the grouper at once.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from placewright.policies import grouping as made
from placewright.policies.exploration_noise import shared
from placewright.policies.hierarchical.units import Units
from placewright.policies.policy import Episodes, Head, Scores, one_plan_each
from placewright.policies.seq2seq import Placer, chosen, even_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.problem import Problem

NAME = "hierarchical"


@dataclass(frozen=True)
class Shape:
    """What the sizes of the network follow from.

    Args:
        groups: How many groups the grouper chooses from.
        placements: Episodes that share one grouping: the paper's k; its m is then 1.
        hidden: Size of the placer's states; each direction of the encoder has half.
        grouper: Size of the grouper's hidden layer.
        linear: Whether that layer has neither bias nor non-linearity, as in the open code.
        types: Size of a type's learned vector.
        neighbours: Readers and sources of an op that it is told of, each.
        both: Whether groups are told apart as sources and readers (the open code) or not.
        shared: Whether noise is shared by groups that look alike, of at least one nat, and left
            away from the grouper.
        patches: Whether half of that noise moves a few alike groups and leaves the others alone.
        locality: How strongly ops begin in a group of their own, in nats; 0 in the paper, where
            they begin anywhere.
        home: What that group is: that of their `stretch` of the graph, or that of a grouping rule
            such as `colocation`.
    """

    groups: int = 64
    placements: int = 4
    hidden: int = 128
    grouper: int = 64
    linear: bool = False
    types: int = 20
    outputs: int = 6
    neighbours: int = 6
    both: bool = False
    temperature: float = 1.0
    tanh: float = 0.0
    shared: bool = False
    patches: bool = False
    locality: float = 0.0
    home: str = "stretch"

    def build(self, problem: Problem, seed: int = 0) -> Hierarchical:
        """A fresh policy for a problem; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Hierarchical(self, made.kinds_of(problem), problem.arrays.devices)


@dataclass(frozen=True, eq=False)
class _Seen:
    """A problem as the networks see it."""

    units: Units
    legal: torch.Tensor  # groups × devices
    kind: torch.Tensor  # units
    rest: torch.Tensor  # units × numbers
    near: torch.Tensor  # units × groups: 0 for its own group, less for others
    sizes: torch.Tensor  # units × outputs
    source: torch.Tensor  # edges between units
    target: torch.Tensor


class Hierarchical(nn.Module):
    """Two networks trained as one: ops to groups, all at once; groups to devices, one by one."""

    name = NAME

    def __init__(self, shape: Shape, kinds: tuple[str, ...], devices: int) -> None:
        super().__init__()
        self.shape, self.kinds, self.devices = shape, kinds, devices
        self.kind = nn.Embedding(len(kinds), shape.types)
        width = shape.types + shape.outputs + 2 * shape.neighbours
        self.inner = nn.Linear(width, shape.grouper, bias=not shape.linear)
        self.outer = nn.Linear(shape.grouper, shape.groups, bias=not shape.linear)
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
        self.placer = Placer(
            len(kinds) + shape.outputs + shape.groups * (2 if shape.both else 1),
            shape.hidden,
            devices,
            True,
            shape.temperature,
            shape.tanh,
            1.0 if shape.shared else 0.0,
        )
        self._seen: WeakKeyDictionary[Problem, _Seen] = WeakKeyDictionary()

    def config(self) -> dict[str, Any]:
        return {"shape": asdict(self.shape), "kinds": list(self.kinds), "devices": self.devices}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Hierarchical:
        return cls(Shape(**data["shape"]), tuple(data["kinds"]), data["devices"])

    @torch.no_grad()
    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        seen, where, groups = self._see(problem), self.placer.go.device, self.shape.groups
        rng = np.random.default_rng(seed)
        owner = np.arange(count) // self.shape.placements
        rows = int(owner[-1]) + 1
        logits = self._grouper(seen).expand(rows, -1, -1)
        luck = self._numbers(np.zeros, (rows, len(seen.units), groups))
        actions: dict[str, NDArray[Any]] = {"of": owner}
        if noise > 0 and not self.shape.shared:
            typical = logits.square().mean(dim=(1, 2), keepdim=True).sqrt()
            added = typical * noise * self._numbers(rng.standard_normal, luck.shape)
            actions["group_added"], logits = added.cpu().numpy(), logits + added
        if not greedy:
            luck = self._numbers(rng.gumbel, luck.shape)
        group = (logits + luck).argmax(dim=2)
        group_sure = chosen(logits, group)[0]
        size = (count, groups, self.devices)
        shake = None
        if noise > 0 and self.shape.shared:
            shake = noise * self._shared(rng, seen, group.cpu().numpy(), owner)
        elif noise > 0:
            shake = noise * self._numbers(rng.standard_normal, size)
        of = torch.as_tensor(owner, device=where)
        device, device_sure, shaken = self.placer.draw(
            self._read(seen, group).of(of),
            seen.legal,
            self._numbers(np.zeros if greedy else rng.gumbel, size),
            shake,
        )
        if shaken is not None:
            actions["device_added"] = shaken.cpu().numpy()
        actions |= {"group": group.cpu().numpy(), "device": device.cpu().numpy()}
        row = np.take_along_axis(actions["device"], actions["group"][owner], axis=1)
        return Episodes(
            actions,
            problem.settle(seen.units.grouping.expand(row.astype(np.int32))),
            one_plan_each(count),
            torch.cat([group_sure[of], device_sure], dim=1).cpu().numpy(),
        )

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        seen, where = self._see(problem), self.placer.go.device
        taken = {key: torch.as_tensor(val, device=where) for key, val in episodes.actions.items()}
        of, group = taken["of"], taken["group"]
        logits = self._grouper(seen).expand(len(group), -1, -1)
        like = (
            {key: torch.as_tensor(best.actions[key], device=where) for key in ("group", "device")}
            if best
            else {}
        )
        toward = chosen(logits, like["group"].expand(len(group), -1))[0][of] if best else None
        logits = logits + taken["group_added"] if "group_added" in taken else logits
        group_sure, group_entropy = chosen(logits, group)
        device_sure, device_entropy, same = self.placer.score(
            self._read(seen, group).of(of),
            seen.legal,
            taken["device"],
            taken.get("device_added"),
            like.get("device"),
        )
        if toward is not None and same is not None:
            toward = torch.cat([toward, same], dim=1)
        most = torch.full((group.shape[1],), math.log(self.shape.groups), device=where)
        return Scores(
            (
                Head("groups", group_sure[of], group_entropy[of], most),
                Head("devices", device_sure, device_entropy, even_entropy(seen.legal)),
            ),
            toward=toward,
        )

    def only(self, episodes: Episodes, at: int) -> Episodes:
        row = int(episodes.actions["of"][at])
        actions = {
            "of": np.zeros(1, dtype=np.int64),
            "group": episodes.actions["group"][row : row + 1].copy(),
            "device": episodes.actions["device"][at : at + 1].copy(),
        }
        device, log_prob = episodes.device[at : at + 1], episodes.log_prob[at : at + 1]
        return Episodes(actions, device.copy(), one_plan_each(1), log_prob.copy())

    def _grouper(self, seen: _Seen) -> torch.Tensor:
        """1 × units × groups."""
        hidden = self.inner(torch.cat([self.kind(seen.kind), seen.rest], dim=1))
        logits = self.outer(hidden if self.shape.linear else torch.relu(hidden))
        return (logits + self.shape.locality * seen.near)[None]

    def _read(self, seen: _Seen, group: torch.Tensor) -> Any:
        """What groups (rows × units) look like to the placer, and that read by it."""
        rows, units = group.shape
        count, kinds = self.shape.groups, len(self.kinds)
        at = group + count * torch.arange(rows, device=group.device)[:, None]
        types = torch.zeros(rows * count * kinds, device=group.device)
        ones = torch.ones(rows * units, device=group.device)
        types = types.index_add(0, (at * kinds + seen.kind).flatten(), ones)
        sizes = torch.zeros(rows * count, seen.sizes.shape[1], device=group.device)
        sizes = sizes.index_add(0, at.flatten(), seen.sizes.repeat(rows, 1))
        near = torch.zeros(rows * count * count, device=group.device)
        near[(at[:, seen.source] * count + group[:, seen.target]).flatten()] = 1.0
        near = near.view(rows, count, count) * (1 - torch.eye(count, device=group.device))
        back = near.transpose(1, 2)
        parts = [
            torch.log1p(types).view(rows, count, kinds) / math.log1p(units),
            torch.log1p(sizes).view(rows, count, -1) / 30.0,  # to about 1: e^30 bytes are 10 TB
            *([near, back] if self.shape.both else [torch.maximum(near, back)]),
        ]
        return self.placer.encode(torch.cat(parts, dim=2))

    def _shared(
        self,
        rng: np.random.Generator,
        seen: _Seen,
        group: NDArray[np.int64],
        owner: NDArray[np.int64],
    ) -> torch.Tensor:
        """Noise (episodes × groups × devices) for these groupings (rows × units)."""
        count, kind = self.shape.groups, seen.kind.cpu().numpy()
        source, target = seen.source.cpu().numpy(), seen.target.cpu().numpy()
        parts = []
        for row, episodes in enumerate(np.bincount(owner)):
            kinds = np.zeros((count, len(self.kinds)), dtype=np.float32)
            np.add.at(kinds, (group[row], kind), 1.0)
            kinds /= np.maximum(kinds.sum(axis=1, keepdims=True), 1.0)
            near = np.zeros((count, count), dtype=np.float32)
            near[group[row][source], group[row][target]] = 1.0
            near = np.maximum(near, near.T)
            drawn = shared(rng, kinds, near, int(episodes), self.devices, self.shape.patches)
            parts.append(drawn)
        return torch.as_tensor(np.concatenate(parts), device=self.placer.go.device)

    def _numbers(self, draw: Any, size: tuple[int, ...]) -> torch.Tensor:
        return torch.as_tensor(
            draw(size=size) if draw is not np.zeros else np.zeros(size),
            dtype=torch.float32,
            device=self.placer.go.device,
        )

    def _see(self, problem: Problem) -> _Seen:
        where, known = self.placer.go.device, self._seen.get(problem)
        if known is not None and known.legal.device == where:
            return known
        shape = self.shape
        made.check_devices(problem, self.devices, shape.groups, shape.groups)
        units = Units.of(problem, self.kinds, shape.outputs, shape.neighbours)
        # A group may hold any op, so it may be wherever some op may be; `settle` does the rest.
        legal = made.legal_devices(problem, units.grouping).any(axis=0, keepdims=True)
        near = _near(problem, units, shape)
        arrays: Mapping[str, NDArray[Any]] = {
            "legal": np.repeat(legal, shape.groups, axis=0),
            "kind": units.kind,
            "rest": np.concatenate([units.sizes, units.near], axis=1),
            "near": near.astype(np.float32),
            "sizes": units.bytes,
            "source": units.source,
            "target": units.target,
        }
        tensors = {key: torch.as_tensor(value, device=where) for key, value in arrays.items()}
        self._seen[problem] = _Seen(units, **tensors)
        return self._seen[problem]


def _near(problem: Problem, units: Units, shape: Shape) -> NDArray[np.float64]:
    """Units × groups: 0 for the group that a unit begins in, and the less the farther another is.

    Groups of a rule have no order, so that all others are equally far.
    """
    if shape.home == "stretch":
        centre = (np.arange(shape.groups) + 0.5) / shape.groups
        return -0.5 * ((units.place[:, None] - centre) * shape.groups) ** 2
    first = np.unique(units.grouping.group, return_index=True)[1]
    group = made.grouped(problem, shape.home, shape.groups).group[first]
    return -1.0 + (group[:, None] == np.arange(shape.groups)).astype(np.float64)
