"""Placeto's graph embedding: equal to a plain one, local, and over three different sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo
from placewright.errors import ConfigError
from placewright.policies.grouping import output_bytes

torch = pytest.importorskip("torch")
from placewright.policies.placeto.graph_features import (  # noqa: E402
    ObservationBatch,
    PlacetoObservation,
)
from placewright.policies.placeto.policy import PlacetoConfig  # noqa: E402
from placewright.training import find_recipe  # noqa: E402

PAPER = find_recipe("placeto-paper").policy_config
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def training() -> Problem:
    """A training step, whose gradient ops are in the groups of their forward ops."""
    return Problem(zoo.load("nmt:graph=0"), Cluster.parse("2xK80"))


def forward_edges(problem: Problem, group) -> set[tuple[int, int]]:
    """Edges between groups, along tensors from one forward op that takes time to another."""
    scheduled, ops = problem.arrays.scheduled, problem.graph.ops
    return {
        (int(group[source]), int(group[reader]))
        for reader, op in enumerate(ops)
        for source, _ in op.inputs
        if scheduled[reader] and scheduled[source] and group[source] != group[reader]
        if op.phase == ops[source].phase == "forward"
    }


def reachable(edges: set[tuple[int, int]], start: int) -> set[int]:
    found, waiting = set(), [start]
    while waiting:
        at = waiting.pop()
        new = {target for source, target in edges if source == at} - found
        found |= new
        waiting += new
    return found - {start}


class PlainPlaceto:
    """The paper's network, one group and one vector at a time, in numpy."""

    def __init__(self, policy, problem: Problem) -> None:
        self.weights = {key: val.double().numpy() for key, val in policy.state_dict().items()}
        self.rounds, self.devices = policy.config.rounds, policy.devices
        grouping, a = policy.grouping(problem), problem.arrays
        self.count, edges = len(grouping), forward_edges(problem, grouping.group)
        seconds = np.where(a.scheduled, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0)
        work, size = np.zeros(self.count), output_bytes(problem, grouping)
        for op, group in enumerate(grouping.group):
            work[group] += seconds[op]
        self.fixed = np.stack([work / work.max(), size / size.max()], axis=1)
        backward = {(target, source) for source, target in edges}
        self.sources = [[s for s, t in sorted(edges) if t == at] for at in range(self.count)]
        self.readers = [[t for s, t in sorted(edges) if s == at] for at in range(self.count)]
        self.descendants = [reachable(edges, at) for at in range(self.count)]
        self.ancestors = [reachable(backward, at) for at in range(self.count)]

    def layers(self, name: str, x, last_relu: bool):
        """A perceptron: `x W' + b`, with ReLU between layers and, if set, after the last."""
        count = sum(key.startswith(f"{name}.") and key.endswith("weight") for key in self.weights)
        for at in range(count):
            x = self.weights[f"{name}.{2 * at}.weight"] @ x + self.weights[f"{name}.{2 * at}.bias"]
            x = np.maximum(x, 0) if at < count - 1 or last_relu else x
        return x

    def messages(self, read, direction: int):
        neighbours = (self.sources, self.readers)[direction]
        x = list(read)
        for _ in range(self.rounds):
            told = [self.layers(f"tell.{direction}", each, True) for each in x]
            x = [
                own + self.layers(f"hear.{direction}", sum(told[at] for at in near), True)
                if near
                else own
                for own, near in zip(read, neighbours, strict=True)
            ]
        return x

    def log_probs(self, placement, current: int):
        """Of the devices of the current group, in a state of an episode."""
        flags = [[at == current, at < current] for at in range(self.count)]
        rows = np.concatenate([self.fixed, flags, np.eye(self.devices)[placement]], axis=1)
        read = [self.layers("read", row, False) for row in rows]
        down, up = self.messages(read, 0), self.messages(read, 1)
        x = [np.concatenate(both) for both in zip(down, up, strict=True)]
        ancestors, descendants = self.ancestors[current], self.descendants[current]
        rest = set(range(self.count)) - ancestors - descendants - {current}
        parts = [x[current]]
        for at, members in enumerate((ancestors, descendants, rest)):
            total = sum((self.layers(f"each.{at}", x[m], True) for m in members), 0 * x[0])
            parts.append(self.layers(f"pool.{at}", total, True))
        logits = self.layers("out", np.concatenate(parts), False)
        return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def test_the_papers_network_is_equal_to_a_plain_one(training):
    policy = replace(PAPER, max_groups=12).build(training, seed=2)
    with torch.no_grad():  # fresh biases are 0: they would hide where they are added
        for weight in policy.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.manual_seed(1))
    plain, episodes = PlainPlaceto(policy, training), policy.act(training, 2, seed=0)
    assert plain.count == 12
    assert any(plain.sources)
    assert any(plain.readers)
    for episode in range(2):
        placement = episodes.actions["start"][episode].copy()
        for step, device in enumerate(episodes.actions["device"][episode]):
            expected = plain.log_probs(placement, step)[device]
            np.testing.assert_allclose(episodes.log_prob[episode, step], expected, atol=1e-5)
            placement[step] = device


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_message_travels_one_group_per_round_down_and_up(training, rounds):
    config = replace(PAPER, max_groups=40, hidden=16, rounds=rounds)
    policy = config.build(training, seed=0).double()
    seen = PlacetoObservation.of(training, "colocation", 40, CPU, "forward")
    batch = ObservationBatch.of([seen])
    batch = replace(
        batch,
        adjacency=tuple(each.double() for each in batch.adjacency),
        has_neighbours=tuple(each.double() for each in batch.has_neighbours),
    )
    edges = (seen.predecessors.numpy() > 0).astype(int)  # row reads column
    within = (np.linalg.matrix_power(edges + np.eye(40, dtype=int), rounds)) > 0
    attributes = torch.rand(1, 40, 1, 6, dtype=torch.double, generator=torch.manual_seed(0))
    with torch.no_grad():
        before = policy.embed(batch, attributes)[0, :, 0]
        for changed in range(0, 40, 7):
            other = attributes.clone()
            other[0, changed] += 1.0
            differs = (policy.embed(batch, other)[0, :, 0] != before).reshape(40, 2, 16).any(dim=2)
            reach = within[:, changed], within[changed]
            for direction in range(2):
                assert not (differs[:, direction].numpy() & ~reach[direction]).any()
                assert differs[changed, direction]
    assert not within.all()


def test_down_and_up_are_heard_at_the_neighbours(training):
    """The other half of locality: what is within reach does arrive somewhere."""
    policy = replace(PAPER, max_groups=40, hidden=16, rounds=2).build(training, seed=0)
    seen = PlacetoObservation.of(training, "colocation", 40, CPU, "forward")
    batch, attributes = ObservationBatch.of([seen]), torch.rand(1, 40, 1, 6)
    attributes.requires_grad_()
    middle = 20
    for half, neighbours in ((0, seen.predecessors), (1, seen.successors)):
        vector = policy.embed(batch, attributes)[0, middle, 0].reshape(2, 16)[half]
        (slope,) = torch.autograd.grad(vector.sum(), attributes)
        near = neighbours[middle] > 0
        assert near.any()
        assert bool(slope[0, near].abs().sum() > 0)


def test_ancestors_descendants_and_the_rest_are_three_sets_along_the_forward_pass(training):
    seen = PlacetoObservation.of(training, "colocation", 256, CPU, "forward")
    ancestors, descendants, rest = (each.numpy() > 0 for each in seen.relations)
    count = len(seen.grouping)
    assert (ancestors.astype(int) + descendants + rest + np.eye(count, dtype=int) == 1).all()
    assert (ancestors == descendants.T).all()
    for share in (ancestors.mean(), descendants.mean(), rest.mean()):
        assert share > 0.1
    edges = forward_edges(training, seen.grouping.group)
    assert all(source < target for source, target in edges)  # visited in topological order
    assert len(edges) == int(seen.predecessors.sum())


def test_with_all_tensors_a_training_graph_has_ancestors_alone(training):
    """Why the paper's recipe leaves the backward pass out."""
    seen = PlacetoObservation.of(training, "colocation", 256, CPU)
    shares = [float(each.mean()) for each in seen.relations]
    assert shares[0] > 0.95
    assert shares[1] + shares[2] < 0.02


def test_convex_groups_are_acyclic_along_scheduled_ops(training):
    seen = PlacetoObservation.of(training, "coarse", 30, CPU, "scheduled")
    lower, upper = (torch.tril(seen.predecessors, -1).sum(), torch.triu(seen.predecessors).sum())
    assert lower > 0
    assert upper == 0
    assert bool((seen.relations.sum(dim=(1, 2)) > 0).all())


def test_unknown_edges_are_refused(training):
    with pytest.raises(ConfigError, match="edges is 'some': expected all, scheduled or forward"):
        PlacetoConfig(edges="some").build(training)
