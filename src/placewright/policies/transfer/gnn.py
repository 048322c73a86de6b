"""Placeto for any devices: groups in, each on the device that a graph network likes, out.

Placeto's one-hot devices fix their number. Here a device is told by what it means for the group at
hand: the list scheduler's estimates (`pairs`), and how much of the group's ancestors, descendants,
neighbours and the rest is on it (`kernels`), where groups that are not decided yet stand as in a
draft. A graph network reads the graph once, and its vector of the group joins them. Weights of the
estimates alone may come from a trained pair policy: the rest then begins at nothing, so training
begins where that policy ended; the draft is that policy's likeliest plan.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from placewright.policies import grouping as made
from placewright.policies.placeto.policy import layers
from placewright.policies.policy import Episodes, Head, Scores, one_plan_each
from placewright.policies.seq2seq import NEVER, chosen, even_entropy
from placewright.policies.transfer.features import FEATURES, Pairs
from placewright.policies.transfer.graph_features import (
    Around,
    Draft,
    Sight,
)
from placewright.policies.transfer.rollout import (
    Walk,
    bound_to,
    walk,
)
from placewright.scheduling.batched_schedules import Course

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.transforms import Grouping

NAME = "placeto-any"
_LOUD = 5.0  # how much larger than others the steps of linear weights are; Adam's are all of a size
_KEPT = 4  # problems whose last episodes are kept; an update has as many (`of_several`)
_BOUND = -0.5  # a fresh policy likes to merge a little less than the best device alone


@dataclass(frozen=True)
class Shape:
    """What the network is like.

    Args:
        rule: How ops are grouped (`groups.RULES`), or `op` for each op with what goes with it.
        most: Groups are merged until there are no more than this.
        hidden: Size of a group's vector.
        rounds: Of messages between neighbours; 0 for none.
        wide: Size of the layer that joins it with the estimates.
        drawn: The share of the decisions that are drawn; the others are the likeliest. With few of
            hundreds drawn, a plan's reward says more about each.
        shipped: Whether the weights of the estimates begin as those of the pair policy that ships.
        senses, draft, blind: What is seen of the graph on each device; see `Sight`.
        tuned: Whether all features have linear weights, which take larger steps than the others.
        looks: Episodes that are walked when its best plan is asked for: the likeliest, and drawn
            ones. It answers with the one whose own list schedule fits and ends first; none of them
            is judged for it.
        merge: Whether a group may also merge with the one whose tensor takes it longest to bring.
            Groups that merged are one group, so that the groups are chosen with the placement.
    """

    rule: str = "op"
    most: int = 1000
    hidden: int = 16
    rounds: int = 4
    wide: int = 32
    drawn: float = 1.0
    shipped: bool = True
    senses: bool = False
    draft: bool = False
    blind: bool = False
    tuned: bool = False
    looks: int = 1
    merge: bool = False

    @property
    def sight(self) -> Sight:
        return Sight(self.senses, self.draft, self.blind)

    def build(self, problem: Problem, seed: int = 0) -> PlacetoAny:
        """A fresh policy; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            policy = PlacetoAny(self)
        if self.shipped:
            from placewright.policies.shipped import pair_weights

            with torch.no_grad():
                policy.linear.copy_(torch.as_tensor(pair_weights(), dtype=torch.float32))
        return policy


class PlacetoAny(nn.Module):
    """Places groups by falling rank, as the pair policy does, with a graph network's help."""

    name = NAME

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        d = shape.hidden
        self.read = layers(shape.sight.plain, d, d)
        ways = 2 if shape.rounds else 0
        self.tell = nn.ModuleList(layers(d, d, d, last=True) for _ in range(ways))
        self.hear = nn.ModuleList(layers(d, d, d) for _ in range(ways))
        both = 2 * d if shape.rounds else d
        self.each = nn.ModuleList(layers(both, d, last=True) for _ in range(3))
        self.sum = layers(both + 3 * d, d, last=True)
        self.linear = nn.Parameter(torch.zeros(len(FEATURES)))
        if shape.tuned:
            self.tune = nn.Parameter(torch.zeros(len(FEATURES) + shape.sight.more))
        self.join = nn.Linear(d + len(FEATURES) + shape.sight.more, shape.wide)
        self.out = nn.Linear(shape.wide, 1, bias=False)
        nn.init.normal_(self.out.weight, std=1e-2)
        if shape.merge:
            self.bond = nn.Linear(d + len(FEATURES) + shape.sight.more, shape.wide)
            self.keep = nn.Linear(shape.wide, 1)
            nn.init.normal_(self.keep.weight, std=1e-2)
            nn.init.constant_(self.keep.bias, _BOUND)
        self._seen: WeakKeyDictionary[Problem, Around] = WeakKeyDictionary()
        self._last: dict[Problem, tuple[bytes, Walk]] = {}

    def config(self) -> dict[str, Any]:
        return {
            "shape": asdict(self.shape),
            "features": list(FEATURES),
            "more": self.shape.sight.more,
        }

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> PlacetoAny:
        shape = Shape(**data["shape"])
        if tuple(data["features"]) != FEATURES or data["more"] != shape.sight.more:
            raise ValueError(f"it knows features {', '.join(data['features'])}")
        return cls(shape)

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self._see(problem).pairs.course.grouping

    @torch.no_grad()
    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        seen = self._see(problem)
        course = seen.pairs.course
        looks = self.shape.looks if greedy else count
        rng = np.random.default_rng(0 if greedy else seed)
        size = (len(course.decided), looks, problem.arrays.devices + self.shape.merge)
        luck = rng.gumbel(size=size)
        free = np.ones(size[:2], dtype=bool)
        if self.shape.drawn < 1.0:
            free = rng.random(size[:2]) < self.shape.drawn
            luck *= free[:, :, None]
        if greedy:
            luck[:, 0] = 0.0  # the likeliest
        shake = rng.normal(scale=noise, size=size) if noise > 0 else None
        walked = self._walk(seen, luck=luck, shake=shake, keep=not greedy)
        if greedy:
            first = np.lexsort((walked.end, np.maximum(walked.over, 0.0)))[0]
            walked, free = _only(walked, [first] * count), free[:, [first] * count]
            free[:] = True
        else:
            self._keep(problem, walked)
        actions: dict[str, Any] = {"device": walked.option, "free": free.T.copy()}
        if shake is not None:
            actions["added"] = walked.added
        row = np.empty_like(walked.device)
        row[:, course.decided] = walked.device
        device = problem.settle(course.grouping.expand(row))
        log_prob = walked.log_prob * free.T
        return Episodes(actions, device, one_plan_each(count), log_prob, walked.start)

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        seen, where = self._see(problem), self.linear.device
        course = seen.pairs.course
        option = episodes.actions["device"]
        walked = self._walked(problem, option)
        # Decisions that were not drawn say nothing, so only those that were are looked at.
        at, episode = np.nonzero(episodes.actions["free"].T)
        group = course.decided[at]
        told = torch.as_tensor(walked.features[at, episode], device=where)
        every = self._graph(seen)[torch.as_tensor(group, device=where)]
        spread = every[:, None].expand(*told.shape[:2], -1)
        joined = torch.relu(self.join(torch.cat([spread, told], dim=2)))
        logits = told @ self._weights() + self.out(joined)[..., 0]
        legal = course.legal[course.decided]
        allowed = torch.as_tensor(course.legal[group], device=where)
        if self.shape.merge:
            place = torch.as_tensor(walked.bound[at, episode], device=where)
            there = told[torch.arange(len(told), device=where), place.clamp(min=0)]
            bond = torch.relu(self.bond(torch.cat([every, there], dim=1)))
            # Relative to the best device alone, so that it means the same for all groups.
            best_alone = logits.masked_fill(~allowed, NEVER).amax(dim=1)
            merging = best_alone + self.keep(bond)[:, 0]
            logits = torch.cat([logits, merging[:, None]], dim=1)
            allowed = torch.cat([allowed, (place >= 0)[:, None]], dim=1)
            some = (walked.bound >= 0).any(axis=1, keepdims=True)
            legal = np.concatenate([legal, some], axis=1)
        if "added" in episodes.actions:
            logits = logits + torch.as_tensor(episodes.actions["added"][episode, at], device=where)
        log_prob, entropy = chosen(
            logits.masked_fill(~allowed, NEVER),
            torch.as_tensor(option[episode, at], dtype=torch.long, device=where),
        )
        spot = torch.as_tensor(episode, device=where), torch.as_tensor(at, device=where)
        nothing = torch.zeros(option.shape, device=where)
        head = Head(
            "devices",
            nothing.index_put(spot, log_prob),
            nothing.index_put(spot, entropy),
            even_entropy(torch.as_tensor(legal, device=where)),
        )
        return Scores((head,))

    def merged(self, problem: Problem, episodes: Episodes) -> NDArray[np.int64]:
        """Episodes × groups: which of the groups are one: each has its first member's number."""
        seen = self._see(problem)
        course, option = seen.course, episodes.actions["device"]
        found = np.tile(np.arange(len(course.grouping)), (len(option), 1))
        for at, turn in enumerate(each for each in course.turns if each.group >= 0):
            joins = option[:, at] == problem.arrays.devices
            if joins.any():
                other = course.grouping.group[bound_to(course, turn)]
                found[joins, turn.group] = found[joins, other]
        return found

    def only(self, episodes: Episodes, at: int) -> Episodes:
        actions = {name: episodes.actions[name][at : at + 1].copy() for name in ("device", "free")}
        device, log_prob = episodes.device[at : at + 1], episodes.log_prob[at : at + 1]
        return Episodes(actions, device.copy(), one_plan_each(1), log_prob.copy())

    def _walked(self, problem: Problem, option: NDArray[np.int32]) -> Walk:
        """The last episodes are kept, since what is seen in them depends on no weight."""
        mark, walked = self._last.get(problem, (b"", None))
        if walked is None or mark != option.tobytes():
            walked = self._walk(self._see(problem), forced=option, keep=True)
            self._keep(problem, walked)
        return walked

    def _keep(self, problem: Problem, walked: Walk) -> None:
        """Keep the last episodes of the last few problems, those of one update."""
        self._last.pop(problem, None)
        while len(self._last) >= _KEPT:
            del self._last[next(iter(self._last))]
        self._last[problem] = walked.option.tobytes(), walked

    def _walk(self, seen: Around, **how: Any) -> Walk:
        """Episodes, with what it thinks of pairs in numpy, since each decision is small."""
        with torch.no_grad():
            graph = self._graph(seen).cpu().numpy()
        d = self.shape.hidden
        linear = self._weights().detach().cpu().numpy()

        def halves(layer: nn.Linear) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            weight = layer.weight.detach().cpu().numpy()
            own = graph @ weight[:, :d].T + layer.bias.detach().cpu().numpy()
            return own, np.ascontiguousarray(weight[:, d:].T)

        own, rest = halves(self.join)
        out = self.out.weight[0].detach().cpu().numpy()
        alone: list[NDArray[np.float32]] = []

        def logits(group: int, features: NDArray[np.float32]) -> NDArray[np.float32]:
            joined = np.maximum(features @ rest + own[group], 0.0)
            found: NDArray[np.float32] = features @ linear + joined @ out
            alone[:] = [found]
            return found

        if not self.shape.merge:
            return walk(seen, logits, **how)
        bond, there = halves(self.bond)
        keep = self.keep.weight[0].detach().cpu().numpy()
        bias = float(self.keep.bias.detach())

        def merging(
            group: int, features: NDArray[np.float32], place: NDArray[np.int64]
        ) -> NDArray[np.float32]:
            pair = features[np.arange(len(place)), np.maximum(place, 0)]
            joined = np.maximum(pair @ there + bond[group], 0.0)
            best = np.where(seen.course.legal[group], alone[0], np.float32(NEVER)).max(axis=1)
            found: NDArray[np.float32] = best + joined @ keep + bias
            return found

        return walk(seen, logits, merging=merging, **how)

    def _weights(self) -> torch.Tensor:
        """The linear weights of all features."""
        weights = nn.functional.pad(self.linear, (0, self.shape.sight.more))
        return weights + _LOUD * self.tune if self.shape.tuned else weights

    def _graph(self, seen: Around) -> torch.Tensor:
        """Groups × hidden: what the graph network says of each group."""
        where = self.linear.device
        own = self.read(torch.as_tensor(seen.attributes, device=where))
        sides = []
        for near, tell, hear in zip(seen.near, self.tell, self.hear, strict=False):
            mean = torch.as_tensor(near, device=where)
            x = own
            for _ in range(self.shape.rounds):
                x = own + hear(mean @ tell(x))
            sides.append(x)
        x = torch.cat(sides, dim=1) if sides else own
        pooled = [
            torch.as_tensor(around, device=where) @ each(x)
            for around, each in zip(seen.means, self.each, strict=True)
        ]
        found: torch.Tensor = self.sum(torch.cat([x, *pooled], dim=1))
        return found

    def _see(self, problem: Problem) -> Around:
        if problem not in self._seen:
            grouping = made.grouped(problem, self.shape.rule, self.shape.most)
            legal = made.legal_devices(problem, grouping)
            pairs = Pairs.of(Course.of(problem, grouping, legal))
            draft = drafted(pairs) if self.shape.draft else None
            self._seen[problem] = Around.of(problem, pairs, self.shape.sight, draft)
        return self._seen[problem]


def _only(walked: Walk, at: list[Any]) -> Walk:
    """The walk with some of its episodes, of which nothing was kept for gradients."""
    return replace(
        walked,
        device=walked.device[at],
        option=walked.option[at],
        log_prob=walked.log_prob[at],
        start=walked.start[at],
        added=walked.added[at] if len(walked.added) else walked.added,
        bound=walked.bound[:, at],
    )


def drafted(pairs: Pairs) -> Draft:
    """The likeliest plan of the pair policy that ships."""
    from placewright.policies.shipped import pair_weights

    course, weights = pairs.course, pair_weights()
    a, groups = course.problem.arrays, len(course.grouping)
    nothing = np.zeros((len(course.decided), 1, a.devices))
    walked = walk(pairs, lambda _, features: features @ weights, luck=nothing)
    here = np.zeros((a.devices, groups), dtype=np.float32)
    here[walked.device[0], course.decided] = 1.0
    start = np.full(groups, np.inf)
    np.minimum.at(start, course.grouping.group[a.turn], walked.start[0, a.turn])
    return Draft(here, np.where(np.isfinite(start), start, 0.0))
