"""ColocRL: places co-location groups one after the other with a sequence-to-sequence model.

Mirhoseini et al. 2017, "Device Placement Optimization with Reinforcement Learning". Sizes that the
paper does not give are those of its successor (Hierarchical). A group's type is the mean of its
ops' type vectors, its shapes are the bytes of its outputs, its adjacency is over groups.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from placewright.files import validation
from placewright.policies import grouping as op_groups
from placewright.policies.exploration_noise import correlated_noise, similarities
from placewright.policies.policy import (
    Episodes,
    HeadScores,
    PolicyConfig,
    PolicyDefaults,
    Scores,
    one_plan_per_episode,
)
from placewright.policies.seq2seq import EncoderMemory, Placer, uniform_entropy

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.transforms import Grouping

NAME = "colocrl"


@dataclass(frozen=True)
class ColocRLConfig(PolicyConfig):
    """Settings of ColocRL.

    Args:
        grouping: How ops are grouped: `cells` (the paper's), `colocation`, `coarse` or `module`.
        max_groups: Groups are merged until there are no more than this.
        hidden: Size of the LSTMs' states.
        types: Size of a type's learned vector.
        outputs: Output tensors of a group whose bytes are features.
        shared: Whether noise is shared by similar groups, and at least one nat.
        patches: Whether half of that noise moves a few similar groups and leaves the others alone.
        padded: Whether a problem may have fewer than `max_groups` groups: adjacency is padded, and
            unknown kinds of op are left out. One policy can then place many graphs, as Placeto's
            authors had it do, though nothing in the paper makes it good at that.
    """

    grouping: str = "colocation"
    max_groups: int = 64
    hidden: int = 128
    types: int = 20
    outputs: int = 6
    both_ways: bool = False
    shared: bool = False
    patches: bool = False
    temperature: float = 1.0
    tanh: float = 0.0
    padded: bool = False
    OPTIONS: ClassVar = {"groups": "max_groups", "hidden": "hidden", "grouping": "grouping"}

    def for_many_graphs(self) -> ColocRLConfig:
        return replace(self, padded=True)

    def build(self, problem: Problem, seed: int = 0) -> ColocRL:
        """A fresh policy for a problem; the same seed gives the same weights."""
        grouping = op_groups.group_ops(problem, self.grouping, self.max_groups)
        kinds = op_groups.op_kinds(problem)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            count = self.max_groups if self.padded else len(grouping)
            return ColocRL(self, kinds, count, problem.arrays.devices)


@dataclass(frozen=True, eq=False)
class ColocRLObservation:
    """The network's inputs for a problem."""

    grouping: Grouping
    legal: torch.Tensor  # groups × devices
    kinds: torch.Tensor  # groups × kinds, rows add up to 1
    features: torch.Tensor  # groups × (outputs + groups)

    @property
    def adjacency(self) -> torch.Tensor:
        """Groups × groups: whether they exchange tensors."""
        return self.features[:, -len(self.features) :]


class ColocRL(PolicyDefaults, nn.Module):
    """Places co-location groups in graph order, each with regard to those before it.

    Args:
        kinds: The kinds of op that have a learned vector.
        groups, devices: Their number, in any problem that it places.
    """

    name = NAME

    def __init__(
        self, config: ColocRLConfig, kinds: tuple[str, ...], groups: int, devices: int
    ) -> None:
        super().__init__()
        self.config, self.kinds, self.groups, self.devices = config, kinds, groups, devices
        self.kind = nn.Linear(len(kinds), config.types, bias=False)
        nn.init.xavier_uniform_(self.kind.weight)
        width = config.types + config.outputs + groups
        self.placer = Placer(
            width,
            config.hidden,
            devices,
            config.both_ways,
            config.temperature,
            config.tanh,
            1.0 if config.shared else 0.0,
        )
        self._observations: WeakKeyDictionary[Problem, ColocRLObservation] = WeakKeyDictionary()

    def to_config(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.config),
            "kinds": list(self.kinds),
            "groups": self.groups,
            "devices": self.devices,
        }

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> ColocRL:
        return cls(
            ColocRLConfig.from_data(data),
            validation.texts(data["kinds"], "kinds"),
            data["groups"],
            data["devices"],
        )

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self.observe(problem).grouping

    @torch.no_grad()
    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        observation, torch_device = self.observe(problem), self.placer.go.device
        rng = np.random.default_rng(seed)
        size = (count, len(observation.grouping), self.devices)
        gumbel = np.zeros(size) if greedy else rng.gumbel(size=size)
        logit_noise = None
        if noise > 0 and self.config.shared:
            bases = similarities(
                *(tensor.cpu().numpy() for tensor in (observation.kinds, observation.adjacency))
            )
            logit_noise = noise * correlated_noise(
                rng, bases, count, self.devices, self.config.patches
            )
        elif noise > 0:
            logit_noise = rng.normal(scale=noise, size=size)
        device, log_prob, logit_shift = self.placer.sample(
            self._encode(observation, count),
            observation.legal,
            torch.as_tensor(gumbel, dtype=torch.float32, device=torch_device),
            None
            if logit_noise is None
            else torch.as_tensor(logit_noise, dtype=torch.float32, device=torch_device),
        )
        group_devices = device.cpu().numpy().astype(np.int32)
        actions = {"device": group_devices}
        if logit_shift is not None:
            actions["added"] = logit_shift.cpu().numpy()
        return Episodes(
            actions,
            problem.legalize(observation.grouping.expand(group_devices)),
            one_plan_per_episode(count),
            log_prob.cpu().numpy(),
        )

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        observation, torch_device = self.observe(problem), self.placer.go.device
        device = torch.as_tensor(episodes.actions["device"], dtype=torch.long, device=torch_device)
        logit_shift = episodes.actions.get("added")
        log_prob, entropy, log_prob_of_best = self.placer.score(
            self._encode(observation, len(device)),
            observation.legal,
            device,
            None if logit_shift is None else torch.as_tensor(logit_shift, device=torch_device),
            None
            if best is None
            else torch.as_tensor(best.actions["device"], device=torch_device).long(),
        )
        head = HeadScores("devices", log_prob, entropy, uniform_entropy(observation.legal))
        return Scores((head,), log_prob_of_best=log_prob_of_best)

    def select(self, episodes: Episodes, index: int) -> Episodes:
        actions = {"device": episodes.actions["device"][index : index + 1].copy()}
        placements, log_prob = (
            episodes.placements[index : index + 1],
            episodes.log_prob[index : index + 1],
        )
        return Episodes(actions, placements.copy(), one_plan_per_episode(1), log_prob.copy())

    def _encode(self, observation: ColocRLObservation, episodes: int) -> EncoderMemory:
        """The groups, encoded once for all episodes."""
        groups = torch.cat([self.kind(observation.kinds), observation.features], dim=1)[None]
        return self.placer.encode(
            groups, torch.zeros(episodes, dtype=torch.long, device=groups.device)
        )

    def observe(self, problem: Problem) -> ColocRLObservation:
        """The network's inputs for a problem, computed once."""
        torch_device, cached = self.placer.go.device, self._observations.get(problem)
        if cached is None or cached.legal.device != torch_device:
            config = self.config
            grouping = op_groups.group_ops(problem, config.grouping, config.max_groups)
            fits = config.padded and len(grouping) <= self.groups
            group_count = self.groups if fits else len(grouping)
            op_groups.check_dimensions(problem, self.devices, self.groups, group_count)
            counts = op_groups.kind_counts(problem, grouping, self.kinds)
            source, target = op_groups.group_edges(problem, grouping)
            adjacency = np.zeros((len(grouping), self.groups), dtype=np.float32)
            adjacency[source, target] = adjacency[target, source] = 1.0
            sizes = op_groups.largest_output_bytes(problem, grouping, config.outputs)
            legal = op_groups.legal_devices(problem, grouping)
            self._observations[problem] = ColocRLObservation(
                grouping,
                torch.as_tensor(legal, device=torch_device),
                torch.as_tensor(
                    counts / np.maximum(counts.sum(1, keepdims=True), 1), device=torch_device
                ),
                torch.as_tensor(np.concatenate([sizes, adjacency], axis=1), device=torch_device),
            )
        return self._observations[problem]
