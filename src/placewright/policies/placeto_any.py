"""Placeto for any devices: groups in, each on the device that a graph network likes, out.

Placeto's one-hot devices fix their number. Here a device is told by what it means for the group at
hand: the list scheduler's estimates (`pairs`), and how much of the group's ancestors, descendants,
neighbours and the rest is on it (`kernels`), where groups that are not decided yet stand as in a
draft. A graph network reads the graph once, and its vector of the group joins them. Weights of the
estimates alone may come from a trained pair policy: the rest then begins at nothing, so training
begins where that policy ended; the draft is that policy's likeliest plan.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from placewright.policies import groups as made
from placewright.policies.around import Around, Draft, Sight
from placewright.policies.estimates import Course
from placewright.policies.pairs import FEATURES, Pairs
from placewright.policies.placeto import layers
from placewright.policies.policy import Episodes, Head, Scores, one_plan_each
from placewright.policies.seq2seq import NEVER, chosen, even_entropy
from placewright.policies.walking import walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.transforms import Grouping

NAME = "placeto-any"


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
        senses, draft: What is seen of the graph on each device; see `Sight`.
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

    @property
    def sight(self) -> Sight:
        return Sight(self.senses, self.draft)

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
        self.join = nn.Linear(d + len(FEATURES) + shape.sight.more, shape.wide)
        self.out = nn.Linear(shape.wide, 1, bias=False)
        nn.init.normal_(self.out.weight, std=1e-2)
        self._seen: WeakKeyDictionary[Problem, Around] = WeakKeyDictionary()
        self._last: tuple[Around, bytes, NDArray[np.float32]] | None = None

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
        rng = np.random.default_rng(seed)
        size = (len(course.decided), count, problem.arrays.devices)
        luck = rng.gumbel(size=size) * (not greedy)
        free = np.ones(size[:2], dtype=bool)
        if not greedy and self.shape.drawn < 1.0:
            free = rng.random(size[:2]) < self.shape.drawn
            luck *= free[:, :, None]
        shake = rng.normal(scale=noise, size=size) if noise > 0 else None
        walked = walk(seen, self._thought(seen), luck=luck, shake=shake, keep=not greedy)
        if not greedy:
            self._last = seen, walked.device.tobytes(), walked.features
        actions: dict[str, Any] = {"device": walked.device, "free": free.T.copy()}
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
        device = episodes.actions["device"]
        features = self._features(seen, device)
        told = torch.as_tensor(features, device=where)  # decisions × episodes × devices × features
        graph = self._graph(seen)[torch.as_tensor(course.decided, device=where)]
        graph = graph[:, None, None].expand(*told.shape[:3], -1)
        joined = torch.relu(self.join(torch.cat([graph, told], dim=3)))
        logits = (told[..., : len(FEATURES)] @ self.linear + self.out(joined)[..., 0]).transpose(
            0, 1
        )
        if "added" in episodes.actions:
            logits = logits + torch.as_tensor(episodes.actions["added"], device=where)
        legal = torch.as_tensor(course.legal[course.decided], device=where)
        log_prob, entropy = chosen(
            logits.masked_fill(~legal, NEVER),
            torch.as_tensor(device, dtype=torch.long, device=where),
        )
        free = torch.as_tensor(episodes.actions["free"], device=where)
        head = Head("devices", log_prob * free, entropy * free, even_entropy(legal))
        return Scores((head,))

    def only(self, episodes: Episodes, at: int) -> Episodes:
        actions = {name: episodes.actions[name][at : at + 1].copy() for name in ("device", "free")}
        device, log_prob = episodes.device[at : at + 1], episodes.log_prob[at : at + 1]
        return Episodes(actions, device.copy(), one_plan_each(1), log_prob.copy())

    def _features(self, seen: Around, device: NDArray[np.int32]) -> NDArray[np.float32]:
        """Those of the last episodes are kept, since they depend on no weight."""
        mark = device.tobytes()
        if self._last is None or self._last[0] is not seen or self._last[1] != mark:
            # Devices are forced, so any logits do.
            forced = walk(seen, lambda _, f: f[..., 0], forced=device, keep=True)
            self._last = seen, mark, forced.features
        return self._last[2]

    def _thought(self, seen: Around) -> Any:
        """What it thinks of pairs, in numpy, since each decision is small."""
        graph = self._graph(seen).cpu().numpy()
        join, bias = self.join.weight.cpu().numpy(), self.join.bias.cpu().numpy()
        out, linear = self.out.weight[0].cpu().numpy(), self.linear.cpu().numpy()
        d = self.shape.hidden
        own = graph @ join[:, :d].T + bias
        rest = np.ascontiguousarray(join[:, d:].T)

        def logits(group: int, features: NDArray[np.float32]) -> NDArray[np.float32]:
            joined = np.maximum(features @ rest + own[group], 0.0)
            found: NDArray[np.float32] = features[..., : len(linear)] @ linear + joined @ out
            return found

        return logits

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
