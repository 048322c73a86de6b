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

from placewright.errors import ConfigError, ProblemError
from placewright.policies.placeto.observation import Seen, Side
from placewright.policies.policy import Episodes, Head, Scores, one_plan_each
from placewright.policies.seq2seq import NEVER, chosen, even_entropy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

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
        times: Whether a group is also told by when it starts in the plan as it stands, as in the
            authors' code. Every step is then simulated, which a trainer does (`Placeto.starts`).
        learned: The share of the decisions that it learns from, drawn anew in every episode. All
            are drawn alike; scoring takes the less time the fewer they are.
    """

    rule: str = "coarse"
    most: int = 64
    hidden: int = 0
    rounds: int = 8
    steps: bool = False
    start: str = "first"
    times: bool = False
    learned: float = 1.0

    def build(self, problem: Problem, seed: int = 0) -> Placeto:
        """A fresh policy for clusters like the problem's; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Placeto(self, problem.arrays.devices)


class Placeto(nn.Module):
    """Revises a placement group by group.

    Args:
        devices: How many there are, in any problem it is given.
    """

    name = NAME

    def __init__(self, shape: Shape, devices: int) -> None:
        super().__init__()
        self.shape, self.devices = shape, devices
        width = _PLAIN + shape.times + devices
        d = shape.hidden or width
        self.read = layers(width, d, d, d)
        ways = 2 if shape.rounds else 0
        self.tell = nn.ModuleList(layers(d, d, d, last=True) for _ in range(ways))
        self.hear = nn.ModuleList(layers(d, d, d, last=True) for _ in range(ways))
        both = 2 * d if shape.rounds else d
        self.each = nn.ModuleList(layers(both, both, both, last=True) for _ in range(3))
        self.pool = nn.ModuleList(layers(both, both, both, last=True) for _ in range(3))
        self.out = layers(4 * both, 16 * d, 8 * d, devices)
        self.starts: Callable[[Problem, NDArray[np.int32]], NDArray[np.float64]] | None = None
        """When ops start (plans × ops), for `Shape.times`; a trainer knows."""
        self._seen: WeakKeyDictionary[Problem, Seen] = WeakKeyDictionary()

    def config(self) -> dict[str, Any]:
        return {"shape": asdict(self.shape), "devices": self.devices}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Placeto:
        return cls(Shape(**data["shape"]), data["devices"])

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self._see(problem).grouping

    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        return self.act_all([problem], count, [seed], noise=noise, greedy=greedy)[0]

    @torch.no_grad()
    def act_all(
        self,
        problems: Sequence[Problem],
        count: int,
        seeds: Sequence[int],
        *,
        noise: float = 0.0,
        greedy: bool = False,
    ) -> list[Episodes]:
        """So many episodes of each problem, all side by side; each is as it would be alone."""
        seens, where = [self._see(each) for each in problems], self._where
        side = Side.of(seens)
        size = (len(seens), side.groups, count, self.devices)
        luck, shake = np.zeros(size), np.zeros(size if noise else (0,))
        start = np.zeros(size[:3], dtype=np.int64)
        counted = np.ones(size[:3], dtype=bool)
        for at, (seen, seed) in enumerate(zip(seens, seeds, strict=True)):
            rng, own = np.random.default_rng(seed), (len(seen.grouping), count, self.devices)
            drawn = np.zeros(own) if greedy else rng.gumbel(size=own)
            luck[at, : own[0]] = drawn
            if noise:
                shake[at, : own[0]] = rng.normal(scale=noise, size=own)
            start[at, : own[0]] = self._start(seen, count, rng).T
            if self.shape.learned < 1.0 and not greedy:
                counted[at, : own[0]] = rng.random(own[:2]) < self.shape.learned
        device = torch.as_tensor(start.copy(), device=where)  # problems × groups × episodes
        legal = side.legal | ~side.legal.any(dim=2, keepdim=True)
        lucky = torch.as_tensor(luck, dtype=torch.float32, device=where)
        shaken = torch.as_tensor(shake, dtype=torch.float32, device=where)
        sure, added = [], []
        when: list[NDArray[np.float32]] = []
        for at in range(side.groups):
            now = torch.full((len(seens), count), at, device=where)
            times = self._times(seens, device, when)
            logits = self._logits(side, self._state(side, device, now, times), now)
            if noise:
                extra = shaken[:, at] * logits.square().mean(dim=2, keepdim=True).sqrt()
                added.append(extra)
                logits = logits + extra
            logits = logits.masked_fill(~legal[:, at, None], NEVER)
            choice = (logits + lucky[:, at]).argmax(dim=2)
            sure.append(torch.log_softmax(logits, dim=2).gather(2, choice[..., None])[..., 0])
            device[:, at] = choice
        log_prob = torch.stack(sure, dim=1).cpu().numpy() * counted
        drawn_devices = device.cpu().numpy().astype(np.int32)
        extras = torch.stack(added, dim=1).cpu().numpy() if added else None
        made = []
        for at, seen in enumerate(seens):
            own_groups = len(seen.grouping)
            actions: dict[str, Any] = {
                "device": drawn_devices[at, :own_groups].T.copy(),
                "start": start[at, :own_groups].T.copy(),
            }
            if extras is not None:
                actions["added"] = extras[at, :own_groups].transpose(1, 0, 2).copy()
            if self.shape.learned < 1.0:
                actions["counted"] = counted[at, :own_groups].T.copy()
            if when:  # episodes × steps × groups
                rows = np.stack([each[at] for each in when[:own_groups]])
                actions["when"] = rows[:, :own_groups].transpose(2, 0, 1).copy()
            plans, owner = self._plans(actions)
            placed = seen.problem.settle(seen.grouping.expand(plans))
            made.append(Episodes(actions, placed, owner, log_prob[at, :own_groups].T.copy()))
        return made

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        return self.score_all([problem], [episodes])[0]

    def score_all(self, problems: Sequence[Problem], episodes: Sequence[Episodes]) -> list[Scores]:
        """Of each problem's episodes; all their states are known, so they are read side by side."""
        seens, where = [self._see(each) for each in problems], self._where
        side = Side.of(seens)
        picked = [np.nonzero(_counted(each.actions)) for each in episodes]
        most = max(len(rows) for rows, _ in picked)
        device = torch.zeros((len(seens), side.groups, most), dtype=torch.long)
        times = torch.zeros(device.shape) if self.shape.times else None
        step = torch.zeros((len(seens), most), dtype=torch.long)
        for at, (each, (rows, steps)) in enumerate(zip(episodes, picked, strict=True)):
            choice, start = each.actions["device"][rows], each.actions["start"][rows]
            visited = np.arange(choice.shape[1]) < steps[:, None]
            state = np.where(visited, choice, start).T
            device[at, : len(state), : len(rows)] = torch.as_tensor(state, dtype=torch.long)
            step[at, : len(rows)] = torch.as_tensor(steps)
            if times is not None:
                told = torch.as_tensor(each.actions["when"][rows, steps].T)
                times[at, : len(state), : len(rows)] = told
        every = self._in_parts(
            side, device.to(where), step.to(where), None if times is None else times.to(where)
        )
        found = []
        for at, (seen, each, pair) in enumerate(zip(seens, episodes, picked, strict=True)):
            found.append(_scores(seen, each.actions, every[at, : len(pair[0])], pair))
        return found

    def _in_parts(
        self, side: Side, device: torch.Tensor, step: torch.Tensor, times: torch.Tensor | None
    ) -> torch.Tensor:
        """Problems × states × devices: logits, of so many states at once as memory is spared for.

        Args:
            device: Problems × groups × states.
            step: Problems × states: the group at hand.
        """
        states = device.shape[2]
        wide = self.shape.hidden or self.devices + _PLAIN
        at_once = max(1, _AT_ONCE // (len(device) * side.groups * wide))

        def logits(device: torch.Tensor, step: torch.Tensor, *told: torch.Tensor) -> torch.Tensor:
            state = self._state(side, device, step, told[0] if told else None)
            return self._logits(side, state, step)

        parts = []
        for first in range(0, states, at_once):
            piece = slice(first, first + at_once)
            told = () if times is None else (times[:, :, piece],)
            given = (device[:, :, piece], step[:, piece], *told)
            if torch.is_grad_enabled() and at_once < states:
                parts.append(checkpoint(logits, *given, use_reentrant=False))
            else:
                parts.append(logits(*given))
        return torch.cat(parts, dim=1)

    def only(self, episodes: Episodes, at: int) -> Episodes:
        kinds = ("device", "start", *(("when",) if self.shape.times else ()))
        actions = {name: episodes.actions[name][at : at + 1].copy() for name in kinds}
        kept = episodes.owner == at
        owner = np.zeros(int(kept.sum()), dtype=np.int64)
        return Episodes(
            actions, episodes.device[kept].copy(), owner, episodes.log_prob[at : at + 1].copy()
        )

    def _times(
        self, seens: Sequence[Seen], device: torch.Tensor, when: list[NDArray[np.float32]]
    ) -> torch.Tensor | None:
        """Problems × groups × episodes: when groups start; kept in `when` too."""
        if not self.shape.times:
            return None
        if self.starts is None:
            raise ConfigError(
                "the policy wants to know when groups start, and nobody says: set its `starts`, "
                "as a trainer does"
            )
        told = np.zeros(device.shape, dtype=np.float32)
        for at, seen in enumerate(seens):
            row = device[at, : len(seen.grouping)].T.cpu().numpy().astype(np.int32)
            plans = seen.problem.settle(seen.grouping.expand(row))
            told[at, : len(seen.grouping)] = seen.starts(self.starts(seen.problem, plans))
        when.append(told)
        return torch.as_tensor(told, device=device.device)

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

    def _start(self, seen: Seen, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Episodes × groups: the placements that episodes begin with."""
        legal = seen.legal.cpu().numpy()
        if self.shape.start == "first":
            row = np.where(legal[:, seen.first], seen.first, legal.argmax(axis=1))
            return np.repeat(row[None], count, axis=0).astype(np.int64)
        own = rng
        if self.shape.start == "fixed":
            own = np.random.default_rng(int(seen.problem.graph.fingerprint[:12], 16))
        each = 1 if self.shape.start == "fixed" else count
        luck = np.where(legal, own.random((each, *legal.shape)), -1.0).argmax(axis=2)
        return np.ascontiguousarray(np.broadcast_to(luck, (count, len(legal)))).astype(np.int64)

    def _state(
        self, side: Side, device: torch.Tensor, at: torch.Tensor, times: torch.Tensor | None
    ) -> torch.Tensor:
        """Attributes of problems × groups × states, from devices and the groups at hand."""
        shape = device.shape
        number = torch.arange(shape[1], device=at.device)[None, :, None]
        plain = side.plain[:, :, None].expand(*shape, 2)
        flags = torch.stack([number == at[:, None], number < at[:, None]], dim=3).float()
        columns = [plain, flags, nn.functional.one_hot(device, self.devices).float()]
        if times is not None:  # as seen from the group at hand
            columns.append((times - times.gather(1, at[:, None]))[..., None])
        return torch.cat(columns, dim=3)

    def _logits(self, side: Side, state: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Problems × states × devices."""
        problems, groups = state.shape[:2]
        own = self.read(state)
        sides = []
        ways = zip(side.near, side.some, self.tell, self.hear, strict=False)
        for near, some, tell, hear in ways:
            x = own
            for _ in range(self.shape.rounds):
                told = tell(x)
                heard = torch.bmm(near, told.reshape(problems, groups, -1)).reshape(told.shape)
                x = own + some * hear(heard)
            sides.append(x)
        x = torch.cat(sides, dim=3) if sides else own
        here = at[:, None, :, None]
        pooled = [x.gather(1, here.expand(-1, 1, -1, x.shape[3]))[:, 0]]
        rows = side.around.gather(2, here.expand(-1, 3, -1, groups))
        masks = rows.transpose(2, 3)[..., None]  # problems × 3 × groups × states × 1
        for way, (each, pool) in enumerate(zip(self.each, self.pool, strict=True)):
            pooled.append(pool((masks[:, way] * each(x)).sum(dim=1)))
        logits: torch.Tensor = self.out(torch.cat(pooled, dim=2))
        return logits

    def _see(self, problem: Problem) -> Seen:
        where, known = self._where, self._seen.get(problem)
        if known is None or known.legal.device != where:
            if problem.arrays.devices != self.devices:
                raise ProblemError(
                    f"the policy was made for {self.devices} devices: the problem has "
                    f"{problem.arrays.devices}; train a policy for it"
                )
            self._seen[problem] = Seen.of(problem, self.shape.rule, self.shape.most, where)
        return self._seen[problem]


def _counted(actions: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Episodes × decisions: whether it is learned from."""
    every = np.ones(actions["device"].shape, dtype=bool)
    return actions.get("counted", every)


def _scores(
    seen: Seen,
    actions: Mapping[str, NDArray[Any]],
    logits: torch.Tensor,
    pairs: tuple[NDArray[np.int64], ...],
) -> Scores:
    """Scores of a problem's episodes, from logits of (episode, step) pairs."""
    where, (rows, steps) = logits.device, pairs
    if "added" in actions:
        logits = logits + torch.as_tensor(actions["added"][rows, steps], device=where)
    legal = seen.legal[torch.as_tensor(steps, device=where)]
    choice = torch.as_tensor(actions["device"][rows, steps], dtype=torch.long, device=where)
    log_prob, entropy = chosen(logits.masked_fill(~legal, NEVER), choice)
    shape = actions["device"].shape
    share = len(rows) / max(shape[0] * shape[1], 1)  # so that entropy is that of all decisions
    place = torch.as_tensor(rows * shape[1] + steps, device=where)
    spread = torch.zeros((2, shape[0] * shape[1]), device=where)
    spread = spread.index_copy(1, place, torch.stack([log_prob, entropy / max(share, 1e-9)]))
    both = spread.reshape(2, *shape)
    head = Head("devices", both[0], both[1], even_entropy(seen.legal))
    return Scores((head,))


def layers(*widths: int, last: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them, and after them if asked for; Glorot, bias 0."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        linear = nn.Linear(one, other)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))
