"""What the ranks of the tests do: functions of (rank, world size, …)."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from placewright import Cluster, Device, Link, Plan, Problem, apply, from_torch
from placewright.runtime.distributed.bandwidth_limit import BandwidthLimit
from placewright.runtime.distributed.host_ranks import HostRanks
from placewright.runtime.distributed.rank_executor import RankExecutor
from placewright.runtime.distributed.session import RankSession
from placewright.runtime.program.program import Program, build_program


def hosts(count: int, devices: int = 1) -> Cluster:
    """Equal hosts with some CPU workers each."""
    names = [
        f"node{host}/cpu" if devices == 1 else f"node{host}/cpu{at}"
        for host in range(count)
        for at in range(devices)
    ]
    links = {(a, b): Link(1e9) for a in names for b in names if a != b}
    parts = [
        Device(name, "cpu", memory=2**32, rates={"float32": 1e9}, memory_bandwidth=1e30)
        for name in names
    ]
    return Cluster("hosts", tuple(parts), links)


class Mlp(nn.Module):
    def __init__(self, width: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


class ResNet(nn.Module):
    """A stem, residual blocks and a head."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 5)

    def forward(self, image):
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


class OddTensors(nn.Module):
    """Non-contiguous, expanded, boolean, integer and bfloat16 tensors, and several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.words = nn.Embedding(9, 6)
        self.register_buffer("offset", torch.arange(6.0))

    def forward(self, x, words, mask):
        turned = self.inner(x).transpose(1, 2)
        half = turned.to(torch.bfloat16) * 2
        gaps = self.words(words)[:, ::2]
        picked = torch.where(mask[:, None, :], gaps.sum(1, keepdim=True), self.offset)
        order = picked.argsort(-1)
        flags = picked > 1
        wide = x.mean((1, 2))[:, None].expand(-1, 5)
        empty = x[:, :0] * 2
        return {
            "half": half.sum(-1),
            "turned": turned @ turned.transpose(1, 2),
            "order": order + 1,
            "flags": (~flags, flags.any()),
            "wide": wide * 3,
            "empty": empty,
            "same": self.offset,
            "scalar": picked.sum().double(),
            "input": words,
        }


def gpt2(layers: int = 2):
    """A small GPT-2 of transformers, with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_head=2, n_embd=16, vocab_size=53, n_positions=16, use_cache=False
    )
    return GPT2LMHeadModel(config).eval()


def models(kind: str):
    """A model and its arguments; the same numbers on all ranks."""
    torch.manual_seed(0)
    if kind == "mlp":
        return Mlp().eval(), (torch.randn(3, 8),)
    if kind == "cnn":
        model = ResNet().eval()
        for _ in range(2):
            model.train()(torch.randn(4, 3, 12, 12))
        return model.eval(), (torch.randn(2, 3, 12, 12),)
    if kind == "odd":
        args = torch.randn(4, 5, 6), torch.randint(0, 9, (4, 7)), torch.rand(4, 6) > 0.5
        return OddTensors().eval(), args
    assert kind == "gpt2"
    return gpt2(), (torch.randint(0, 53, (2, 7)),)


KINDS = ("mlp", "cnn", "odd", "gpt2")


@functools.cache
def program_of(kind: str) -> Program:
    """The captured program of a model, which holds no weights."""
    return build_program(*models(kind))


def random_plan(problem: Problem, seed: int) -> Plan:
    """Seed 0: blocks of neighbours; 1: alternating; others: any device in any order."""
    count, ops = len(problem.cluster), len(problem.graph)
    rng = np.random.default_rng(seed)
    if seed == 0:
        placement = np.arange(ops) * count // ops
    elif seed == 1:
        placement = np.arange(ops) % count
    else:
        placement = rng.integers(0, count, ops)
    priority = rng.random(ops) if seed > 1 else None
    return Plan.of(problem, problem.legalize(placement.astype(np.int32)), priority)


def leaves(value) -> list[torch.Tensor]:
    found = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two tensors' elements; infinite if they cannot be compared."""
    if one.shape != other.shape or not one.numel():
        return float("inf")
    return (one.double() - other.double()).abs().max().item()


def differences(mine, theirs) -> list[str]:
    """What differs between two results, bit for bit."""
    pairs = list(zip(leaves(mine), leaves(theirs), strict=True))
    return [
        f"{at}: {one.dtype} {tuple(one.shape)} {one.stride()} and {other.dtype} "
        f"{tuple(other.shape)} {other.stride()}, off by {distance(one, other)}"
        for at, (one, other) in enumerate(pairs)
        if one.dtype != other.dtype or one.shape != other.shape or not torch.equal(one, other)
    ]


@contextlib.contextmanager
def executor_of(program, model, plan, world, **options):
    """This rank's executor, in a session of its own."""
    session = RankSession({"plan": "test"}, **options)
    host_ranks = HostRanks.of(plan.device_names, world)
    executor = RankExecutor(program, model, plan, session, host_ranks)
    try:
        yield session, executor
    finally:
        session.close()


def run_program(rank: int, world: int, kind: str, seeds: list[int], devices: int = 1):
    """Run a model under some plans; what differs from the untouched model."""
    plans = [host_plan(kind, world, seed, devices) for seed in seeds]
    return run_plans(rank, world, kind, plans)


def run_plans(rank: int, world: int, kind: str, plans: list[Plan], **options):
    """Run a model under plans; what differs from the untouched model."""
    warnings.simplefilter("ignore")
    model, args = models(kind)
    with torch.no_grad():
        expected = model(*args)
    program = program_of(kind)
    found = []
    for plan in plans:
        with executor_of(program, model, plan, world, **options) as (session, executor):
            if rank:
                session.serve()
                continue
            for _ in range(2):
                found += differences(executor(*args), expected)
            numbers = [executor.submit(*args) for _ in range(3)]
            for number in numbers:
                found += differences(executor.result(number), expected)
    return found


def host_plan(kind: str, world: int, seed: int, devices: int = 1) -> Plan:
    """A plan of a call on several hosts."""
    return random_plan(Problem(program_of(kind).graph, hosts(world, devices)), seed)


def apply_plan(rank: int, world: int, kind: str, seeds: list[int]):
    """Apply plans to a model; what differs from an untouched copy, and the weights of each rank."""
    warnings.simplefilter("ignore")
    found, held = [], []
    for seed in seeds:
        model, args = models(kind)
        reference = copy.deepcopy(model)
        plan = host_plan(kind, world, seed)
        if rank:  # rank 0's weights are the model's
            for parameter in list(model.parameters())[::2]:
                parameter.data.zero_()
        apply(plan, model)
        held.append({name for name, each in model.state_dict().items() if not each.is_meta})
        if rank:
            model.placed.serve()
            continue
        with torch.no_grad(), model.placed:
            for rows in (None, 1, None):  # two shapes in a row
                call = [each[:rows] for each in args]
                found += differences(model(*call), reference(*call))
            results = model.placed.pipeline([args] * 5, in_flight=3)
            for result in results:
                found += differences(result, reference(*args))
    return found, held


def run_until_failure(rank: int, world: int, path: str, options: dict):
    """Run steps, several in flight, until something fails; `path` appears after the first few."""
    torch.manual_seed(0)
    model, args = models("mlp")
    plan = host_plan("mlp", world, 1)
    with executor_of(program_of("mlp"), model, plan, world, **options) as (session, executor):
        if rank:
            session.serve()
        for at in range(10**9):
            numbers = [executor.submit(*args) for _ in range(1 + at % 3)]
            for number in numbers:
                executor.result(number)
            if at == 3:
                Path(path).touch()


def wait_for_calls(rank: int, world: int, path: str, options: dict):
    """Open a session and let it idle, until something fails."""
    model, _ = models("mlp")
    plan = host_plan("mlp", world, 1)
    with executor_of(program_of("mlp"), model, plan, world, **options) as (session, _):
        Path(path + str(rank)).touch()
        if rank:
            session.serve()
        while session.failure is None:
            time.sleep(0.01)
        session.check()


def fail_on_rank(rank: int, world: int, broken: int):
    """Run a model one of whose ops fails on one rank."""
    model, args = models("odd")
    words = torch.full_like(args[1], 99)  # no such row
    problem = Problem(program_of("odd").graph, hosts(world))
    plan = Plan.of(problem, problem.legalize(np.full(len(problem.graph), broken, dtype=np.int32)))
    with executor_of(program_of("odd"), model, plan, world) as (session, executor):
        if rank:
            session.serve()
        executor(args[0], words, args[2])


def differ_in_plans(rank: int, world: int):
    """Apply another plan on each rank."""
    model, _ = models("mlp")
    apply(host_plan("mlp", world, rank), model)


def differ_in_models(rank: int, world: int):
    """Call a model that has another slope on rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.1 if rank else 0.2), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    problem = Problem(from_torch(model, (x,)), hosts(world))
    apply(random_plan(problem, 0), model)
    if rank:
        model.placed.serve()
    with torch.no_grad():
        model(x)


def misuse(rank: int, world: int):
    """The errors of calls that ranks refuse, in order."""
    model, args = models("mlp")
    apply(host_plan("mlp", world, 0), model)
    placed, errors = model.placed, []

    def refused(call) -> None:
        try:
            call()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    if rank:
        with torch.no_grad():
            refused(lambda: model(*args))
        placed.serve()
        refused(lambda: model(*args))
        return errors
    refused(lambda: model(*args))
    refused(placed.serve)
    refused(lambda: placed.train_step(*args))
    refused(model.half)
    refused(lambda: model.load_state_dict(models("mlp")[0].state_dict()))
    with torch.no_grad():
        refused(lambda: model(numpy_array(args[0])))
        found = differences(model(*args), models("mlp")[0](*args))
    placed.close()
    with torch.no_grad():
        refused(lambda: model(*args))
    return [*errors, *found]


def numpy_array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy()


def load_from_file(rank: int, world: int, path: str):
    """Run a model on `meta` whose weights each rank reads from a file."""
    model, args = models("mlp")
    reference = copy.deepcopy(model)
    with torch.device("meta"):
        empty = Mlp().eval()
    apply(host_plan("mlp", world, 0), empty, weights=path)
    held = sorted(name for name, each in empty.state_dict().items() if not each.is_meta)
    if rank:
        empty.placed.serve()
        return held, []
    with torch.no_grad(), empty.placed:
        return held, differences(empty(*args), reference(*args))


def measure_links(rank: int, world: int, bandwidth: float):
    """The links between ranks that send at a limited bandwidth, and their cluster."""
    from placewright.profiling.rank_links import join_clusters, measure_rank_links

    session = RankSession({}, limit=BandwidthLimit(bandwidth))
    links = measure_rank_links(session)
    cluster = join_clusters(session, hosts(1), links)
    if rank:
        session.serve()
        return None
    session.close()
    return links, cluster
