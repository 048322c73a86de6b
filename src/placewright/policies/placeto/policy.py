"""Placeto: revises a placement group by group with a graph network over the whole graph.

Addanki et al. 2019, "Learning Generalizable Device Placement Algorithms". An episode starts with a
whole placement and visits every group once, in topological order; a graph network reads the graph
with the current placement and gives the current group a device. A group has the paper's attributes
(time, bytes, device, whether it is the current one, whether it was visited), so no plan is judged
inside an episode. No weight depends on the number of groups, so a policy trained on some graphs
places others; the number of devices is fixed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from placewright.errors import ConfigError, ProblemError
from placewright.policies.placeto.decisions import decision_scores, learned_decisions
from placewright.policies.placeto.episode_network import EpisodeNetwork, EpisodeSteps
from placewright.policies.placeto.graph_features import (
    EDGES,
    ObservationBatch,
    PlacetoObservation,
)
from placewright.policies.policy import (
    Episodes,
    PolicyConfig,
    PolicyDefaults,
    Scores,
    one_plan_per_episode,
)
from placewright.policies.seq2seq import MASKED_LOGIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.policies.policy import Clock
    from placewright.problem import Problem
    from placewright.transforms import Grouping

NAME = "placeto"
_GROUP_ATTRIBUTES = 4  # attributes of a group besides its device
_MAX_ELEMENTS = 2**22  # elements of a layer per chunk; more chunks are recomputed for gradients


@dataclass(frozen=True)
class PlacetoConfig(PolicyConfig):
    """Settings of Placeto; the defaults are those of the authors' code.

    Args:
        grouping: How ops are grouped (`grouping.GROUPINGS`).
        max_groups: Groups are merged until there are no more than this.
        hidden: Size of a group's vector; 0 for as many as it has attributes, as in the paper.
        rounds: Rounds of messages between neighbours; 0 leaves the pooling alone.
        steps: Whether every step's plan is judged, for rewards per step, or the last one alone.
        start: The initial placement of an episode: `first` (all on the first accelerator), `fixed`
            (a random placement, always the same for a problem) or `random` (another one each time).
        times: Whether the start time of a group in the current placement is an attribute too, as in
            the authors' code. Every step is then simulated, by the clock of `use_clock`.
        edges: Which tensors make a group the predecessor of another: `all`, those between
            `scheduled` ops, or those between `forward` ops. In the paper groups form a directed
            acyclic graph. With all tensors a training graph is cyclic, by its weights and wherever
            a gradient op is in its forward op's group, and nearly every group is an ancestor of
            every other one; `scheduled` suits convex groups, `forward` co-location groups.
        means: Whether messages and pools are means over groups, instead of sums. Sums grow with the
            number of groups: with 64 groups of an NMT network the initial policy had no entropy
            left in one of three seeds, and learned nothing.
        learn_fraction: The share of the decisions to learn from, another sample in every episode.
            It changes no sample of the policy, and makes scoring faster.
    """

    grouping: str = "coarse"
    max_groups: int = 64
    hidden: int = 0
    rounds: int = 8
    steps: bool = False
    start: str = "first"
    times: bool = False
    learn_fraction: float = 1.0
    edges: str = "all"
    means: bool = False
    OPTIONS: ClassVar = {
        "groups": "max_groups",
        "hidden": "hidden",
        "grouping": "grouping",
        "start_times": "times",
    }

    def build(self, problem: Problem, seed: int = 0) -> Placeto:
        """A fresh policy for clusters like the problem's; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Placeto(self, problem.arrays.devices)


class Placeto(PolicyDefaults, nn.Module):
    """Revises a placement group by group.

    Args:
        devices: Their number, in any problem that it places.
    """

    name = NAME

    def __init__(self, config: PlacetoConfig, devices: int) -> None:
        super().__init__()
        if config.edges not in EDGES:
            raise ConfigError(f"edges is {config.edges!r}: expected all, scheduled or forward")
        self.config, self.devices = config, devices
        width = _GROUP_ATTRIBUTES + config.times + devices
        hidden = config.hidden or width
        self.read = mlp(width, hidden, hidden, hidden)
        directions = 2 if config.rounds else 0
        self.tell = nn.ModuleList(
            mlp(hidden, hidden, hidden, last_relu=True) for _ in range(directions)
        )
        self.hear = nn.ModuleList(
            mlp(hidden, hidden, hidden, last_relu=True) for _ in range(directions)
        )
        both_width = 2 * hidden if config.rounds else hidden
        self.each = nn.ModuleList(
            mlp(both_width, both_width, both_width, last_relu=True) for _ in range(3)
        )
        self.pool = nn.ModuleList(
            mlp(both_width, both_width, both_width, last_relu=True) for _ in range(3)
        )
        self.out = mlp(4 * both_width, 16 * hidden, 8 * hidden, devices)
        self._clock: Clock | None = None
        self._observations: WeakKeyDictionary[Problem, PlacetoObservation] = WeakKeyDictionary()
        self._networks: WeakKeyDictionary[PlacetoObservation, EpisodeNetwork] = WeakKeyDictionary()

    def to_config(self) -> dict[str, Any]:
        return {"settings": asdict(self.config), "devices": self.devices}

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> Placeto:
        return cls(PlacetoConfig.from_data(data), data["devices"])

    @property
    def judges_steps(self) -> bool:
        return self.config.steps

    def use_clock(self, clock: Clock) -> None:
        self._clock = clock

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self._observe(problem).grouping

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
        """See `Policy.act_all`: all problems in one batch."""
        observations, torch_device = [self._observe(item) for item in problems], self._torch_device
        batch = ObservationBatch.of(observations)
        size = (len(observations), batch.groups, count, self.devices)
        gumbel, logit_noise = np.zeros(size), np.zeros(size if noise else (0,))
        start = np.zeros(size[:3], dtype=np.int64)
        learn_mask = np.ones(size[:3], dtype=bool)
        for at, (observation, seed) in enumerate(zip(observations, seeds, strict=True)):
            rng, own_size = (
                np.random.default_rng(seed),
                (len(observation.grouping), count, self.devices),
            )
            own_gumbel = np.zeros(own_size) if greedy else rng.gumbel(size=own_size)
            gumbel[at, : own_size[0]] = own_gumbel
            if noise:
                logit_noise[at, : own_size[0]] = rng.normal(scale=noise, size=own_size)
            start[at, : own_size[0]] = self._initial_devices(observation, count, rng).T
            if self.config.learn_fraction < 1.0 and not greedy:
                learn_mask[at, : own_size[0]] = (
                    rng.random(own_size[:2]) < self.config.learn_fraction
                )
        device = torch.as_tensor(start.copy(), device=torch_device)  # problems × groups × episodes
        legal = batch.legal | ~batch.legal.any(dim=2, keepdim=True)
        gumbel_tensor = torch.as_tensor(gumbel, dtype=torch.float32, device=torch_device)
        noise_tensor = torch.as_tensor(logit_noise, dtype=torch.float32, device=torch_device)
        log_probs, logit_shifts = [], []
        start_history: list[NDArray[np.float32]] = []
        network = None if len(observations) > 1 else self._episode_network(observations[0])
        episode_steps = network and EpisodeSteps(network, count)
        for at in range(batch.groups):
            if episode_steps:
                logits = episode_steps.logits(at, device[0])[None]
            else:
                step = torch.full((len(observations), count), at, device=torch_device)
                times = self._start_times(observations, device, start_history)
                logits = self._logits(batch, self._attributes(batch, device, step, times), step)
            if noise:
                logit_shift = noise_tensor[:, at] * logits.square().mean(dim=2, keepdim=True).sqrt()
                logit_shifts.append(logit_shift)
                logits = logits + logit_shift
            logits = logits.masked_fill(~legal[:, at, None], MASKED_LOGIT)
            choice = (logits + gumbel_tensor[:, at]).argmax(dim=2)
            log_probs.append(torch.log_softmax(logits, dim=2).gather(2, choice[..., None])[..., 0])
            device[:, at] = choice
        log_prob = torch.stack(log_probs, dim=1).cpu().numpy() * learn_mask
        devices = device.cpu().numpy().astype(np.int32)
        all_shifts = torch.stack(logit_shifts, dim=1).cpu().numpy() if logit_shifts else None
        results = []
        for at, observation in enumerate(observations):
            own_groups = len(observation.grouping)
            actions: dict[str, Any] = {
                "device": devices[at, :own_groups].T.copy(),
                "start": start[at, :own_groups].T.copy(),
            }
            if all_shifts is not None:
                actions["added"] = all_shifts[at, :own_groups].transpose(1, 0, 2).copy()
            if self.config.learn_fraction < 1.0:
                actions["counted"] = learn_mask[at, :own_groups].T.copy()
            if start_history:  # episodes × steps × groups
                rows = np.stack([item[at] for item in start_history[:own_groups]])
                actions["when"] = rows[:, :own_groups].transpose(2, 0, 1).copy()
            plans, episode_of = self._plans(actions)
            placements = observation.problem.legalize(observation.grouping.expand(plans))
            results.append(
                Episodes(actions, placements, episode_of, log_prob[at, :own_groups].T.copy())
            )
        return results

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        observation, actions = self._observe(problem), episodes.actions
        network, pairs = self._episode_network(observation), np.nonzero(learned_decisions(actions))
        if network is None or len(pairs[0]) < actions["device"].size:
            return self.score_all([problem], [episodes])[0]
        start, choice = (
            torch.as_tensor(actions[name], dtype=torch.long, device=self._torch_device)
            for name in ("start", "device")
        )
        return decision_scores(
            observation, actions, network.logits(start, choice).flatten(0, 1), pairs
        )

    def score_all(self, problems: Sequence[Problem], episodes: Sequence[Episodes]) -> list[Scores]:
        """Scores of each problem's episodes, state by state: all are known, so they are a batch."""
        observations, torch_device = [self._observe(item) for item in problems], self._torch_device
        learned_pairs = [np.nonzero(learned_decisions(item.actions)) for item in episodes]
        batch = ObservationBatch.of(observations)
        max_states = max(len(rows) for rows, _ in learned_pairs)
        device = torch.zeros((len(observations), batch.groups, max_states), dtype=torch.long)
        times = torch.zeros(device.shape) if self.config.times else None
        step = torch.zeros((len(observations), max_states), dtype=torch.long)
        for at, (item, (rows, steps)) in enumerate(zip(episodes, learned_pairs, strict=True)):
            choice, start = item.actions["device"][rows], item.actions["start"][rows]
            visited = np.arange(choice.shape[1]) < steps[:, None]
            state = np.where(visited, choice, start).T
            device[at, : len(state), : len(rows)] = torch.as_tensor(state, dtype=torch.long)
            step[at, : len(rows)] = torch.as_tensor(steps)
            if times is not None:
                start_times = torch.as_tensor(item.actions["when"][rows, steps].T)
                times[at, : len(state), : len(rows)] = start_times
        logits = self._chunked_logits(
            batch,
            device.to(torch_device),
            step.to(torch_device),
            None if times is None else times.to(torch_device),
        )
        scores = []
        for at, (observation, item, rows_and_steps) in enumerate(
            zip(observations, episodes, learned_pairs, strict=True)
        ):
            scores.append(
                decision_scores(
                    observation, item.actions, logits[at, : len(rows_and_steps[0])], rows_and_steps
                )
            )
        return scores

    def _chunked_logits(
        self,
        batch: ObservationBatch,
        device: torch.Tensor,
        step: torch.Tensor,
        times: torch.Tensor | None,
    ) -> torch.Tensor:
        """Problems × states × devices: logits, in chunks of states that bound the memory.

        Args:
            device: Problems × groups × states.
            step: Problems × states: the current group.
        """
        states = device.shape[2]
        width = self.config.hidden or self.devices + _GROUP_ATTRIBUTES
        chunk_size = max(1, _MAX_ELEMENTS // (len(device) * batch.groups * width))

        def logits(
            device: torch.Tensor, step: torch.Tensor, *start_times: torch.Tensor
        ) -> torch.Tensor:
            attributes = self._attributes(
                batch, device, step, start_times[0] if start_times else None
            )
            return self._logits(batch, attributes, step)

        parts = []
        for begin in range(0, states, chunk_size):
            chunk = slice(begin, begin + chunk_size)
            chunk_times = () if times is None else (times[:, :, chunk],)
            chunk_inputs = (device[:, :, chunk], step[:, chunk], *chunk_times)
            if torch.is_grad_enabled() and chunk_size < states:
                parts.append(checkpoint(logits, *chunk_inputs, use_reentrant=False))
            else:
                parts.append(logits(*chunk_inputs))
        return torch.cat(parts, dim=1)

    def select(self, episodes: Episodes, index: int) -> Episodes:
        names = ("device", "start", *(("when",) if self.config.times else ()))
        actions = {name: episodes.actions[name][index : index + 1].copy() for name in names}
        is_selected = episodes.episode_of == index
        episode_of = np.zeros(int(is_selected.sum()), dtype=np.int64)
        return Episodes(
            actions,
            episodes.placements[is_selected].copy(),
            episode_of,
            episodes.log_prob[index : index + 1].copy(),
        )

    def _start_times(
        self,
        observations: Sequence[PlacetoObservation],
        device: torch.Tensor,
        history: list[NDArray[np.float32]],
    ) -> torch.Tensor | None:
        """Problems × groups × episodes: when groups start; also appended to `history`."""
        if not self.config.times:
            return None
        if self._clock is None:
            raise ConfigError(
                "the policy reads when groups start and has no clock: call its `use_clock`, "
                "as a trainer does"
            )
        start_times = np.zeros(device.shape, dtype=np.float32)
        for at, observation in enumerate(observations):
            group_devices = device[at, : len(observation.grouping)].T.cpu().numpy().astype(np.int32)
            plans = observation.problem.legalize(observation.grouping.expand(group_devices))
            start_times[at, : len(observation.grouping)] = observation.group_starts(
                self._clock.op_starts(observation.problem, plans)
            )
        history.append(start_times)
        return torch.as_tensor(start_times, device=device.device)

    @property
    def _torch_device(self) -> torch.device:
        return next(self.parameters()).device

    def _plans(self, actions: dict[str, Any]) -> tuple[np.ndarray[Any, Any], Any]:
        """Plans × groups: the last of each episode, or the initial one and one per step."""
        device, start = actions["device"], actions["start"]
        count, groups = device.shape
        if not self.config.steps:
            return device, one_plan_per_episode(count)
        visited = np.arange(groups) < np.arange(groups + 1)[:, None]
        plans = np.where(visited, device[:, None], start[:, None])
        return plans.reshape(-1, groups), np.repeat(np.arange(count), groups + 1)

    def _initial_devices(
        self, observation: PlacetoObservation, count: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Episodes × groups: the initial placements."""
        legal = observation.legal.cpu().numpy()
        if self.config.start == "first":
            devices_of_groups = np.where(
                legal[:, observation.first_device], observation.first_device, legal.argmax(axis=1)
            )
            return np.repeat(devices_of_groups[None], count, axis=0).astype(np.int64)
        generator = rng
        if self.config.start == "fixed":
            generator = np.random.default_rng(int(observation.problem.graph.fingerprint[:12], 16))
        placements = 1 if self.config.start == "fixed" else count
        devices = np.where(legal, generator.random((placements, *legal.shape)), -1.0).argmax(axis=2)
        return np.ascontiguousarray(np.broadcast_to(devices, (count, len(legal)))).astype(np.int64)

    def _attributes(
        self,
        batch: ObservationBatch,
        device: torch.Tensor,
        step: torch.Tensor,
        times: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attributes of problems × groups × states, from devices and current groups."""
        shape = device.shape
        group_index = torch.arange(shape[1], device=step.device)[None, :, None]
        fixed = batch.attributes[:, :, None].expand(*shape, 2)
        flags = torch.stack(
            [group_index == step[:, None], group_index < step[:, None]], dim=3
        ).float()
        columns = [fixed, flags, nn.functional.one_hot(device, self.devices).float()]
        if times is not None:  # relative to the current group
            columns.append((times - times.gather(1, step[:, None]))[..., None])
        return torch.cat(columns, dim=3)

    def _logits(
        self, batch: ObservationBatch, attributes: torch.Tensor, step: torch.Tensor
    ) -> torch.Tensor:
        """Problems × states × devices."""
        x, groups = self.embed(batch, attributes), attributes.shape[1]
        step_index = step[:, None, :, None]
        pooled = [x.gather(1, step_index.expand(-1, 1, -1, x.shape[3]))[:, 0]]
        rows = batch.relations.gather(2, step_index.expand(-1, 3, -1, groups))
        masks = rows.transpose(2, 3)[..., None]  # problems × 3 × groups × states × 1
        for relation, (layer, pool) in enumerate(zip(self.each, self.pool, strict=True)):
            pooled.append(pool((masks[:, relation] * layer(x)).sum(dim=1)))
        logits: torch.Tensor = self.out(torch.cat(pooled, dim=2))
        return logits

    def embed(self, batch: ObservationBatch, attributes: torch.Tensor) -> torch.Tensor:
        """Problems × groups × states × width: each group after messages, down and then up."""
        problems, groups = attributes.shape[:2]
        embedding = self.read(attributes)
        embeddings = []
        directions = zip(batch.adjacency, batch.has_neighbours, self.tell, self.hear, strict=False)
        for adjacency, has_neighbours, tell, hear in directions:
            x = embedding
            for _ in range(self.config.rounds):
                messages = tell(x)
                incoming = torch.bmm(adjacency, messages.reshape(problems, groups, -1)).reshape(
                    messages.shape
                )
                x = embedding + has_neighbours * hear(incoming)
            embeddings.append(x)
        return torch.cat(embeddings, dim=3) if embeddings else embedding

    def _episode_network(self, observation: PlacetoObservation) -> EpisodeNetwork | None:
        """The network over whole episodes; None where every step changes all start times."""
        if self.config.times:
            return None
        if observation not in self._networks:
            self._networks[observation] = EpisodeNetwork(self, observation)
        return self._networks[observation]

    def _observe(self, problem: Problem) -> PlacetoObservation:
        torch_device, cached = self._torch_device, self._observations.get(problem)
        if cached is None or cached.legal.device != torch_device:
            if problem.arrays.devices != self.devices:
                raise ProblemError(
                    f"the policy was made for {self.devices} devices: the problem has "
                    f"{problem.arrays.devices}; train a policy for it"
                )
            self._observations[problem] = PlacetoObservation.of(
                problem,
                self.config.grouping,
                self.config.max_groups,
                torch_device,
                self.config.edges,
                self.config.means,
            )
        return self._observations[problem]


def mlp(*widths: int, last_relu: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last one if set; Glorot, bias 0."""
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*(modules if last_relu else modules[:-1]))
