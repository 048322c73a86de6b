"""GO: decides on all ops at once, in passes that each refine the plan before.

The transferable graph optimizer (Zhou et al. 2020, and GDP 2019). No code and no sizes of it were
published, so this is like GO: what the paper fixes is kept (max-pooled GraphSAGE, segment
recurrence, superposition, passes, tasks that read each other through recurrent attention) and the
rest is ours. A device is described relative to each unit and by the units on it, not by its number,
so one policy works for any cluster. Passes go from coarse to fine: first whole modules of the
network, then parts of them, then single units. The first one refines a heuristic's plan: without a
plan, equal devices would look equal and no gradient could distinguish them.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.nn.functional import one_hot

from placewright import transforms
from placewright.errors import ConfigError
from placewright.policies.go.config import GoConfig
from placewright.policies.go.decisions import (
    DecisionQuery,
    DecisionReplay,
    DecisionSampler,
    Sampler,
)
from placewright.policies.go.features import (
    DEVICE_WIDTH,
    GRAPH_WIDTH,
    UNIT_WIDTH,
)
from placewright.policies.go.levels import LEVELS
from placewright.policies.go.network import (
    DeviceHead,
    SegmentAttention,
    Trunk,
)
from placewright.policies.go.observation import GoObservation
from placewright.policies.go.plan_features import (
    CURRENT_DEVICE,
    PAIR_WIDTH,
    pair_features,
)
from placewright.policies.policy import (
    Episodes,
    PolicyDefaults,
    Scores,
    one_plan_per_episode,
)
from placewright.policies.seq2seq import MASKED_LOGIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.policies.go.plan_features import UnitTimes
    from placewright.policies.policy import Clock
    from placewright.problem import Problem

    EncodedGraph = tuple[GoObservation, torch.Tensor, torch.Tensor]
    """The observation of a problem, a vector for each unit, and one for the graph."""
    Decisions = Mapping[str, NDArray[np.int64]]
    """Episodes × units for each task: the decisions so far."""

NAME = "go"
CLASSES = 5
"""Classes of priority, and of the urgency of fusion."""
SEARCH_MODE = len(LEVELS)
"""The mode of a search that asks about units; passes have the index of their level."""
MIDDLE_CLASS = CLASSES // 2
"""The class that changes nothing."""
_PRIORITY_SPAN = 0.1  # how far classes of priority move an op, as a share of the longest path
_CERTAIN_LOGIT = 1e6  # a logit that outweighs all others
_TIMES_CACHE_SIZE = 4  # batches of plans whose times are cached, for further epochs


class Go(PolicyDefaults, nn.Module):
    """Decides on all units at once, pass after pass."""

    name = NAME

    def __init__(self, config: GoConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden
        attention_config = width, config.heads, config.segment, config.modulation, config.attention
        self.trunk = Trunk(width, config.rounds)
        self.gather = nn.Linear(UNIT_WIDTH, width)
        self.now = nn.Linear(PAIR_WIDTH, width)
        self.layers = nn.ModuleList(
            SegmentAttention(*attention_config) for _ in range(config.layers)
        )
        self.task = SegmentAttention(*attention_config)
        self.which = nn.Parameter(torch.randn(len(config.tasks), width) * 0.1)
        if "device" in config.tasks:
            self.place = DeviceHead(width, config.head_width)
            with torch.no_grad():
                self.place.linear[:, CURRENT_DEVICE] = config.stay_bias
        classes = [task for task in config.tasks if task != "device"]
        self.levels = nn.ModuleDict({task: nn.Linear(width, CLASSES) for task in classes})
        self.told = nn.ModuleDict({task: nn.Linear(CLASSES, width) for task in classes})
        self.placed = nn.Linear(PAIR_WIDTH, width)
        for head in self.levels.values():
            assert isinstance(head, nn.Linear)
            nn.init.normal_(head.weight, std=0.01)
            with torch.no_grad():  # a fresh policy prefers to change nothing
                head.bias[MIDDLE_CLASS] += 1.5
        self._clock: Clock | None = None
        self._observations: WeakKeyDictionary[Problem, GoObservation] = WeakKeyDictionary()

    def to_config(self) -> dict[str, Any]:
        sizes = [UNIT_WIDTH, GRAPH_WIDTH, DEVICE_WIDTH, PAIR_WIDTH, CLASSES]
        fields = {
            **asdict(self.config),
            "tasks": [*self.config.tasks],
            "passes": [*self.config.passes],
        }
        return {"settings": fields, "sizes": sizes}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Go:
        if data["sizes"] != [UNIT_WIDTH, GRAPH_WIDTH, DEVICE_WIDTH, PAIR_WIDTH, CLASSES]:
            raise ValueError(f"it reads {data['sizes']} features")
        return cls(GoConfig.from_data(data))

    @property
    def torch_device(self) -> torch.device:
        return self.which.device

    def use_clock(self, clock: Clock) -> None:
        self._clock = clock

    def start_groups(self, episodes: Episodes) -> NDArray[np.int64]:
        start = np.concatenate(list(decisions_at(episodes, "start").values()), axis=1)
        _, group = np.unique(start, axis=0, return_inverse=True)
        return group.reshape(-1)

    def set_initial_plan(self, problem: Problem, placement: NDArray[np.integer]) -> None:
        """Start episodes at this plan of ops from now on, instead of a heuristic's."""
        observation = self.observe(problem)
        start = np.asarray(placement)[observation.leader].astype(np.int64)
        self._observations[problem] = replace(observation, initial_plans=start[None])

    def observe(self, problem: Problem) -> GoObservation:
        """The observation of a problem; computed once."""
        if problem not in self._observations:
            self._observations[problem] = GoObservation.of(
                problem, self.config.max_groups, self.config.starts
            )
        return self._observations[problem]

    def initial_decisions(self, problem: Problem, count: int) -> dict[str, NDArray[np.int64]]:
        """The initial state of episodes: initial plans in turn, and the middle class everywhere."""
        observation = self.observe(problem)
        decisions = {
            "device": observation.initial_plans[np.arange(count) % len(observation.initial_plans)]
        }
        for task in self.levels:
            decisions[task] = np.full((count, len(observation)), MIDDLE_CLASS)
        return decisions

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
        initial: Decisions | None = None,
        slot_weights: NDArray[np.float64] | None = None,
    ) -> Episodes:
        """See `Policy.act`.

        Args:
            margin: The margin of greedy episodes; the configuration's by default.
            initial: The initial state of episodes, instead of initial plans.
            slot_weights: The weight of each slot, where an episode samples in one alone.
        """
        observation, config = self.observe(problem), self.config
        if not greedy:
            # Units that are not sampled stay: no reward would say that they should not move.
            margin = _CERTAIN_LOGIT
        elif margin is None:
            margin = config.margin
        weights = np.ones(len(config.slots)) if slot_weights is None else slot_weights
        sampling = weights / weights.sum(), config.drawn, config.correlated
        decide = DecisionSampler(Sampler(count, seed, self.torch_device, noise, greedy, *sampling))
        start = initial or self.initial_decisions(problem, count)
        plan = self._decide(observation, start, decide, margin)
        actions, log_prob = decide.outputs()
        end = {task: values.cpu().numpy() for task, values in plan.items()}
        for name, values in (("start", start), ("end", end)):
            actions |= {f"{name}/{task}": values[task] for task in end}
        placements = observation.legalize(end["device"])
        fusion = None
        if "fusion" in end:
            fusion = transforms.fuse(
                problem, placements, end["fusion"][:, observation.unit].astype(float)
            )
        priority = self.priorities(problem, placements, end.get("priority"))
        return Episodes(
            actions, placements, one_plan_per_episode(count), log_prob, priority, fusion
        )

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        replay = DecisionReplay(episodes.actions, self.torch_device)
        self._decide(self.observe(problem), decisions_at(episodes, "start"), replay, 0.0)
        return Scores(replay.heads())

    def select(self, episodes: Episodes, index: int) -> Episodes:
        selection = slice(index, index + 1)
        actions = {
            name: values[selection].copy()
            for name, values in episodes.actions.items()
            if "added" not in name
        }
        return Episodes(
            actions,
            episodes.placements[selection].copy(),
            one_plan_per_episode(1),
            episodes.log_prob[selection].copy(),
            None if episodes.priority is None else episodes.priority[selection].copy(),
            None if episodes.fusion is None else episodes.fusion[selection].copy(),
        )

    def encode_graph(self, problem: Problem) -> EncodedGraph:
        """The encoding of a problem's graph, for `logits`; with gradients."""
        return self._encode(self.observe(problem))

    def _encode(self, observation: GoObservation) -> EncodedGraph:
        return observation, *self.trunk(observation.tensors(self.torch_device).features)

    def logits(self, graph: EncodedGraph, plans: NDArray[np.integer], mode: int) -> torch.Tensor:
        """Plans × units × devices: logits of the next device, for plans × units, in a mode.

        With a coarse graph (`coarsen`) units are groups.
        """
        current = torch.as_tensor(np.asarray(plans, dtype=np.int64), device=self.torch_device)
        return self._device_logits(graph, current, mode)[0]

    def coarsen(self, graph: EncodedGraph, level: str) -> EncodedGraph:
        """The same graph by modules or parts: mean vectors of their units, and their features."""
        observation, x, graph_vector = graph
        grouped_units = observation.at_level(level)
        if grouped_units is None:
            return graph
        group = torch.as_tensor(grouped_units.group, device=self.torch_device)
        total = torch.zeros(
            len(grouped_units.observation), x.shape[1], device=self.torch_device, dtype=x.dtype
        )
        count = torch.bincount(group, minlength=len(grouped_units.observation)).clamp(min=1)
        mean = total.index_add(0, group, x) / count[:, None]
        return (
            grouped_units.observation,
            mean + self.gather(grouped_units.observation.tensors(self.torch_device).features.unit),
            graph_vector,
        )

    def priorities(
        self, problem: Problem, placements: NDArray[np.int32], classes: NDArray[Any] | None = None
    ) -> NDArray[np.float64] | None:
        """Plans × ops: the longest path to the end first, units earlier or later by class."""
        if classes is None and not self.config.ranked:
            return None
        observation = self.observe(problem)
        priority = observation.priorities(placements)
        if classes is not None:
            shift = (
                (classes - MIDDLE_CLASS)
                / MIDDLE_CLASS
                * _PRIORITY_SPAN
                * -priority.min(axis=1, keepdims=True)
            )
            priority += shift[:, observation.unit]
        return priority

    def _decide(
        self,
        observation: GoObservation,
        initial: Decisions,
        choose: DecisionSampler | DecisionReplay,
        margin: float,
    ) -> dict[str, torch.Tensor]:
        """All tasks and passes, with decisions by `choose`: the final decisions for units."""
        graph: EncodedGraph = (
            observation,
            *self.trunk(observation.tensors(self.torch_device).features),
        )
        plan = {
            task: torch.as_tensor(initial[task], device=self.torch_device)
            for task in ("device", *self.levels)
        }
        slots = self.config.slots
        graphs = {level: self.coarsen(graph, level) for level in {value for _, value in slots}}
        for slot, (task, level) in enumerate(slots):
            coarse_graph, group = graphs[level], self._group_index(observation, level)
            current = {
                name: self._majority(observation, level, value) for name, value in plan.items()
            }
            rows = choose.rows(slot)
            # Many episodes start alike: equal states are computed once.
            states = torch.cat([value[rows] for value in current.values()], dim=1)
            distinct, row_of = torch.unique(states, dim=0, return_inverse=True)
            distinct_parts = distinct.split(len(coarse_graph[0]), dim=1)
            logits = self._slot_logits(
                coarse_graph, task, level, dict(zip(current, distinct_parts, strict=True))
            )[row_of]
            stay_logits = margin * one_hot(current[task][rows], logits.shape[2])
            choice = choose(
                DecisionQuery(
                    f"{task}/{level}", coarse_graph[0], logits, rows, current[task], stay_logits
                )
            )
            # A group that stays leaves its units unchanged.
            plan[task] = torch.where(
                (choice != current[task])[:, group], choice[:, group], plan[task]
            )
        return plan

    def _slot_logits(
        self, graph: EncodedGraph, task: str, level: str, plan: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Plans × groups × choices."""
        if not len(plan[task]):
            choices = graph[0].legal.shape[1] if task == "device" else CLASSES
            return torch.zeros(0, len(graph[0]), choices, device=self.torch_device)
        if task == "device":
            return self._device_logits(graph, plan[task], LEVELS.index(level))[0]
        return self._class_logits(graph, task, level, plan)

    def _group_index(self, observation: GoObservation, level: str) -> torch.Tensor:
        """Units: the group of each."""
        return torch.as_tensor(observation.group_of_units(level), device=self.torch_device)

    def _majority(self, observation: GoObservation, level: str, plan: torch.Tensor) -> torch.Tensor:
        """Plans × groups: the choice for most of a group's work in plans of units."""
        grouped_units = observation.at_level(level)
        if grouped_units is None:
            return plan
        seconds = observation.tensors(self.torch_device).features.compute.seconds
        work = seconds.amin(dim=1) + 1e-6
        table = one_hot(plan, max(observation.legal.shape[1], CLASSES)) * work[None, :, None]
        total = torch.zeros(
            len(plan), len(grouped_units.observation), table.shape[2], device=self.torch_device
        )
        return total.index_add_(1, self._group_index(observation, level), table).argmax(dim=2)

    def _pair_features(self, observation: GoObservation, plan: torch.Tensor) -> torch.Tensor:
        return pair_features(
            observation.tensors(self.torch_device), plan, self._unit_times(observation, plan)
        )

    def _unit_times(self, observation: GoObservation, plan: torch.Tensor) -> UnitTimes | None:
        """When units run under plans; the last ones are cached."""
        if not self.config.timed:
            return None
        if self._clock is None:
            raise ConfigError(
                "the policy reads when ops run and has no clock: call its `use_clock`, "
                "as placewright.training does (GoProposer, Trainer)"
            )
        rows = plan.cpu().numpy()
        cache, key = observation.times_cache, str(self.torch_device).encode() + rows.tobytes()
        if key not in cache:
            placements = observation.legalize(rows)
            start, end = observation.unit_times(
                *self._clock.op_times(
                    observation.problem, placements, observation.priorities(placements)
                )
            )
            if len(cache) >= _TIMES_CACHE_SIZE:
                cache.pop(next(iter(cache)))
            cache[key] = (
                torch.as_tensor(start, device=self.torch_device),
                torch.as_tensor(end, device=self.torch_device),
            )
        return cache[key]

    def _encode_plan(
        self, graph: EncodedGraph, features: torch.Tensor, plan: torch.Tensor
    ) -> torch.Tensor:
        """Plans × units × width: each unit on its current device, among the others."""
        _, x, graph_vector = graph
        encoded: torch.Tensor = x + self.now(_on_current_device(features, plan))
        for layer in self.layers:
            encoded = layer(encoded, graph_vector)
        return encoded

    def _device_logits(
        self, graph: EncodedGraph, plan: torch.Tensor, mode: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits; and, for other tasks, shared vectors, those of this task, and pair features."""
        observation, _, graph_vector = graph
        unit_features = observation.tensors(self.torch_device).features
        features = self._pair_features(observation, plan)
        encoded = self._encode_plan(graph, features, plan)
        task_vectors = self.task(encoded + self.which[0], graph_vector)
        logits = self.place(task_vectors, features, unit_features.device, mode).masked_fill(
            ~unit_features.legal, MASKED_LOGIT
        )
        return logits, encoded, task_vectors, features

    def _class_logits(
        self, graph: EncodedGraph, task: str, level: str, plan: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Plans × units × classes: logits of a task after placement.

        Each task reads the shared vectors, those of the task before, and the decisions so far.
        """
        graph_vector, devices = graph[2], plan["device"]
        task_vectors: torch.Tensor | None = None
        if "device" in self.config.tasks:
            _, encoded, task_vectors, features = self._device_logits(
                graph, devices, LEVELS.index(level)
            )
        else:
            features = self._pair_features(graph[0], devices)
            encoded = self._encode_plan(graph, features, devices)
        decision_vectors = self.placed(_on_current_device(features, devices))
        for at, name in enumerate(self.config.tasks):
            if name == "device":
                continue
            task_inputs = encoded + self.which[at] + decision_vectors
            decision_vectors = self.told[name](one_hot(plan[name], CLASSES).to(encoded.dtype))
            task_vectors = self.task(
                task_inputs + decision_vectors
                if task_vectors is None
                else task_inputs + decision_vectors + task_vectors,
                graph_vector,
            )
            if name == task:
                break
        assert task_vectors is not None
        logits: torch.Tensor = self.levels[task](task_vectors)
        return logits


def decisions_at(episodes: Episodes, stage: str) -> dict[str, NDArray[np.int64]]:
    """The initial (`start`) or final (`end`) decisions of episodes, for `Go.act`."""
    prefix = f"{stage}/"
    matching = {key: value for key, value in episodes.actions.items() if key.startswith(prefix)}
    return {key.removeprefix(prefix): value for key, value in matching.items()}


def _on_current_device(features: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
    """Plans × units × features: those of each unit on its current device."""
    index = plan[:, :, None, None].expand(-1, -1, 1, features.shape[3])
    return features.gather(2, index)[:, :, 0]
