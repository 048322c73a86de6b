"""Placeto: groups of a plan in, revised one after the other, the plan after each step out.

Addanki et al. 2019, "Learning Generalizable Device Placement Algorithms". An episode begins with a
whole placement and visits every group once, in topological order; a graph network reads the graph
with the placement as it stands and gives the group at hand a device. A group is told by the paper's
attributes (time, bytes, device, whether it is the one at hand, whether it has been visited), so no
plan is judged inside an episode. No weight depends on the number of groups, so what is learned on
some graphs places others; the number of devices is built in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from placewright.errors import ProblemError
from placewright.policies import groups as made
from placewright.policies.policy import Episodes, Head, Scores, one_plan_each
from placewright.policies.reach import ancestors
from placewright.policies.seq2seq import NEVER, chosen, even_entropy

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.transforms import Grouping

NAME = "placeto"
_PLAIN = 4  # attributes of a group beside its device
_AT_ONCE = 2**22  # numbers of one layer that a pass holds; more are computed again for gradients


@dataclass(frozen=True)
class Shape:
    """What the network is like; the defaults are those of the authors' code.

    Args:
        rule: How ops are grouped (`groups.RULES`).
        most: Groups are merged until there are no more than this.
        hidden: Size of a group's vector; 0 for as many as it has attributes, as in the paper.
        rounds: Of messages between neighbours; 0 for none, which leaves the pooling.
        steps: Whether every step's plan is judged, for rewards per step, or the last one alone.
        start: Where an episode begins: `first` (all on the first accelerator), `fixed` (a random
            placement, always the same for a problem) or `random` (another one each time).
    """

    rule: str = "coarse"
    most: int = 64
    hidden: int = 0
    rounds: int = 8
    steps: bool = False
    start: str = "first"

    def build(self, problem: Problem, seed: int = 0) -> Placeto:
        """A fresh policy for clusters like the problem's; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Placeto(self, problem.arrays.devices)


@dataclass(frozen=True, eq=False)
class _Seen:
    """A problem as the network sees it.

    Args:
        plain: Groups × 2: time and bytes, each as a share of the largest.
        down, up: Groups × groups: 1 for what a group reads from, and for what reads from it.
        around: 3 × groups × groups: a group's ancestors, descendants and the rest.
        first: The device on which everything starts.
    """

    grouping: Grouping
    legal: torch.Tensor  # groups × devices
    plain: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor
    around: torch.Tensor
    first: int


class Placeto(nn.Module):
    """Revises a placement group by group.

    Args:
        devices: How many there are, in any problem it is given.
    """

    name = NAME

    def __init__(self, shape: Shape, devices: int) -> None:
        super().__init__()
        self.shape, self.devices = shape, devices
        width = _PLAIN + devices
        d = shape.hidden or width
        self.read = layers(width, d, d, d)
        ways = 2 if shape.rounds else 0
        self.tell = nn.ModuleList(layers(d, d, d, last=True) for _ in range(ways))
        self.hear = nn.ModuleList(layers(d, d, d, last=True) for _ in range(ways))
        both = 2 * d if shape.rounds else d
        self.each = nn.ModuleList(layers(both, both, both, last=True) for _ in range(3))
        self.pool = nn.ModuleList(layers(both, both, both, last=True) for _ in range(3))
        self.out = layers(4 * both, 16 * d, 8 * d, devices)
        self._seen: WeakKeyDictionary[Problem, _Seen] = WeakKeyDictionary()

    def config(self) -> dict[str, Any]:
        return {"shape": asdict(self.shape), "devices": self.devices}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Placeto:
        return cls(Shape(**data["shape"]), data["devices"])

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self._see(problem).grouping

    @torch.no_grad()
    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        seen, where = self._see(problem), self._where
        rng = np.random.default_rng(seed)
        groups = len(seen.grouping)
        size = (groups, count, self.devices)
        luck = torch.as_tensor(np.zeros(size) if greedy else rng.gumbel(size=size)).to(where)
        shake = torch.as_tensor(rng.normal(scale=noise, size=size)).to(where) if noise else None
        start = self._start(problem, seen, count, rng)
        device = torch.as_tensor(start.T.copy(), device=where)  # groups × episodes
        drawn, sure, added = [], [], []
        for at in range(groups):
            state = self._state(seen, device[:, :, None], torch.tensor([at], device=where))
            logits = self._logits(seen, state, torch.tensor([at], device=where))[:, 0]
            if shake is not None:
                extra = shake[at].float() * logits.square().mean(dim=1, keepdim=True).sqrt()
                added.append(extra)
                logits = logits + extra
            logits = logits.masked_fill(~seen.legal[at], NEVER)
            choice = (logits + luck[at]).argmax(dim=1)
            drawn.append(choice)
            sure.append(torch.log_softmax(logits, dim=1).gather(1, choice[:, None])[:, 0])
            device[at] = choice
        actions: dict[str, Any] = {
            "device": torch.stack(drawn, dim=1).cpu().numpy().astype(np.int32),
            "start": start,
        }
        if added:
            actions["added"] = torch.stack(added, dim=1).cpu().numpy()
        plans, owner = self._plans(actions)
        return Episodes(
            actions,
            problem.settle(seen.grouping.expand(plans)),
            owner,
            torch.stack(sure, dim=1).cpu().numpy(),
        )

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        """All states of all episodes are known by now, so they are read side by side."""
        seen, where = self._see(problem), self._where
        choice = torch.as_tensor(episodes.actions["device"], dtype=torch.long, device=where)
        start = torch.as_tensor(episodes.actions["start"], dtype=torch.long, device=where)
        count, groups = choice.shape
        steps = torch.arange(groups, device=where)
        before = steps[:, None] < steps  # groups × steps: whether it has been visited by then
        at_once = max(1, _AT_ONCE // (groups * count * (self.shape.hidden or self.devices + 4)))
        parts = []
        for at in torch.split(steps, at_once):
            visited = before[:, None, at]
            device = torch.where(visited, choice.T[:, :, None], start.T[:, :, None])

            def logits(device: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
                return self._logits(seen, self._state(seen, device, at), at)

            if torch.is_grad_enabled() and at_once < groups:
                parts.append(checkpoint(logits, device, at, use_reentrant=False))
            else:
                parts.append(logits(device, at))
        every = torch.cat(parts, dim=1)  # episodes × steps × devices
        added = episodes.actions.get("added")
        if added is not None:
            every = every + torch.as_tensor(added, device=where)
        log_prob, entropy = chosen(every.masked_fill(~seen.legal, NEVER), choice)
        return Scores((Head("devices", log_prob, entropy, even_entropy(seen.legal)),))

    def only(self, episodes: Episodes, at: int) -> Episodes:
        actions = {name: episodes.actions[name][at : at + 1].copy() for name in ("device", "start")}
        kept = episodes.owner == at
        owner = np.zeros(int(kept.sum()), dtype=np.int64)
        return Episodes(
            actions, episodes.device[kept].copy(), owner, episodes.log_prob[at : at + 1].copy()
        )

    @property
    def _where(self) -> torch.device:
        return next(self.parameters()).device

    def _plans(self, actions: dict[str, Any]) -> tuple[np.ndarray[Any, Any], Any]:
        """Plans × groups: the last of each episode, or the first and that of every step."""
        device, start = actions["device"], actions["start"]
        count, groups = device.shape
        if not self.shape.steps:
            return device, one_plan_each(count)
        visited = np.arange(groups) < np.arange(groups + 1)[:, None]
        plans = np.where(visited, device[:, None], start[:, None])
        return plans.reshape(-1, groups), np.repeat(np.arange(count), groups + 1)

    def _start(
        self, problem: Problem, seen: _Seen, count: int, rng: np.random.Generator
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Episodes × groups: the placements that episodes begin with."""
        legal = seen.legal.cpu().numpy()
        if self.shape.start == "first":
            row = np.where(legal[:, seen.first], seen.first, legal.argmax(axis=1))
            return np.repeat(row[None], count, axis=0).astype(np.int64)
        own = rng
        if self.shape.start == "fixed":
            own = np.random.default_rng(int(problem.graph.fingerprint[:12], 16))
        each = 1 if self.shape.start == "fixed" else count
        luck = np.where(legal, own.random((each, *legal.shape)), -1.0).argmax(axis=2)
        return np.ascontiguousarray(np.broadcast_to(luck, (count, len(legal)))).astype(np.int64)

    def _state(self, seen: _Seen, device: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Attributes of groups × episodes × steps, from devices and the groups at hand (steps)."""
        groups, count = device.shape[0], device.shape[1]
        shape = (groups, count, len(at))
        number = torch.arange(groups, device=at.device)[:, None, None]
        plain = seen.plain[:, None, None].expand(*shape, 2)
        flags = torch.stack([number == at, number < at], dim=3).float().expand(*shape, 2)
        where = nn.functional.one_hot(device.expand(shape), self.devices).float()
        return torch.cat([plain, flags, where], dim=3)

    def _logits(self, seen: _Seen, state: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Episodes × steps × devices."""
        groups = len(state)
        own = self.read(state)
        sides = []
        for near, tell, hear in zip((seen.down, seen.up), self.tell, self.hear, strict=False):
            some = near.any(dim=1).float()[:, None, None, None]
            x = own
            for _ in range(self.shape.rounds):
                told = tell(x)
                heard = (near @ told.reshape(groups, -1)).reshape(told.shape)
                x = own + some * hear(heard)
            sides.append(x)
        x = torch.cat(sides, dim=3) if sides else own
        mine = x[at, :, torch.arange(len(at), device=at.device)].transpose(0, 1)
        pooled = [mine]
        for around, each, pool in zip(seen.around, self.each, self.pool, strict=True):
            mask = around[at].T[:, None, :, None]  # groups × 1 × steps × 1
            pooled.append(pool((mask * each(x)).sum(dim=0)))
        logits: torch.Tensor = self.out(torch.cat(pooled, dim=2))
        return logits

    def _see(self, problem: Problem) -> _Seen:
        where, known = self._where, self._seen.get(problem)
        if known is None or known.legal.device != where:
            self._seen[problem] = self._looked(problem, where)
        return self._seen[problem]

    def _looked(self, problem: Problem, where: torch.device) -> _Seen:
        a = problem.arrays
        if a.devices != self.devices:
            raise ProblemError(
                f"the policy was made for {self.devices} devices: the problem has {a.devices}; "
                "train a policy for it"
            )
        grouping = made.grouped(problem, self.shape.rule, self.shape.most)
        groups = len(grouping)
        seconds = np.where(a.turn, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
        work = np.bincount(grouping.group, weights=seconds, minlength=groups)
        source, target = made.edges(problem, grouping)
        size = made.sent_bytes(problem, grouping)
        plain = np.stack([work / max(work.max(), 1e-30), size / max(size.max(), 1e-30)], axis=1)
        near = np.zeros((groups, groups), dtype=np.float32)
        near[target, source] = 1.0
        before = ancestors(groups, source, target)
        after = before.T & ~before
        rest = ~(before | after | np.eye(groups, dtype=bool))
        host = a.host if not a.host.all() else ~a.host
        return _Seen(
            grouping,
            torch.as_tensor(made.legal_devices(problem, grouping), device=where),
            torch.as_tensor(plain, dtype=torch.float32, device=where),
            torch.as_tensor(near, device=where),
            torch.as_tensor(near.T.copy(), device=where),
            torch.as_tensor(np.stack([before, after, rest]), dtype=torch.float32, device=where),
            int((~host).argmax()),
        )


def layers(*widths: int, last: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them, and after them if asked for; Glorot, bias 0."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        linear = nn.Linear(one, other)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))
