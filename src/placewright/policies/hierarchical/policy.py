"""Hierarchical: a grouper assigns ops to groups, a placer puts groups on devices.

Mirhoseini, Goldie et al. 2018, "A Hierarchical Model for Device Placement". Errors of TensorFlow's
open code are not copied: we score the groups and devices that were executed, with the group
features they were made from; types and shapes have columns of their own; an op has all its
neighbours. Our graphs have bytes instead of shapes, and a position in the graph instead of the
paper's breadth-first index. All features are scaled, as raw ones saturate the grouper at once.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.nn.functional import log_softmax

from placewright.errors import ConfigError
from placewright.files import validation
from placewright.policies import grouping as op_groups
from placewright.policies.exploration_noise import correlated_noise, similarities
from placewright.policies.hierarchical.units import GrouperUnits
from placewright.policies.policy import (
    Episodes,
    HeadScores,
    PolicyConfig,
    PolicyDefaults,
    Scores,
    join_plans,
    one_plan_per_episode,
    take_plans,
)
from placewright.policies.seq2seq import (
    EncoderMemory,
    Placer,
    log_prob_and_entropy,
    uniform_entropy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem

NAME = "hierarchical"
_ROW_ACTIONS = ("group", "group_added")  # by grouping; other actions are by episode


@dataclass(frozen=True)
class HierarchicalConfig(PolicyConfig):
    """Settings of Hierarchical.

    Args:
        groups: Number of groups that the grouper chooses from.
        placements: Episodes that share one grouping: the paper's k; its m is then 1.
        hidden: Size of the placer's states; each direction of the encoder has half.
        grouper: Size of the grouper's hidden layer.
        linear: Whether that layer has neither bias nor non-linearity, as in the open code.
        types: Size of a type's learned vector.
        neighbours: Sources of an op, and readers, whose positions are features.
        both: Whether adjacency tells sources from readers, as in the open code.
        shared: Whether noise is shared by similar groups, at least one nat, and none on the
            grouper.
        patches: Whether half of that noise moves a few similar groups and leaves the others alone.
        locality: The initial bias of an op towards one group, in nats; 0 in the paper, where
            initial groups are random.
        home: That group: by the op's segment (`stretch`) of the graph, at random (`random`), or by
            a grouping rule such as `colocation`.
        learn_groups: Whether the grouper learns. If not, it samples groups as it did at first, and
            the placer alone learns: the control that shows what the grouper's learning gains.
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
    learn_groups: bool = True
    OPTIONS: ClassVar = {"groups": "groups", "hidden": "hidden"}

    def for_many_graphs(self) -> HierarchicalConfig:
        raise ConfigError("places one graph: it cannot learn from several")

    def build(self, problem: Problem, seed: int = 0) -> Hierarchical:
        """A fresh policy for a problem; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Hierarchical(self, op_groups.op_kinds(problem), problem.arrays.devices)


@dataclass(frozen=True, eq=False)
class _HierarchicalObservation:
    """The networks' inputs for a problem."""

    units: GrouperUnits
    legal: torch.Tensor  # groups × devices
    kind: torch.Tensor  # units
    rest: torch.Tensor  # units × numbers
    near: torch.Tensor  # units × groups: 0 for the initial group, negative for others
    sizes: torch.Tensor  # units × outputs
    source: torch.Tensor  # edges between units
    target: torch.Tensor


class Hierarchical(PolicyDefaults, nn.Module):
    """Two networks trained together: ops to groups, all at once; groups to devices, one by one."""

    name = NAME

    def __init__(self, config: HierarchicalConfig, kinds: tuple[str, ...], devices: int) -> None:
        super().__init__()
        self.config, self.kinds, self.devices = config, kinds, devices
        self.kind = nn.Embedding(len(kinds), config.types)
        width = config.types + config.outputs + 2 * config.neighbours
        self.inner = nn.Linear(width, config.grouper, bias=not config.linear)
        self.outer = nn.Linear(config.grouper, config.groups, bias=not config.linear)
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
        self.placer = Placer(
            len(kinds) + config.outputs + config.groups * (2 if config.both else 1),
            config.hidden,
            devices,
            True,
            config.temperature,
            config.tanh,
            1.0 if config.shared else 0.0,
        )
        self._observations: WeakKeyDictionary[Problem, _HierarchicalObservation] = (
            WeakKeyDictionary()
        )

    def to_config(self) -> dict[str, Any]:
        return {"settings": asdict(self.config), "kinds": list(self.kinds), "devices": self.devices}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Hierarchical:
        kinds = validation.texts(data["kinds"], "kinds")
        return cls(HierarchicalConfig.from_data(data), kinds, data["devices"])

    @torch.no_grad()
    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        observation, torch_device, groups = (
            self._observe(problem),
            self.placer.go.device,
            self.config.groups,
        )
        rng = np.random.default_rng(seed)
        row_of = np.arange(count) // self.config.placements
        rows = int(row_of[-1]) + 1
        logits = self._grouper_logits(observation)  # of all rows alike, unless noise is added
        gumbel = self._random_tensor(np.zeros, (rows, len(observation.units), groups))
        actions: dict[str, NDArray[Any]] = {"of": row_of}
        if noise > 0 and not self.config.shared:
            logit_scale = logits.square().mean(dim=(1, 2), keepdim=True).sqrt()
            group_shift = (
                logit_scale * noise * self._random_tensor(rng.standard_normal, gumbel.shape)
            )
            actions["group_added"], logits = group_shift.cpu().numpy(), logits + group_shift
        if not greedy:
            gumbel = self._random_tensor(partial(_sample_gumbel, rng), gumbel.shape)
        group = (logits + gumbel).argmax(dim=2)
        group_log_prob = _group_scores(logits, group)[0]
        size = (count, groups, self.devices)
        logit_noise = None
        if noise > 0 and self.config.shared:
            logit_noise = noise * self._correlated_noise(
                rng, observation, group.cpu().numpy(), row_of
            )
        elif noise > 0:
            logit_noise = noise * self._random_tensor(rng.standard_normal, size)
        rows_of_episodes = torch.as_tensor(row_of, device=torch_device)
        device, device_log_prob, device_shift = self.placer.sample(
            self._encode(observation, group, rows_of_episodes),
            observation.legal,
            self._random_tensor(np.zeros if greedy else partial(_sample_gumbel, rng), size),
            logit_noise,
        )
        if device_shift is not None:
            actions["device_added"] = device_shift.cpu().numpy()
        actions |= {"group": group.cpu().numpy(), "device": device.cpu().numpy()}
        unit_devices = np.take_along_axis(actions["device"], actions["group"][row_of], axis=1)
        return Episodes(
            actions,
            problem.legalize(observation.units.grouping.expand(unit_devices.astype(np.int32))),
            one_plan_per_episode(count),
            torch.cat([group_log_prob[rows_of_episodes], device_log_prob], dim=1).cpu().numpy(),
        )

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        observation, torch_device = self._observe(problem), self.placer.go.device
        actions = {
            key: torch.as_tensor(val, device=torch_device) for key, val in episodes.actions.items()
        }
        rows_of_episodes, group = actions["of"], actions["group"]
        logits = self._grouper_logits(observation)
        if not self.config.learn_groups:
            logits = logits.detach()
        best_actions = (
            {
                key: torch.as_tensor(best.actions[key], device=torch_device)
                for key in ("group", "device")
            }
            if best
            else {}
        )
        log_prob_of_best = (
            _group_scores(logits, best_actions["group"].expand(len(group), -1))[0][rows_of_episodes]
            if best
            else None
        )
        logits = logits + actions["group_added"] if "group_added" in actions else logits
        group_log_prob, group_entropy = _group_scores(logits, group)
        device_log_prob, device_entropy, device_log_prob_of_best = self.placer.score(
            self._encode(observation, group, rows_of_episodes),
            observation.legal,
            actions["device"],
            actions.get("device_added"),
            best_actions.get("device"),
        )
        if log_prob_of_best is not None and device_log_prob_of_best is not None:
            log_prob_of_best = torch.cat([log_prob_of_best, device_log_prob_of_best], dim=1)
        max_entropy = torch.full(
            (group.shape[1],), math.log(self.config.groups), device=torch_device
        )
        return Scores(
            (
                HeadScores(
                    "groups",
                    group_log_prob[rows_of_episodes],
                    group_entropy[rows_of_episodes],
                    max_entropy,
                ),
                HeadScores(
                    "devices", device_log_prob, device_entropy, uniform_entropy(observation.legal)
                ),
            ),
            log_prob_of_best=log_prob_of_best,
        )

    def select(self, episodes: Episodes, index: int) -> Episodes:
        row = int(episodes.actions["of"][index])
        actions = {
            "of": np.zeros(1, dtype=np.int64),
            "group": episodes.actions["group"][row : row + 1].copy(),
            "device": episodes.actions["device"][index : index + 1].copy(),
        }
        placements, log_prob = (
            episodes.placements[index : index + 1],
            episodes.log_prob[index : index + 1],
        )
        return Episodes(actions, placements.copy(), one_plan_per_episode(1), log_prob.copy())

    @property
    def tied_episodes(self) -> int:
        return self.config.placements

    def take(self, episodes: Episodes, first: int, last: int) -> Episodes:
        row_of = episodes.actions["of"][first:last]
        rows = slice(int(row_of[0]), int(row_of[-1]) + 1)
        actions = {
            name: (values[rows] if name in _ROW_ACTIONS else values[first:last]).copy()
            for name, values in episodes.actions.items()
        }
        return take_plans(episodes, first, last, {**actions, "of": row_of - row_of[0]})

    def join_episodes(self, parts: Sequence[Episodes]) -> Episodes:
        joined = {
            name: np.concatenate([part.actions[name] for part in parts])
            for name in parts[0].actions
        }
        rows = np.cumsum([0, *(len(part.actions["group"]) for part in parts[:-1])])
        row_of = [part.actions["of"] + row for part, row in zip(parts, rows, strict=True)]
        return join_plans(parts, {**joined, "of": np.concatenate(row_of)})

    def _grouper_logits(self, observation: _HierarchicalObservation) -> torch.Tensor:
        """1 × units × groups."""
        hidden = self.inner(torch.cat([self.kind(observation.kind), observation.rest], dim=1))
        logits = self.outer(hidden if self.config.linear else torch.relu(hidden))
        return (logits + self.config.locality * observation.near)[None]

    def _encode(
        self, observation: _HierarchicalObservation, group: torch.Tensor, row_of: torch.Tensor
    ) -> EncoderMemory:
        """Features of groups (rows × units) for the placer, encoded once for each grouping."""
        group, number = torch.unique(group, dim=0, return_inverse=True)
        rows, units = group.shape
        count, kinds = self.config.groups, len(self.kinds)
        group_index = group + count * torch.arange(rows, device=group.device)[:, None]
        types = torch.zeros(rows * count * kinds, device=group.device)
        ones = torch.ones(rows * units, device=group.device)
        types = types.index_add(0, (group_index * kinds + observation.kind).flatten(), ones)
        sizes = torch.zeros(rows * count, observation.sizes.shape[1], device=group.device)
        sizes = sizes.index_add(0, group_index.flatten(), observation.sizes.repeat(rows, 1))
        adjacency = torch.zeros(rows * count * count, device=group.device)
        adjacency[
            (group_index[:, observation.source] * count + group[:, observation.target]).flatten()
        ] = 1.0
        adjacency = adjacency.view(rows, count, count) * (1 - torch.eye(count, device=group.device))
        transposed = adjacency.transpose(1, 2)
        parts = [
            torch.log1p(types).view(rows, count, kinds) / math.log1p(units),
            torch.log1p(sizes).view(rows, count, -1) / 30.0,  # to about 1: e^30 bytes are 10 TB
            *(
                [adjacency, transposed]
                if self.config.both
                else [torch.maximum(adjacency, transposed)]
            ),
        ]
        return self.placer.encode(torch.cat(parts, dim=2), number[row_of])

    def _correlated_noise(
        self,
        rng: np.random.Generator,
        observation: _HierarchicalObservation,
        group: NDArray[np.int64],
        row_of: NDArray[np.int64],
    ) -> torch.Tensor:
        """Noise (episodes × groups × devices) for these groupings (rows × units)."""
        count, kind = self.config.groups, observation.kind.cpu().numpy()
        source, target = observation.source.cpu().numpy(), observation.target.cpu().numpy()
        samples = []
        bases: dict[bytes, tuple[NDArray[Any], ...]] = {}  # of each grouping that is new
        for row, episodes in zip(group, np.bincount(row_of).tolist(), strict=True):
            if row.tobytes() not in bases:
                kinds = np.zeros((count, len(self.kinds)), dtype=np.float32)
                np.add.at(kinds, (row, kind), 1.0)
                kinds /= np.maximum(kinds.sum(axis=1, keepdims=True), 1.0)
                adjacency = np.zeros((count, count), dtype=np.float32)
                adjacency[row[source], row[target]] = 1.0
                bases[row.tobytes()] = similarities(kinds, np.maximum(adjacency, adjacency.T))
            own = bases[row.tobytes()]
            samples.append(correlated_noise(rng, own, episodes, self.devices, self.config.patches))
        return torch.as_tensor(np.concatenate(samples), device=self.placer.go.device)

    def _random_tensor(self, sample: Any, size: tuple[int, ...]) -> torch.Tensor:
        return torch.as_tensor(
            sample(size=size) if sample is not np.zeros else np.zeros(size),
            dtype=torch.float32,
            device=self.placer.go.device,
        )

    def _observe(self, problem: Problem) -> _HierarchicalObservation:
        torch_device, cached = self.placer.go.device, self._observations.get(problem)
        if cached is not None and cached.legal.device == torch_device:
            return cached
        config = self.config
        op_groups.check_dimensions(problem, self.devices, config.groups, config.groups)
        units = GrouperUnits.of(problem, self.kinds, config.outputs, config.neighbours)
        # A group may hold any op, so any device is legal that is for some op; `legalize` follows.
        legal = op_groups.legal_devices(problem, units.grouping).any(axis=0, keepdims=True)
        group_bias = _group_bias(problem, units, config)
        arrays: Mapping[str, NDArray[Any]] = {
            "legal": np.repeat(legal, config.groups, axis=0),
            "kind": units.kind,
            "rest": np.concatenate([units.log_sizes, units.neighbour_positions], axis=1),
            "near": group_bias.astype(np.float32),
            "sizes": units.output_bytes,
            "source": units.source,
            "target": units.target,
        }
        tensors = {
            key: torch.as_tensor(value, device=torch_device) for key, value in arrays.items()
        }
        self._observations[problem] = _HierarchicalObservation(units, **tensors)
        return self._observations[problem]


def _group_scores(logits: torch.Tensor, group: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies (rows × units) of groups; one row of logits serves all."""
    if len(logits) == len(group):
        return log_prob_and_entropy(logits, group)
    log_probs = log_softmax(logits[0], dim=1)
    entropy = -(log_probs.exp() * log_probs.clamp(min=-100.0)).sum(dim=1)
    entry = group + log_probs.shape[1] * torch.arange(len(log_probs), device=group.device)
    log_prob = log_probs.flatten().index_select(0, entry.flatten()).view(group.shape)
    return log_prob, entropy.expand(group.shape)


def _sample_gumbel(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """As `rng.gumbel`, of the same random numbers, several times as fast."""
    values: NDArray[np.float64] = rng.random(size)
    np.subtract(1.0, values, out=values)
    np.minimum(values, np.nextafter(1.0, 0.0), out=values)
    for _ in range(2):
        np.log(values, out=values)
        np.negative(values, out=values)
    return values


def _group_bias(
    problem: Problem, units: GrouperUnits, config: HierarchicalConfig
) -> NDArray[np.float64]:
    """Units × groups: 0 for a unit's initial group, and lower for groups farther away.

    Groups of a rule have no order, so that all others are equally far.
    """
    if config.home == "stretch":
        centre = (np.arange(config.groups) + 0.5) / config.groups
        return -0.5 * ((units.position[:, None] - centre) * config.groups) ** 2
    if config.home == "random":
        seed = int(problem.graph.fingerprint[:12], 16)
        group = np.random.default_rng(seed).integers(config.groups, size=len(units))
    else:
        first_op = np.unique(units.grouping.group, return_index=True)[1]
        rule_group = op_groups.group_ops(problem, config.home, config.groups).group
        group = rule_group[first_op].astype(np.int64)
    return -1.0 + (group[:, None] == np.arange(config.groups)).astype(np.float64)
