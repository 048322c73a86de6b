"""What the tests of the runtime share: small models, two workers, plans."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from placewright import Cluster, Device, Link, Plan, Problem, apply, from_torch  # noqa: E402
from placewright.runtime.program.program import Program, build_program  # noqa: E402

nn = torch.nn


def workers(count: int = 2, kind: str = "cpu") -> Cluster:
    """Equal workers, all of which can reach each other."""
    devices = tuple(
        Device(f"{kind}{at}", kind, memory=2**30, rates={"float32": 1e9}, memory_bandwidth=1e30)
        for at in range(count)
    )
    names = [device.name for device in devices]
    return Cluster("workers", devices, {(a, b): Link(1e9) for a in names for b in names if a != b})


def machine(gpus: int = 2) -> Cluster:
    """A host and GPUs."""
    host = Device("cpu", "cpu", memory=2**30, rates={"float32": 1e9}, memory_bandwidth=1e30)
    devices = (
        host,
        *(
            Device(f"gpu{at}", memory=2**30, rates={"float32": 1e9}, memory_bandwidth=1e30)
            for at in range(gpus)
        ),
    )
    names = [device.name for device in devices]
    return Cluster("machine", devices, {(a, b): Link(1e9) for a in names for b in names if a != b})


def streams_of_one() -> Cluster:
    """Two streams of one GPU."""
    devices = tuple(
        Device(f"gpu0.{at}", memory=2**30, rates={"float32": 1e9}, memory_bandwidth=1e30)
        for at in range(2)
    )
    pairs = [("gpu0.0", "gpu0.1"), ("gpu0.1", "gpu0.0")]
    return Cluster("streams", devices, {pair: Link(1e9) for pair in pairs})


class Branches(nn.Module):
    """Two branches from one input, joined."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.join = nn.Linear(2 * width, width)

    def forward(self, x):
        both = torch.cat([torch.relu(self.left(x)), torch.tanh(self.right(x))], -1)
        return {"made": self.join(both), "sum": both.sum()}


class Cached(nn.Module):
    """Writes a row of a cache, and reads all of it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("cache", torch.zeros(5, width))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, at):
        self.calls += 1
        before = self.cache.clone()
        self.cache.index_copy_(0, at, self.inner(x))
        return self.cache.sum(0), before.sum(), self.calls.clone()


class Everything(nn.Module):
    """Words, images and classes: every kind of whole number that an op can take."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.image = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(4 * 9 + 8, 5)

    def forward(self, words, image, classes, places):
        mean = self.words(words).mean(1)
        found = torch.cat((self.image(image), mean), 1).index_select(1, places)
        logits = self.head(found) * torch.rsqrt(found.var(1, keepdim=True) + 1)
        picked = logits.gather(1, classes[:, None]).log_softmax(0)
        return nn.functional.cross_entropy(logits, classes) + picked.mean()


KNOWN: dict[str, Program] = {}
"""Programs of the models above, which hold no weights: capturing takes half a second."""


def capture(model, args, cluster=None, **how):
    """A program and its problem on some workers."""
    if type(model) not in (Branches, Cached):
        program = build_program(model, args, **how)
    else:
        tensors = [*model.parameters(), *([args] if isinstance(args, torch.Tensor) else args)]
        seen = [(each.shape, each.dtype, each.stride(), each.requires_grad) for each in tensors]
        key = str((model, model.training, seen, how))
        if key not in KNOWN:
            KNOWN[key] = build_program(model, args, **how)
        program = KNOWN[key]
    return program, Problem(program.graph, cluster or workers())


def plans(problem: Problem, count: int, seed: int = 0, staged: bool = False) -> list[Plan]:
    """Random plans: any device, any order; if staged, with weights at home on the first device."""
    rng, a, found = np.random.default_rng(seed), problem.arrays, []
    for at in range(count):
        device = problem.legalize(rng.integers(0, len(problem.cluster), len(problem.graph)))
        staging = None
        if staged:
            device[a.is_weight] = 0
            device = device[a.unit_head]
            sizes = [
                sum(int(a.sizes[t]) for t in a.inputs[a.first_input[op] : a.first_input[op + 1]])
                for op in range(a.ops)
            ]
            staging = {d.name: max(sizes) * (1 + at % 3) for d in problem.cluster.devices[1:]}
        priority = rng.random(len(problem.graph)) if at % 2 else None
        found.append(Plan.of(problem, device, priority, None, staging))
    return found


def twin(model):
    return copy.deepcopy(model)


def alternating_plan(model, *args, training: bool = False, **kwargs) -> Plan:
    """A plan of two workers, whose ops alternate, with priorities of its own."""
    graph = from_torch(model, args, kwargs, training=training)
    problem = Problem(graph, workers())
    placement = problem.legalize(np.arange(len(graph), dtype=np.int32) % 2)
    return Plan.of(problem, placement, np.arange(len(graph))[::-1].astype(float))


def place(model, *args, training: bool = False, rule=None, **kwargs):
    """The model under an alternating plan of a call with these arguments."""
    return apply(alternating_plan(model, *args, training=training, **kwargs), model, optimizer=rule)
