"""GO: all ops at once on devices, in passes that each refine the plan before; a problem in.

The transferable graph optimizer (Zhou et al. 2020, and GDP 2019). No code and no sizes of it were
published, so this is like GO: what the paper fixes is kept (max-pooled GraphSAGE, segment
recurrence, superposition, passes, tasks that read each other through recurrent attention) and the
rest is ours. A device is told by what it means for each unit and by what is on it, not by its
number, so one policy serves any cluster. Passes go from coarse to fine: first whole modules of the
network, then parts of them, then single units. The first one refines a heuristic's plan: from no
plan, equal devices would look equal and no gradient could tell them apart.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.nn.functional import one_hot

from placewright.errors import ConfigError
from placewright.policies.go.config import Shape
from placewright.policies.go.decisions import (
    Asked,
    Drawn,
    Forced,
    Luck,
)
from placewright.policies.go.features import (
    DEVICE,
    GRAPH,
    UNIT,
)
from placewright.policies.go.fusion import fusions
from placewright.policies.go.levels import LEVELS
from placewright.policies.go.network import (
    Attention,
    DeviceHead,
    Trunk,
)
from placewright.policies.go.observation import Seen
from placewright.policies.go.plan_features import (
    HERE,
    PAIR,
    pairs,
)
from placewright.policies.policy import Episodes, Scores, one_plan_each
from placewright.policies.seq2seq import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from placewright.policies.go.plan_features import Times
    from placewright.problem import Problem

    Floats = NDArray[np.float64]
    Clock = Callable[[Problem, NDArray[np.int32], Floats], tuple[Floats, Floats]]
    Graph = tuple[Seen, torch.Tensor, torch.Tensor]
    """A problem as it is seen, a vector for each unit, and one for the whole."""
    Begun = Mapping[str, NDArray[np.int64]]
    """Episodes × units for each task: what was decided before."""

NAME = "go"
CLASSES = 5
"""Of priority, and of how early an op is considered for fusion."""
SEARCH = len(LEVELS)
"""Asked about units by a search, and not in a pass; passes have the number of what they decide."""
MIDDLE = CLASSES // 2
"""The class of what keeps its place."""
_SPAN = 0.1  # how far the classes of priority move an op, as a share of the longest way
_SURE = 1e6  # a logit that outweighs all others
_REMEMBERED = 4  # batches of plans whose times are kept, for further epochs on them


class Go(nn.Module):
    """Decides on all units at once, pass after pass."""

    name = NAME

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden
        how = width, shape.heads, shape.segment, shape.modulation, shape.attention
        self.trunk = Trunk(width, shape.rounds)
        self.gather = nn.Linear(UNIT, width)
        self.now = nn.Linear(PAIR, width)
        self.layers = nn.ModuleList(Attention(*how) for _ in range(shape.layers))
        self.task = Attention(*how)
        self.which = nn.Parameter(torch.randn(len(shape.tasks), width) * 0.1)
        if "device" in shape.tasks:
            self.place = DeviceHead(width, shape.wide)
            with torch.no_grad():
                self.place.linear[:, HERE] = shape.stay
        classes = [task for task in shape.tasks if task != "device"]
        self.levels = nn.ModuleDict({task: nn.Linear(width, CLASSES) for task in classes})
        self.told = nn.ModuleDict({task: nn.Linear(CLASSES, width) for task in classes})
        self.placed = nn.Linear(PAIR, width)
        for head in self.levels.values():
            assert isinstance(head, nn.Linear)
            nn.init.normal_(head.weight, std=0.01)
            with torch.no_grad():  # an op keeps its place unless there is a reason
                head.bias[MIDDLE] += 1.5
        self.clock: Clock | None = None
        """Tells when ops run: problem, plans × ops and their order in, starts and ends out."""
        self._seen: WeakKeyDictionary[Problem, Seen] = WeakKeyDictionary()

    def config(self) -> dict[str, Any]:
        sizes = [UNIT, GRAPH, DEVICE, PAIR, CLASSES]
        shape = {**asdict(self.shape), "tasks": [*self.shape.tasks], "passes": [*self.shape.passes]}
        return {"shape": shape, "sizes": sizes}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Go:
        if data["sizes"] != [UNIT, GRAPH, DEVICE, PAIR, CLASSES]:
            raise ValueError(f"it is told {data['sizes']} numbers")
        lists = {name: tuple(data["shape"][name]) for name in ("tasks", "passes")}
        return cls(Shape(**{**data["shape"], **lists}))

    @property
    def where(self) -> torch.device:
        return self.which.device

    def begin(self, problem: Problem, device: NDArray[np.integer]) -> None:
        """Let its first pass read this plan of ops from now on, instead of a heuristic's."""
        seen = self.see(problem)
        start = np.asarray(device)[seen.leader].astype(np.int64)
        self._seen[problem] = replace(seen, starts=start[None])

    def see(self, problem: Problem) -> Seen:
        """The problem as this policy sees it; worked out once."""
        if problem not in self._seen:
            self._seen[problem] = Seen.of(problem, self.shape.most, self.shape.starts)
        return self._seen[problem]

    def first(self, problem: Problem, count: int) -> dict[str, NDArray[np.int64]]:
        """What episodes begin with: first plans in turn, and all in the middle of its class."""
        seen = self.see(problem)
        begun = {"device": seen.starts[np.arange(count) % len(seen.starts)]}
        for task in self.levels:
            begun[task] = np.full((count, len(seen)), MIDDLE)
        return begun

    @torch.no_grad()
    def act(
        self,
        problem: Problem,
        count: int,
        seed: int,
        *,
        noise: float = 0.0,
        greedy: bool = False,
        margin: float | None = None,
        begun: Begun | None = None,
        slots: NDArray[np.float64] | None = None,
    ) -> Episodes:
        """See `Policy.act`.

        Args:
            margin: Instead of the shape's, of greedy episodes.
            begun: What episodes begin with, instead of first plans.
            slots: How likely an episode draws in each of the shape's slots, if few are drawn.
        """
        seen, shape = self.see(problem), self.shape
        if not greedy:
            # What is not drawn stays: no reward would tell it that it should not have moved.
            margin = _SURE
        elif margin is None:
            margin = shape.margin
        likely = np.ones(len(shape.slots)) if slots is None else slots
        how = likely / likely.sum(), shape.drawn, shape.together
        drawn = Drawn(Luck(count, seed, self.where, noise, greedy, *how))
        start = begun or self.first(problem, count)
        plan = self._decide(seen, start, drawn, margin)
        actions, log_prob = drawn.done()
        end = {task: values.cpu().numpy() for task, values in plan.items()}
        for name, values in (("start", start), ("end", end)):
            actions |= {f"{name}/{task}": values[task] for task in end}
        device = seen.settle(end["device"])
        fusion = None
        if "fusion" in end:
            fusion = fusions(problem, device, end["fusion"][:, seen.unit].astype(float))
        order = self.order(problem, device, end.get("priority"))
        return Episodes(actions, device, one_plan_each(count), log_prob, order, fusion)

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        forced = Forced(episodes.actions, self.where)
        self._decide(self.see(problem), begun_of(episodes, "start"), forced, 0.0)
        return Scores(forced.heads())

    def only(self, episodes: Episodes, at: int) -> Episodes:
        one = slice(at, at + 1)
        actions = {
            name: values[one].copy()
            for name, values in episodes.actions.items()
            if "added" not in name
        }
        return Episodes(
            actions,
            episodes.device[one].copy(),
            one_plan_each(1),
            episodes.log_prob[one].copy(),
            None if episodes.priority is None else episodes.priority[one].copy(),
            None if episodes.fusion is None else episodes.fusion[one].copy(),
        )

    def graph(self, problem: Problem) -> Graph:
        """What the graph says whatever the plan, for `logits`; with gradients."""
        seen = self.see(problem)
        return seen, *self.trunk(seen.on(self.where))

    def logits(self, graph: Graph, plans: NDArray[np.integer], mode: int) -> torch.Tensor:
        """Plans × units × devices: what it would do about plans × units, asked in such a mode.

        With a graph of groups (`by_groups`) units are groups.
        """
        now = torch.as_tensor(np.asarray(plans, dtype=np.int64), device=self.where)
        return self._device(graph, now, mode)[0]

    def by_groups(self, graph: Graph, level: str) -> Graph:
        """The same graph by modules or parts: what the units of each say on average, and itself."""
        seen, x, whole = graph
        grouped = seen.grouped(level)
        if grouped is None:
            return graph
        group = torch.as_tensor(grouped.group, device=self.where)
        total = torch.zeros(len(grouped.seen), x.shape[1], device=self.where, dtype=x.dtype)
        count = torch.bincount(group, minlength=len(grouped.seen)).clamp(min=1)
        mean = total.index_add(0, group, x) / count[:, None]
        return grouped.seen, mean + self.gather(grouped.seen.on(self.where)["told"]), whole

    def order(
        self, problem: Problem, device: NDArray[np.int32], classes: NDArray[Any] | None = None
    ) -> NDArray[np.float64] | None:
        """Plans × ops: the longest way to the end first, units earlier or later by class."""
        if classes is None and not self.shape.ranked:
            return None
        seen = self.see(problem)
        order = seen.order(device)
        if classes is not None:
            moved = (classes - MIDDLE) / MIDDLE * _SPAN * -order.min(axis=1, keepdims=True)
            order += moved[:, seen.unit]
        return order

    def _decide(
        self, seen: Seen, begun: Begun, choose: Drawn | Forced, margin: float
    ) -> dict[str, torch.Tensor]:
        """All tasks and passes, each decision left to `choose`; what is decided of units."""
        graph: Graph = seen, *self.trunk(seen.on(self.where))
        plan = {
            task: torch.as_tensor(begun[task], device=self.where)
            for task in ("device", *self.levels)
        }
        slots = self.shape.slots
        graphs = {level: self.by_groups(graph, level) for level in {each for _, each in slots}}
        for at, (task, level) in enumerate(slots):
            part, group = graphs[level], self._group(seen, level)
            now = {name: self._rounded(seen, level, each) for name, each in plan.items()}
            rows = choose.rows(at)
            # Many episodes begin alike: what they have in common is worked out once.
            told = torch.cat([each[rows] for each in now.values()], dim=1)
            alike, same = torch.unique(told, dim=0, return_inverse=True)
            parts = alike.split(len(part[0]), dim=1)
            logits = self._asked(part, task, level, dict(zip(now, parts, strict=True)))[same]
            stay = margin * one_hot(now[task][rows], logits.shape[2])
            choice = choose(Asked(f"{task}/{level}", part[0], logits, rows, now[task], stay))
            # A group that stays leaves its units as they are, whatever that is.
            plan[task] = torch.where((choice != now[task])[:, group], choice[:, group], plan[task])
        return plan

    def _asked(
        self, graph: Graph, task: str, level: str, plan: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Plans × groups × choices."""
        if not len(plan[task]):
            choices = graph[0].legal.shape[1] if task == "device" else CLASSES
            return torch.zeros(0, len(graph[0]), choices, device=self.where)
        if task == "device":
            return self._device(graph, plan[task], LEVELS.index(level))[0]
        return self._classes(graph, task, level, plan)

    def _group(self, seen: Seen, level: str) -> torch.Tensor:
        """Units: the group of each."""
        return torch.as_tensor(seen.members(level), device=self.where)

    def _rounded(self, seen: Seen, level: str, plan: torch.Tensor) -> torch.Tensor:
        """Plans × groups: what plans of units have decided for most of the work of each."""
        grouped = seen.grouped(level)
        if grouped is None:
            return plan
        work = seen.on(self.where)["seconds"].amin(dim=1) + 1e-6
        table = one_hot(plan, max(seen.legal.shape[1], CLASSES)) * work[None, :, None]
        total = torch.zeros(len(plan), len(grouped.seen), table.shape[2], device=self.where)
        return total.index_add_(1, self._group(seen, level), table).argmax(dim=2)

    def _state(self, seen: Seen, plan: torch.Tensor) -> torch.Tensor:
        return pairs(seen.on(self.where), plan, self._times(seen, plan))

    def _times(self, seen: Seen, plan: torch.Tensor) -> Times | None:
        """When units run under plans; those asked for last are remembered."""
        if not self.shape.timed:
            return None
        if self.clock is None:
            raise ConfigError(
                "this policy must be told when ops run, by its `clock`: "
                "use it through placewright.training, such as GoProposer"
            )
        rows = plan.cpu().numpy()
        known, key = seen.moments, str(self.where).encode() + rows.tobytes()
        if key not in known:
            device = seen.settle(rows)
            start, end = seen.times(*self.clock(seen.problem, device, seen.order(device)))
            if len(known) >= _REMEMBERED:
                known.pop(next(iter(known)))
            known[key] = (
                torch.as_tensor(start, device=self.where),
                torch.as_tensor(end, device=self.where),
            )
        return known[key]

    def _read(self, graph: Graph, state: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
        """Plans × units × width: each unit where it is now, among the others."""
        _, x, whole = graph
        read: torch.Tensor = x + self.now(_at(state, plan))
        for layer in self.layers:
            read = layer(read, whole)
        return read

    def _device(
        self, graph: Graph, plan: torch.Tensor, mode: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits; shared vectors, those of the task, and what it was told, for other tasks."""
        seen, _, whole = graph
        on, state = seen.on(self.where), self._state(seen, plan)
        read = self._read(graph, state, plan)
        out = self.task(read + self.which[0], whole)
        logits = self.place(out, state, on["each"], mode).masked_fill(~on["legal"], NEVER)
        return logits, read, out, state

    def _classes(
        self, graph: Graph, task: str, level: str, plan: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Plans × units × classes: what a task after placement would do.

        Each reads the shared vectors, what the task before made of them, and what was decided.
        """
        whole, where = graph[2], plan["device"]
        out: torch.Tensor | None = None
        if "device" in self.shape.tasks:
            _, read, out, state = self._device(graph, where, LEVELS.index(level))
        else:
            state = self._state(graph[0], where)
            read = self._read(graph, state, where)
        said = self.placed(_at(state, where))
        for at, name in enumerate(self.shape.tasks):
            if name == "device":
                continue
            given = read + self.which[at] + said
            said = self.told[name](one_hot(plan[name], CLASSES).to(read.dtype))
            out = self.task(given + said if out is None else given + said + out, whole)
            if name == task:
                break
        assert out is not None
        logits: torch.Tensor = self.levels[task](out)
        return logits


def begun_of(episodes: Episodes, when: str) -> dict[str, NDArray[np.int64]]:
    """What episodes began with (`start`) or ended with (`end`), for `Go.act`."""
    prefix = f"{when}/"
    found = {key: value for key, value in episodes.actions.items() if key.startswith(prefix)}
    return {key.removeprefix(prefix): value for key, value in found.items()}


def _at(state: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
    """Plans × units × numbers: what is told of each unit on the device where a plan has it."""
    index = plan[:, :, None, None].expand(-1, -1, 1, state.shape[3])
    return state.gather(2, index)[:, :, 0]
