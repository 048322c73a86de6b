"""GO: all ops at once on devices, in passes that each refine the plan before; a problem in.

The transferable graph optimizer (Zhou et al. 2020, and GDP 2019). No code and no sizes of it were
published, so this is like GO: what the paper fixes is kept (max-pooled GraphSAGE, segment
recurrence, superposition, passes, tasks that read each other through recurrent attention) and the
rest is ours. A device is told by what it means for each unit and not by its number, so one policy
serves any cluster. The first pass refines a list schedule: from no plan, equal devices would look
equal and no gradient could tell them apart.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from placewright.errors import ConfigError
from placewright.policies.go_draw import Drawn, Forced, Luck
from placewright.policies.go_fusion import fusions
from placewright.policies.go_graph import DEVICE, GRAPH, UNIT, Seen
from placewright.policies.go_network import Attention, DeviceHead, Trunk
from placewright.policies.go_start import STARTS
from placewright.policies.go_state import HERE, PAIR, pairs
from placewright.policies.policy import Episodes, Scores, one_plan_each
from placewright.policies.seq2seq import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.policies.go_state import Times
    from placewright.problem import Problem

    Floats = NDArray[np.float64]
    Clock = Callable[[Problem, NDArray[np.int32], Floats], tuple[Floats, Floats]]
    Graph = tuple[Seen, torch.Tensor, torch.Tensor]
    """A problem as it is seen, a vector for each unit, and one for the whole."""

NAME = "go"
TASKS = ("device", "priority", "fusion")
LEVELS = 5
"""Classes of priority, and of how early an op is considered for fusion."""
START, PASS, SEARCH = 0, 1, 2
"""Which plan a pass reads: the first one, an earlier pass's, or a search's."""
_SPAN = 0.1  # how far the classes of priority move an op, as a share of the longest way
_MIDDLE = (LEVELS - 1) / 2
_REMEMBERED = 4  # batches of plans whose times are kept, for further epochs on them


@dataclass(frozen=True)
class Shape:
    """What the network is like.

    Args:
        hidden: Size of a unit's vector.
        rounds: Of messages between neighbours.
        layers: Of attention, beside the one that all tasks share.
        segment: Units that attend to each other, and to as many before them.
        wide: Of the layer that joins a unit with a device.
        passes: Plans in a row, each refining the one before.
        starts: How many first plans there are (`go_start.first_plans`); episodes take turns.
        tasks: What is decided: `device`, `priority`, `fusion`. Without `device` the first plan is
            kept; without `priority` ops are ordered by rank if `ranked`, else left as they are.
        attention, modulation: Off for ablations.
        timed: Whether it is told when ops run under the plan that it reads. It then needs a
            `clock`, since policies know no simulator; `training` has one.
        stay: The logit that a fresh policy adds to the device where a unit is: with some it begins
            at the plan that it reads.
        most: Units are merged along heavy edges until there are no more than this, but for
            the dozen that is left in any case.
        drawn: The share of decisions that an episode draws, at most; the others are the likeliest.
            Below 1 each episode has its own share, down to a few decisions, so that its reward says
            something about them.
        together: Whether neighbouring units share their luck in some episodes, so that a layer
            moves as a whole. Each decision's own probability stays what it is.
    """

    hidden: int = 64
    rounds: int = 3
    layers: int = 2
    heads: int = 4
    segment: int = 128
    wide: int = 32
    passes: int = 2
    starts: int = 1
    tasks: tuple[str, ...] = ("device",)
    ranked: bool = True
    attention: bool = True
    modulation: bool = True
    timed: bool = False
    stay: float = 0.0
    most: int = 200_000
    drawn: float = 1.0
    together: bool = False

    def __post_init__(self) -> None:
        if not self.tasks or list(self.tasks) != [task for task in TASKS if task in self.tasks]:
            raise ConfigError(f"GO is given tasks {self.tasks!r}: expected some of {TASKS}")
        if not 1 <= self.starts <= STARTS:
            raise ConfigError(f"GO is given {self.starts!r} first plans: expected 1 to {STARTS}")
        if self.passes < 1:
            raise ConfigError(f"GO is given {self.passes!r} passes: expected 1 or more")

    def build(self, problem: Problem, seed: int = 0) -> Go:
        """A fresh policy; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Go(self)


class Go(nn.Module):
    """Decides on all units at once, pass after pass."""

    name = NAME

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden
        how = width, shape.heads, shape.segment, shape.modulation, shape.attention
        self.trunk = Trunk(width, shape.rounds)
        self.now = nn.Linear(PAIR, width)
        self.layers = nn.ModuleList(Attention(*how) for _ in range(shape.layers))
        self.task = Attention(*how)
        self.which = nn.Parameter(torch.randn(len(shape.tasks), width) * 0.1)
        if "device" in shape.tasks:
            self.place = DeviceHead(width, shape.wide)
            with torch.no_grad():
                self.place.linear[:, HERE] = shape.stay
        classes = [task for task in shape.tasks if task != "device"]
        self.levels = nn.ModuleDict({task: nn.Linear(width, LEVELS) for task in classes})
        self.told = nn.ModuleDict(
            {
                task: nn.Linear(PAIR if task == "device" else LEVELS, width)
                for task in shape.tasks[:-1]
            }
        )
        for head in self.levels.values():
            assert isinstance(head, nn.Linear)
            nn.init.normal_(head.weight, std=0.01)
            with torch.no_grad():  # an op keeps its place unless there is a reason
                head.bias[LEVELS // 2] += 1.5
        self.clock: Clock | None = None
        """Tells when ops run: problem, plans × ops and their order in, starts and ends out."""
        self._seen: WeakKeyDictionary[Problem, Seen] = WeakKeyDictionary()

    def config(self) -> dict[str, Any]:
        sizes = [UNIT, GRAPH, DEVICE, PAIR, LEVELS]
        return {"shape": {**asdict(self.shape), "tasks": list(self.shape.tasks)}, "sizes": sizes}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Go:
        if data["sizes"] != [UNIT, GRAPH, DEVICE, PAIR, LEVELS]:
            raise ValueError(f"it is told {data['sizes']} numbers")
        return cls(Shape(**{**data["shape"], "tasks": tuple(data["shape"]["tasks"])}))

    @property
    def where(self) -> torch.device:
        return self.which.device

    @property
    def orders(self) -> bool:
        """Whether its plans come with an order."""
        return self.shape.ranked or "priority" in self.shape.tasks

    def begin(self, problem: Problem, device: NDArray[np.integer]) -> None:
        """Let its first pass read this plan of ops from now on, instead of a list schedule."""
        seen = self.see(problem)
        start = np.asarray(device)[seen.leader].astype(np.int64)
        self._seen[problem] = replace(seen, starts=start[None])

    def see(self, problem: Problem) -> Seen:
        """The problem as this policy sees it; worked out once."""
        if problem not in self._seen:
            self._seen[problem] = Seen.of(problem, self.shape.most, self.shape.starts)
        return self._seen[problem]

    @torch.no_grad()
    def act(
        self,
        problem: Problem,
        count: int,
        seed: int,
        *,
        noise: float = 0.0,
        greedy: bool = False,
        hold: float = 0.0,
    ) -> Episodes:
        """See `Policy.act`.

        Args:
            hold: How much surer than that it stays a unit's move must be, in nats; part of the
                actions, so that `score` sees the policy that acted.
        """
        seen = self.see(problem)
        luck = Luck(seen, count, seed, self.where, noise, greedy, self._share(greedy))
        start = seen.starts[np.arange(count) % len(seen.starts)]
        drawn = Drawn(luck)
        self._decide(seen, torch.as_tensor(start, device=self.where), drawn, hold)
        actions, log_prob = drawn.done()
        actions["start"], actions["hold"] = start, np.full(count, hold, dtype=np.float32)
        device = seen.settle(actions.get("device", start))
        fusion = None
        if "fusion" in actions:
            fusion = fusions(problem, device, actions["fusion"][:, seen.unit].astype(float))
        order = self._order(seen, count, actions.get("priority"))
        return Episodes(actions, device, one_plan_each(count), log_prob, order, fusion)

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        seen, actions = self.see(problem), episodes.actions
        forced = Forced(seen, actions, self.where)
        start = torch.as_tensor(actions["start"], device=self.where)
        self._decide(seen, start, forced, float(actions["hold"][0]))
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
        """Plans × units × devices: what it would do about plans × units, read in such a mode."""
        seen, x, whole = graph
        on = seen.on(self.where)
        now = torch.as_tensor(np.asarray(plans, dtype=np.int64), device=self.where)
        state = pairs(on, now, self._times(seen, now))
        _, logits = self._device(on, self._read(x, whole, state, now), whole, state, mode)
        return logits.masked_fill(~on["legal"], NEVER)

    def _share(self, greedy: bool) -> tuple[float, bool]:
        return (1.0, False) if greedy else (self.shape.drawn, self.shape.together)

    def _decide(self, seen: Seen, plan: torch.Tensor, choose: Drawn | Forced, hold: float) -> None:
        """All passes, each decision left to `choose`."""
        on, shape = seen.on(self.where), self.shape
        x, whole = self.trunk(on)
        count = len(plan)
        passes = shape.passes if "device" in shape.tasks else 1  # a later one would read the same
        for at in range(passes):
            # Many episodes begin alike: what they have in common is worked out once.
            same = torch.arange(count, device=self.where)
            now = plan
            if at == 0 and count > 1:
                now, same = torch.unique(plan, dim=0, return_inverse=True)
            state = pairs(on, now, self._times(seen, now))
            read = self._read(x, whole, state, now)
            out: torch.Tensor | None = None
            if "device" in shape.tasks:
                mode = START if at == 0 else PASS
                out, logits = self._device(on, read, whole, state, mode)
                logits = logits + hold * state[..., HERE]
                plan = choose("device", at, logits[same], on["legal"])
            if at == passes - 1:
                out = None if out is None else out[same]
                self._levels(read[same], whole, state[same], plan, out, choose)

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
            order = np.repeat(-seen.rank[None], len(rows), axis=0)
            start, end = seen.times(*self.clock(seen.problem, seen.settle(rows), order))
            if len(known) >= _REMEMBERED:
                known.pop(next(iter(known)))
            known[key] = (
                torch.as_tensor(start, device=self.where),
                torch.as_tensor(end, device=self.where),
            )
        return known[key]

    def _read(
        self, x: torch.Tensor, whole: torch.Tensor, state: torch.Tensor, plan: torch.Tensor
    ) -> torch.Tensor:
        """Plans × units × width: each unit where it is now, among the others."""
        read: torch.Tensor = x + self.now(_at(state, plan))
        for layer in self.layers:
            read = layer(read, whole)
        return read

    def _device(
        self,
        on: dict[str, torch.Tensor],
        read: torch.Tensor,
        whole: torch.Tensor,
        state: torch.Tensor,
        mode: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.task(read + self.which[0], whole)
        return out, self.place(out, state, on["each"], mode)

    def _levels(
        self,
        read: torch.Tensor,
        whole: torch.Tensor,
        state: torch.Tensor,
        plan: torch.Tensor,
        out: torch.Tensor | None,
        choose: Drawn | Forced,
    ) -> None:
        """The tasks after placement: each reads the shared vectors and what the one before did."""
        said: torch.Tensor | None = None
        for at, task in enumerate(self.shape.tasks):
            if task == "device":
                said = self.told[task](_at(state, plan)) if task in self.told else None
                continue
            given = read + self.which[at]
            given = given if out is None else given + out
            given = given if said is None else given + said
            out = self.task(given, whole)
            logits = self.levels[task](out)
            legal = torch.ones(logits.shape[1:], dtype=torch.bool, device=logits.device)
            choice = choose(task, 0, logits, legal)
            if task in self.told:
                said = self.told[task](nn.functional.one_hot(choice, LEVELS).to(out.dtype))

    def _order(
        self, seen: Seen, count: int, level: NDArray[Any] | None
    ) -> NDArray[np.float64] | None:
        """Episodes × ops: the longest way to the end first, earlier or later by class."""
        if level is None and not self.shape.ranked:
            return None
        order = np.repeat(-seen.rank[None], count, axis=0)
        if level is not None:
            moved = (level - _MIDDLE) / _MIDDLE * _SPAN * float(seen.rank.max())
            order += moved[:, seen.unit]
        return order


def _at(state: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
    """Plans × units × numbers: what is told of each unit on the device where a plan has it."""
    index = plan[:, :, None, None].expand(-1, -1, 1, state.shape[3])
    return state.gather(2, index)[:, :, 0]
