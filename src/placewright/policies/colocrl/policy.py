"""ColocRL: co-location groups in, one after the other, a device for each out.

Mirhoseini et al. 2017, "Device Placement Optimization with Reinforcement Learning". Sizes that the
paper leaves open are those of its successor (Hierarchical). A group's type is the mean of its ops'
type vectors, its shapes are the bytes that leave it, its adjacency is over groups.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from placewright.policies import grouping as made
from placewright.policies.exploration_noise import shared
from placewright.policies.policy import Episodes, Head, Scores, one_plan_each
from placewright.policies.seq2seq import Placer, even_entropy

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.transforms import Grouping

NAME = "colocrl"


@dataclass(frozen=True)
class Shape:
    """What the sizes of the network follow from.

    Args:
        rule: How ops are grouped: `colocation` (the paper's), `coarse` or `module`.
        most: Groups are merged until there are no more than this.
        hidden: Size of the LSTMs' states.
        types: Size of a type's learned vector.
        outputs: Tensors of a group whose bytes are told.
        shared: Whether noise is shared by groups that look alike, and of at least one nat.
        patches: Whether half of that noise moves a few alike groups and leaves the others alone.
        padded: Whether a problem with fewer than `most` groups will do: adjacency is padded, and
            kinds of op that were never seen are left out. One policy can then place many graphs,
            as Placeto's authors had it do, though nothing in the paper makes it good at that.
    """

    rule: str = "colocation"
    most: int = 64
    hidden: int = 128
    types: int = 20
    outputs: int = 6
    both_ways: bool = False
    shared: bool = False
    patches: bool = False
    temperature: float = 1.0
    tanh: float = 0.0
    padded: bool = False

    def build(self, problem: Problem, seed: int = 0) -> ColocRL:
        """A fresh policy for a problem; the same seed gives the same weights."""
        groups = made.grouped(problem, self.rule, self.most)
        kinds = made.kinds_of(problem)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            count = self.most if self.padded else len(groups)
            return ColocRL(self, kinds, count, problem.arrays.devices)


@dataclass(frozen=True, eq=False)
class _Seen:
    """A problem as the network sees it."""

    grouping: Grouping
    legal: torch.Tensor  # groups × devices
    kinds: torch.Tensor  # groups × kinds, rows add up to 1
    rest: torch.Tensor  # groups × (outputs + groups)

    @property
    def near(self) -> torch.Tensor:
        """Groups × groups: whether they exchange tensors."""
        return self.rest[:, -len(self.rest) :]


class ColocRL(nn.Module):
    """Places co-location groups in graph order, each knowing those before it.

    Args:
        kinds: The kinds of op that have a learned vector.
        groups, devices: How many there are, in any problem it is given.
    """

    name = NAME

    def __init__(self, shape: Shape, kinds: tuple[str, ...], groups: int, devices: int) -> None:
        super().__init__()
        self.shape, self.kinds, self.groups, self.devices = shape, kinds, groups, devices
        self.kind = nn.Linear(len(kinds), shape.types, bias=False)
        nn.init.xavier_uniform_(self.kind.weight)
        width = shape.types + shape.outputs + groups
        self.placer = Placer(
            width,
            shape.hidden,
            devices,
            shape.both_ways,
            shape.temperature,
            shape.tanh,
            1.0 if shape.shared else 0.0,
        )
        self._seen: WeakKeyDictionary[Problem, _Seen] = WeakKeyDictionary()

    def config(self) -> dict[str, Any]:
        return {
            "shape": asdict(self.shape),
            "kinds": list(self.kinds),
            "groups": self.groups,
            "devices": self.devices,
        }

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> ColocRL:
        return cls(Shape(**data["shape"]), tuple(data["kinds"]), data["groups"], data["devices"])

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self._see(problem).grouping

    @torch.no_grad()
    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        seen, where = self._see(problem), self.placer.go.device
        rng = np.random.default_rng(seed)
        size = (count, len(seen.grouping), self.devices)
        luck = np.zeros(size) if greedy else rng.gumbel(size=size)
        shake = None
        if noise > 0 and self.shape.shared:
            kinds, near = (each.cpu().numpy() for each in (seen.kinds, seen.near))
            shake = noise * shared(rng, kinds, near, count, self.devices, self.shape.patches)
        elif noise > 0:
            shake = rng.normal(scale=noise, size=size)
        every = torch.zeros(count, dtype=torch.long, device=where)
        device, log_prob, added = self.placer.draw(
            self._read(seen).of(every),
            seen.legal,
            torch.as_tensor(luck, dtype=torch.float32, device=where),
            None if shake is None else torch.as_tensor(shake, dtype=torch.float32, device=where),
        )
        row = device.cpu().numpy().astype(np.int32)
        actions = {"device": row}
        if added is not None:
            actions["added"] = added.cpu().numpy()
        return Episodes(
            actions,
            problem.settle(seen.grouping.expand(row)),
            one_plan_each(count),
            log_prob.cpu().numpy(),
        )

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        seen, where = self._see(problem), self.placer.go.device
        device = torch.as_tensor(episodes.actions["device"], dtype=torch.long, device=where)
        added = episodes.actions.get("added")
        log_prob, entropy, toward = self.placer.score(
            self._read(seen).of(torch.zeros(len(device), dtype=torch.long, device=where)),
            seen.legal,
            device,
            None if added is None else torch.as_tensor(added, device=where),
            None if best is None else torch.as_tensor(best.actions["device"], device=where).long(),
        )
        head = Head("devices", log_prob, entropy, even_entropy(seen.legal))
        return Scores((head,), toward=toward)

    def only(self, episodes: Episodes, at: int) -> Episodes:
        actions = {"device": episodes.actions["device"][at : at + 1].copy()}
        device, log_prob = episodes.device[at : at + 1], episodes.log_prob[at : at + 1]
        return Episodes(actions, device.copy(), one_plan_each(1), log_prob.copy())

    def _read(self, seen: _Seen) -> Any:
        return self.placer.encode(torch.cat([self.kind(seen.kinds), seen.rest], dim=1)[None])

    def _see(self, problem: Problem) -> _Seen:
        where, known = self.placer.go.device, self._seen.get(problem)
        if known is None or known.legal.device != where:
            shape = self.shape
            grouping = made.grouped(problem, shape.rule, shape.most)
            fits = shape.padded and len(grouping) <= self.groups
            found = self.groups if fits else len(grouping)
            made.check_devices(problem, self.devices, self.groups, found)
            counts = made.kind_counts(problem, grouping, self.kinds)
            source, target = made.edges(problem, grouping)
            near = np.zeros((len(grouping), self.groups), dtype=np.float32)
            near[source, target] = near[target, source] = 1.0
            sizes = made.leaving_bytes(problem, grouping, shape.outputs)
            legal = made.legal_devices(problem, grouping)
            self._seen[problem] = _Seen(
                grouping,
                torch.as_tensor(legal, device=where),
                torch.as_tensor(counts / np.maximum(counts.sum(1, keepdims=True), 1), device=where),
                torch.as_tensor(np.concatenate([sizes, near], axis=1), device=where),
            )
        return self._seen[problem]
