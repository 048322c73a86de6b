"""GNN policy: Placeto for any devices, a graph network over pair and graph features.

Placeto's one-hot devices fix their number. Here a device is described relative to the current
group: by the list scheduler's estimates (`features`), and by the shares of the group's ancestors,
descendants, neighbours and the rest that are on it (`diffusion`); undecided groups are where an
initial placement has them. A graph network reads the graph once, and its vector of the group is
added. The weights of the estimates may come from a trained linear policy: the other weights then
start near 0, so training starts where that policy ended; the initial placement is its argmax plan.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from placewright.policies import grouping as op_groups
from placewright.policies.placeto.policy import mlp
from placewright.policies.policy import (
    Episodes,
    HeadScores,
    PolicyConfig,
    PolicyDefaults,
    Scores,
    one_plan_per_episode,
)
from placewright.policies.seq2seq import MASKED_LOGIT, log_prob_and_entropy, uniform_entropy
from placewright.policies.transfer.features import FEATURES, PairFeatures
from placewright.policies.transfer.graph_features import (
    FeatureFlags,
    GraphFeatures,
    InitialPlacement,
)
from placewright.policies.transfer.rollout import (
    Rollout,
    merge_partner,
    roll_out,
)
from placewright.scheduling.batched_schedules import ScheduleOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.transforms import Grouping

NAME = "placeto-any"
_LINEAR_STEP_SCALE = 5.0  # the step of linear weights relative to others; Adam's are all equal
_CACHE_SIZE = 4  # problems whose last episodes are cached: those of an update on several graphs
_MERGE_BIAS = -0.5  # in a fresh policy merging is a little less likely than the best device


@dataclass(frozen=True)
class GnnConfig(PolicyConfig):
    """Settings of the GNN policy.

    Args:
        grouping: How ops are grouped (`grouping.GROUPINGS`); `op` is one group per unit.
        max_groups: Groups are merged until there are no more than this.
        hidden: Size of a group's vector.
        rounds: Rounds of messages between neighbours; 0 for none.
        head_width: Size of the layer that joins it with the estimates.
        drawn: The share of the decisions that are sampled; the others are argmax. With few of
            hundreds sampled, a plan's reward says more about each.
        shipped: Whether the weights of the estimates start as those of the shipped linear policy.
        senses, draft, blind: The graph features of a device; see `FeatureFlags`.
        tuned: Whether all features have linear weights, which take larger steps than the others.
        candidates: Rollouts of a greedy episode: the argmax one, and samples. The result is the one
            whose own list schedule fits and ends first; none of them is judged for it.
        merge: Whether a group may also merge with the source of its slowest transfer. Merged groups
            are one group, so that groups are chosen together with the placement.
    """

    grouping: str = "op"
    max_groups: int = 1000
    hidden: int = 16
    rounds: int = 4
    head_width: int = 32
    drawn: float = 1.0
    shipped: bool = True
    senses: bool = False
    draft: bool = False
    blind: bool = False
    tuned: bool = False
    candidates: int = 1
    merge: bool = False
    OPTIONS: ClassVar = {"groups": "max_groups", "hidden": "hidden", "grouping": "grouping"}

    @property
    def feature_flags(self) -> FeatureFlags:
        return FeatureFlags(self.senses, self.draft, self.blind)

    def build(self, problem: Problem, seed: int = 0) -> GnnPolicy:
        """A fresh policy; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            policy = GnnPolicy(self)
        if self.shipped:
            from placewright.policies.shipped import linear_weights

            with torch.no_grad():
                policy.linear.copy_(torch.as_tensor(linear_weights(), dtype=torch.float32))
        return policy


class GnnPolicy(PolicyDefaults, nn.Module):
    """Places groups by falling rank, as the linear policy does, with a graph network."""

    name = NAME

    def __init__(self, config: GnnConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden
        self.read = mlp(config.feature_flags.group_width, width, width)
        directions = 2 if config.rounds else 0
        self.tell = nn.ModuleList(
            mlp(width, width, width, last_relu=True) for _ in range(directions)
        )
        self.hear = nn.ModuleList(mlp(width, width, width) for _ in range(directions))
        both_width = 2 * width if config.rounds else width
        self.each = nn.ModuleList(mlp(both_width, width, last_relu=True) for _ in range(3))
        self.sum = mlp(both_width + 3 * width, width, last_relu=True)
        self.linear = nn.Parameter(torch.zeros(len(FEATURES)))
        if config.tuned:
            self.tune = nn.Parameter(torch.zeros(len(FEATURES) + config.feature_flags.pair_width))
        self.join = nn.Linear(
            width + len(FEATURES) + config.feature_flags.pair_width, config.head_width
        )
        self.out = nn.Linear(config.head_width, 1, bias=False)
        nn.init.normal_(self.out.weight, std=1e-2)
        if config.merge:
            self.bond = nn.Linear(
                width + len(FEATURES) + config.feature_flags.pair_width, config.head_width
            )
            self.keep = nn.Linear(config.head_width, 1)
            nn.init.normal_(self.keep.weight, std=1e-2)
            nn.init.constant_(self.keep.bias, _MERGE_BIAS)
        self._features_cache: WeakKeyDictionary[Problem, GraphFeatures] = WeakKeyDictionary()
        self._rollout_cache: dict[Problem, tuple[bytes, Rollout]] = {}

    def to_config(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.config),
            "features": list(FEATURES),
            "more": self.config.feature_flags.pair_width,
        }

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> GnnPolicy:
        config = GnnConfig.from_data(data)
        if tuple(data["features"]) != FEATURES or data["more"] != config.feature_flags.pair_width:
            raise ValueError(f"it knows features {', '.join(data['features'])}")
        return cls(config)

    def grouping(self, problem: Problem) -> Grouping:
        """The groups that it places."""
        return self._features_of(problem).pair_features.order.grouping

    @torch.no_grad()
    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        source = self._features_of(problem)
        order = source.pair_features.order
        candidates = self.config.candidates if greedy else count
        rng = np.random.default_rng(0 if greedy else seed)
        size = (len(order.decision_groups), candidates, problem.arrays.devices + self.config.merge)
        gumbel = rng.gumbel(size=size)
        is_drawn = np.ones(size[:2], dtype=bool)
        if self.config.drawn < 1.0:
            is_drawn = rng.random(size[:2]) < self.config.drawn
            gumbel *= is_drawn[:, :, None]
        if greedy:
            gumbel[:, 0] = 0.0  # the argmax plan
        logit_noise = rng.normal(scale=noise, size=size) if noise > 0 else None
        rollout = self._roll_out(
            source, gumbel=gumbel, logit_noise=logit_noise, keep_features=not greedy
        )
        if greedy:
            best = np.lexsort((rollout.end, np.maximum(rollout.overflow, 0.0)))[0]
            rollout, is_drawn = (
                _select_episodes(rollout, [best] * count),
                is_drawn[:, [best] * count],
            )
            is_drawn[:] = True
        else:
            self._cache_rollout(problem, rollout)
        actions: dict[str, Any] = {"device": rollout.option, "free": is_drawn.T.copy()}
        if logit_noise is not None:
            actions["added"] = rollout.logit_shift
        group_devices = np.empty_like(rollout.device)
        group_devices[:, order.decision_groups] = rollout.device
        placements = problem.legalize(order.grouping.expand(group_devices))
        log_prob = rollout.log_prob * is_drawn.T
        return Episodes(actions, placements, one_plan_per_episode(count), log_prob, rollout.start)

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        source, torch_device = self._features_of(problem), self.linear.device
        order = source.pair_features.order
        option = episodes.actions["device"]
        rollout = self._cached_rollout(problem, option)
        # Only decisions that were sampled are scored.
        decision, episode = np.nonzero(episodes.actions["free"].T)
        group = order.decision_groups[decision]
        features = torch.as_tensor(rollout.features[decision, episode], device=torch_device)
        group_vectors = self._group_vectors(source)[torch.as_tensor(group, device=torch_device)]
        device_vectors = group_vectors[:, None].expand(*features.shape[:2], -1)
        hidden = torch.relu(self.join(torch.cat([device_vectors, features], dim=2)))
        logits = features @ self._linear_weights() + self.out(hidden)[..., 0]
        legal = order.legal[order.decision_groups]
        allowed = torch.as_tensor(order.legal[group], device=torch_device)
        if self.config.merge:
            merge_device = torch.as_tensor(
                rollout.merge_device[decision, episode], device=torch_device
            )
            merge_features = features[
                torch.arange(len(features), device=torch_device), merge_device.clamp(min=0)
            ]
            merge_hidden = torch.relu(self.bond(torch.cat([group_vectors, merge_features], dim=1)))
            # Relative to the best device, so that it means the same for all groups.
            best_alone = logits.masked_fill(~allowed, MASKED_LOGIT).amax(dim=1)
            merge_logit = best_alone + self.keep(merge_hidden)[:, 0]
            logits = torch.cat([logits, merge_logit[:, None]], dim=1)
            allowed = torch.cat([allowed, (merge_device >= 0)[:, None]], dim=1)
            can_merge = (rollout.merge_device >= 0).any(axis=1, keepdims=True)
            legal = np.concatenate([legal, can_merge], axis=1)
        if "added" in episodes.actions:
            logits = logits + torch.as_tensor(
                episodes.actions["added"][episode, decision], device=torch_device
            )
        log_prob, entropy = log_prob_and_entropy(
            logits.masked_fill(~allowed, MASKED_LOGIT),
            torch.as_tensor(option[episode, decision], dtype=torch.long, device=torch_device),
        )
        position = (
            torch.as_tensor(episode, device=torch_device),
            torch.as_tensor(decision, device=torch_device),
        )
        zeros = torch.zeros(option.shape, device=torch_device)
        head = HeadScores(
            "devices",
            zeros.index_put(position, log_prob),
            zeros.index_put(position, entropy),
            uniform_entropy(torch.as_tensor(legal, device=torch_device)),
        )
        return Scores((head,))

    def merged_groups(self, problem: Problem, episodes: Episodes) -> NDArray[np.int64]:
        """Episodes × groups: the first member of the merged group of each."""
        source = self._features_of(problem)
        order, option = source.order, episodes.actions["device"]
        first_member = np.tile(np.arange(len(order.grouping)), (len(option), 1))
        for at, ranked_op in enumerate(
            candidate for candidate in order.ranked_ops if candidate.group >= 0
        ):
            is_merged = option[:, at] == problem.arrays.devices
            if is_merged.any():
                partner = order.grouping.group[merge_partner(order, ranked_op)]
                first_member[is_merged, ranked_op.group] = first_member[is_merged, partner]
        return first_member

    def select(self, episodes: Episodes, index: int) -> Episodes:
        actions = {
            name: episodes.actions[name][index : index + 1].copy() for name in ("device", "free")
        }
        placements, log_prob = (
            episodes.placements[index : index + 1],
            episodes.log_prob[index : index + 1],
        )
        return Episodes(actions, placements.copy(), one_plan_per_episode(1), log_prob.copy())

    def _cached_rollout(self, problem: Problem, option: NDArray[np.int32]) -> Rollout:
        """The rollout of these options; its features depend on no weight, so the last is cached."""
        key, rollout = self._rollout_cache.get(problem, (b"", None))
        if rollout is None or key != option.tobytes():
            rollout = self._roll_out(
                self._features_of(problem), forced_options=option, keep_features=True
            )
            self._cache_rollout(problem, rollout)
        return rollout

    def _cache_rollout(self, problem: Problem, rollout: Rollout) -> None:
        """Cache the last rollout of the last few problems, those of one update."""
        self._rollout_cache.pop(problem, None)
        while len(self._rollout_cache) >= _CACHE_SIZE:
            del self._rollout_cache[next(iter(self._rollout_cache))]
        self._rollout_cache[problem] = rollout.option.tobytes(), rollout

    def _roll_out(self, source: GraphFeatures, **options: Any) -> Rollout:
        """Roll out episodes, with logits in numpy, since each decision is small."""
        with torch.no_grad():
            group_vectors = self._group_vectors(source).cpu().numpy()
        width = self.config.hidden
        linear = self._linear_weights().detach().cpu().numpy()

        def split_layer(layer: nn.Linear) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            weight = layer.weight.detach().cpu().numpy()
            vector_part = group_vectors @ weight[:, :width].T + layer.bias.detach().cpu().numpy()
            return vector_part, np.ascontiguousarray(weight[:, width:].T)

        group_part, feature_weights = split_layer(self.join)
        out_weights = self.out.weight[0].detach().cpu().numpy()
        last_logits: list[NDArray[np.float32]] = []

        def logits(group: int, features: NDArray[np.float32]) -> NDArray[np.float32]:
            hidden = np.maximum(features @ feature_weights + group_part[group], 0.0)
            device_logits: NDArray[np.float32] = features @ linear + hidden @ out_weights
            last_logits[:] = [device_logits]
            return device_logits

        if not self.config.merge:
            return roll_out(source, logits, **options)
        merge_group_part, merge_feature_weights = split_layer(self.bond)
        merge_weights = self.keep.weight[0].detach().cpu().numpy()
        merge_bias = float(self.keep.bias.detach())

        def merge_logits(
            group: int, features: NDArray[np.float32], partner_device: NDArray[np.int64]
        ) -> NDArray[np.float32]:
            pair_features = features[np.arange(len(partner_device)), np.maximum(partner_device, 0)]
            hidden = np.maximum(
                pair_features @ merge_feature_weights + merge_group_part[group], 0.0
            )
            best_logit = np.where(
                source.order.legal[group], last_logits[0], np.float32(MASKED_LOGIT)
            ).max(axis=1)
            merge_logit: NDArray[np.float32] = best_logit + hidden @ merge_weights + merge_bias
            return merge_logit

        return roll_out(source, logits, merge_logits=merge_logits, **options)

    def _linear_weights(self) -> torch.Tensor:
        """The linear weights of all features."""
        weights = nn.functional.pad(self.linear, (0, self.config.feature_flags.pair_width))
        return weights + _LINEAR_STEP_SCALE * self.tune if self.config.tuned else weights

    def _group_vectors(self, source: GraphFeatures) -> torch.Tensor:
        """Groups × hidden: the graph network's vector of each group."""
        torch_device = self.linear.device
        embedding = self.read(torch.as_tensor(source.attributes, device=torch_device))
        directions = []
        for adjacency, tell, hear in zip(source.adjacency, self.tell, self.hear, strict=False):
            neighbour_mean = torch.as_tensor(adjacency, device=torch_device)
            x = embedding
            for _ in range(self.config.rounds):
                x = embedding + hear(neighbour_mean @ tell(x))
            directions.append(x)
        x = torch.cat(directions, dim=1) if directions else embedding
        pooled = [
            torch.as_tensor(related_mean, device=torch_device) @ layer(x)
            for related_mean, layer in zip(source.means, self.each, strict=True)
        ]
        vectors: torch.Tensor = self.sum(torch.cat([x, *pooled], dim=1))
        return vectors

    def _features_of(self, problem: Problem) -> GraphFeatures:
        if problem not in self._features_cache:
            grouping = op_groups.group_ops(problem, self.config.grouping, self.config.max_groups)
            legal = op_groups.legal_devices(problem, grouping)
            pair_features = PairFeatures.of(ScheduleOrder.of(problem, grouping, legal))
            initial_placement = linear_placement(pair_features) if self.config.draft else None
            self._features_cache[problem] = GraphFeatures.of(
                problem, pair_features, self.config.feature_flags, initial_placement
            )
        return self._features_cache[problem]


def _select_episodes(rollout: Rollout, indices: list[Any]) -> Rollout:
    """Some episodes of a rollout that has no features."""
    return replace(
        rollout,
        device=rollout.device[indices],
        option=rollout.option[indices],
        log_prob=rollout.log_prob[indices],
        start=rollout.start[indices],
        logit_shift=rollout.logit_shift[indices]
        if len(rollout.logit_shift)
        else rollout.logit_shift,
        merge_device=rollout.merge_device[:, indices],
    )


def linear_placement(pair_features: PairFeatures) -> InitialPlacement:
    """The argmax plan of the shipped linear policy."""
    from placewright.policies.shipped import linear_weights

    order, weights = pair_features.order, linear_weights()
    a, groups = order.problem.arrays, len(order.grouping)
    zeros = np.zeros((len(order.decision_groups), 1, a.devices))
    rollout = roll_out(pair_features, lambda _, features: features @ weights, gumbel=zeros)
    occupancy = np.zeros((a.devices, groups), dtype=np.float32)
    occupancy[rollout.device[0], order.decision_groups] = 1.0
    start = np.full(groups, np.inf)
    np.minimum.at(start, order.grouping.group[a.scheduled], rollout.start[0, a.scheduled])
    return InitialPlacement(occupancy, np.where(np.isfinite(start), start, 0.0))
