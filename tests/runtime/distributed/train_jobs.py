"""What the ranks of the tests of training do: functions of (rank, world size, …)."""

from __future__ import annotations

import functools
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from fake_cuda import FakeCuda
from gpu_jobs import gpu_hosts
from rank_jobs import differences, distance, gpt2, hosts, leaves, random_plan
from torch import nn

from placewright import Plan, Problem, apply
from placewright.runtime.cuda.backend import use_backend
from placewright.runtime.distributed.launched_ranks import time_on_ranks
from placewright.runtime.distributed.rank_model import RankOptions
from placewright.runtime.executor import Executor
from placewright.runtime.program.optimizer_step import OptimizerRule, WeightUpdate
from placewright.runtime.program.program import Program, build_program

RATE = 0.05


class Chain(nn.Module):
    """Layers of which one is used twice, a scale whose gradient needs no scale, and a mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, x, y):
        x = self.middle(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return (self.last(x) + self.shift - y).square().mean()


class Image(nn.Module):
    """Convolutions, a norm without states, and a loss over classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.norm, self.second = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, image, labels):
        x = self.stem(image)
        x = (x + torch.relu(self.second(torch.relu(self.norm(x))))).mean((2, 3))
        return nn.functional.cross_entropy(self.head(x), labels)


class Words(nn.Module):
    """GPT-2's loss: its embedding is also its head."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = gpt2(1)

    def forward(self, tokens):
        return self.inner(tokens, labels=tokens).loss


def train_model(kind: str) -> nn.Module:
    """A model with the same numbers on all ranks."""
    torch.manual_seed(0)
    return {"chain": Chain, "image": Image, "words": Words}[kind]()


def batch(kind: str, seed: int, size: int = 4) -> tuple[torch.Tensor, ...]:
    """The arguments of a step."""
    numbers = torch.Generator().manual_seed(seed)
    if kind == "chain":
        x = torch.randn(size, 8, generator=numbers)
        return x, x[:, :2].sin()
    if kind == "image":
        image = torch.randn(size, 3, 12, 12, generator=numbers)
        return image, torch.randint(0, 5, (size,), generator=numbers)
    return (torch.randint(0, 53, (size, 7), generator=numbers),)


@functools.cache
def train_program(kind: str, name: str) -> Program:
    """The captured training step of a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rule = OptimizerRule(name, RATE)
        return build_program(train_model(kind), batch(kind, 0), training=True, optimizer=rule)


def train_plan(kind: str, name: str, world: int, seed: int, devices: int = 1) -> Plan:
    """A plan of a training step on several hosts.

    Seed -1 has everything on the first device but those ops of the backward pass that read weights:
    their updates could come before the last device has them. Seed -2 is the mirror image.
    """
    problem = Problem(train_program(kind, name).graph, hosts(world, devices))
    if seed >= 0:
        return random_plan(problem, seed)
    ops, last = problem.graph.ops, len(problem.cluster) - 1
    reads_weight = [any(ops[at].kind == "weight" for at, _ in op.inputs) for op in ops]
    is_last = [
        op.phase == "backward" and reads for op, reads in zip(ops, reads_weight, strict=True)
    ]
    placement = np.array(is_last, dtype=np.int32) * last
    priority = np.array([0.0 if op.kind == "optimizer" else 1.0 for op in ops])
    return Plan.of(
        problem, problem.legalize(placement if seed == -1 else last - placement), priority
    )


def in_one_process(plan: Plan) -> Plan:
    """The same plan for workers of one process."""
    return replace(plan, device_names=tuple(f"cpu{at}" for at in range(len(plan.device_names))))


def follow_script(model: nn.Module, kind: str, script: list, step, parts) -> list[torch.Tensor]:
    """What a model computes, item by item.

    Numbers are steps on a batch of that seed, lists of them are steps in micro-batches; "call" is a
    call between two steps, "freeze" and "thaw" change which weights are trained, and "small" is a
    step on a smaller batch.
    """
    results = []
    for item in script:
        if isinstance(item, list):
            results += parts([batch(kind, seed) for seed in item])
        elif item == "call":
            model.eval()
            with torch.no_grad():
                results.append(model(*batch(kind, 99)).clone())
            model.train()
        elif item in ("freeze", "thaw"):
            for weight in list(model.parameters())[:2]:
                weight.requires_grad_(item == "thaw")
        else:
            args = batch(kind, 7, 2) if item == "small" else batch(kind, item)
            results.append(step(*args))
    return results


def follow_placed(model: nn.Module, kind: str, script: list) -> list[torch.Tensor]:
    """A script under a plan."""
    placed = model.placed
    return follow_script(
        model, kind, script, placed.train_step, lambda parts: placed.train_micro_batches(parts, 3)
    )


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def train_on_ranks(
    rank: int,
    world: int,
    kind: str,
    name: str,
    seeds: list[int],
    script: list,
    devices: int = 1,
    delay: float = 0.0,
    bandwidth: float | None = None,
):
    """Train under some plans: what differs from one process, and how far PyTorch's own loop is.

    Args:
        delay: Seconds that sending a weight takes longer, and on other ranks than rank 0 an update.
    """
    warnings.simplefilter("ignore")
    update, send = WeightUpdate.__call__, Executor._send_source
    if delay:
        Executor._send_source = lambda *args: (time.sleep(delay), send(*args))[1]
    found, distances = [], []
    for plan in [train_plan(kind, name, world, seed, devices) for seed in seeds]:
        model = train_model(kind)
        rule = OptimizerRule(name, RATE)
        apply(plan, model, optimizer=rule, ranks=RankOptions(bandwidth=bandwidth))
        if rank:
            if delay:
                WeightUpdate.__call__ = lambda *args: (time.sleep(delay), update(*args))[1]
            model.placed.serve()
            WeightUpdate.__call__ = update
            continue
        results = follow_placed(model, kind, script)
        weights = model.placed.gather_weights()
        found += differences(snapshot(model.placed.remove()), weights)  # which closes
        own_results, own_weights = train_in_one_process(kind, name, plan, script)
        found += differences(results, own_results) + differences(weights, own_weights)
        loop = train_by_pytorch(kind, name, script)
        pairs = zip(leaves([results, weights]), leaves(list(loop)), strict=True)
        distances.append(max(distance(one, other) for one, other in pairs))
    return found, distances


def train_in_one_process(kind: str, name: str, plan: Plan, script: list):
    """The same without ranks."""
    model = train_model(kind)
    apply(in_one_process(plan), model, optimizer=OptimizerRule(name, RATE))
    results = follow_placed(model, kind, script)
    return results, snapshot(model.placed.remove())


OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=RATE),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=RATE, momentum=0.9),
    "adam": lambda weights: torch.optim.Adam(weights, lr=RATE),
}


def train_by_pytorch(kind: str, name: str, script: list):
    """The same by PyTorch's own loop."""
    model = train_model(kind)
    optimizer = OPTIMIZERS[name](model.parameters())

    def train_parts(parts):
        losses = []
        optimizer.zero_grad()
        for args in parts:
            losses.append(model(*args))
            (losses[-1] / len(parts)).backward()
        optimizer.step()
        return [loss.detach() for loss in losses]

    results = follow_script(model, kind, script, lambda *args: train_parts([args])[0], train_parts)
    return results, snapshot(model)


def train_until_failure(rank: int, world: int, path: str):
    """Train until something fails; `path` appears after the first few steps."""
    warnings.simplefilter("ignore")
    model = train_model("chain")
    apply(train_plan("chain", "adam", world, 1), model, optimizer="adam")
    if rank:
        model.placed.serve()
    for at in range(10**9):
        model.placed.train_step(*batch("chain", at % 5))
        if at % 3 == 0:
            model.placed.train_micro_batches([batch("chain", seed) for seed in range(3)])
        if at == 3:
            Path(path).touch()


def differ_in_optimizers(rank: int, world: int):
    """Apply a plan with another optimizer on each rank."""
    plan = train_plan("chain", "adam", world, 0)
    apply(plan, train_model("chain"), optimizer="sgd" if rank else "adam")


def fail_after_the_loss(rank: int, world: int):
    """Train one step whose last update fails on rank 1, when rank 0 has the loss."""
    warnings.simplefilter("ignore")
    model = train_model("chain")
    apply(train_plan("chain", "sgd", world, 0), model)

    def fail(*args):
        time.sleep(0.3)
        raise ValueError("no memory for an update")

    if rank:
        WeightUpdate.__call__ = fail
        model.placed.serve()
    with model.placed:
        model.placed.train_step(*batch("chain", 0))


class Unsteady(nn.Module):
    """A layer, a norm with states, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.breaks = False

    def forward(self, x, y):
        if self.breaks:
            torch._dynamo.graph_break()
        x = nn.functional.dropout(self.norm(self.first(x)), training=self.training)
        return (self.last(x) - y).square().mean()


def refuse(rank: int, world: int):
    """The errors of steps that ranks refuse, in order."""
    warnings.simplefilter("ignore")
    errors = []

    def refused(call) -> None:
        try:
            call()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    args = batch("chain", 0)
    program = build_program(Unsteady(), args, training=True, optimizer="sgd")
    names = tuple(op.name for op in program.graph.ops)

    def apply_and(words, *calls) -> None:
        """Make calls under a plan that has the ops with these words in their names on rank 1."""
        there = [any(word in name for word in words) for name in names]
        cluster = hosts(world).devices
        plan = Plan(names, tuple(each.name for each in cluster), np.array(there, dtype=np.int32))
        model = Unsteady()
        apply(plan, model)
        if rank:
            refused(model.placed.gather_weights)
            model.placed.serve()
            return
        with model.placed:
            for call in calls:
                refused(lambda call=call: call(model))

    def step(model):
        return model.placed.train_step(*args)

    def step_with_hook(model):
        handle = model.last.bias.register_hook(lambda gradient: gradient)
        try:
            step(model)
        finally:
            handle.remove()

    def step_that_breaks(model):
        model.breaks = True
        step(model)

    apply_and(["norm.running"], step)
    apply_and(["dropout", "bernoulli", "rand"], step)
    apply_and(
        ["last."],
        lambda model: model(*args).backward(),
        lambda model: model.placed.train_step(args[0].clone().requires_grad_(), args[1]),
        step_with_hook,
        step_that_breaks,
    )
    return errors


def verify_on_ranks(rank: int, world: int, kind: str, name: str, factor: float):
    """Verify a step; rank 1 updates weights by gradients that are so many times too large."""
    warnings.simplefilter("ignore")
    update = WeightUpdate.__call__
    if rank and factor != 1.0:
        WeightUpdate.__call__ = lambda self, values: update(
            self, [values[0], *(value * factor for value in values[1:])]
        )
    plan, model = train_plan(kind, name, world, 1), train_model(kind)
    program, args, options = train_program(kind, name), batch(kind, 0), RankOptions()
    timed = time_on_ranks(program, model, plan, args, {}, 2, 1, 1, options, verify=True)
    return None if timed is None else timed.difference


def train_on_gpus(rank: int, world: int, kind: str, name: str, seeds: list[int], script: list):
    """Train on fake GPUs, in all of which weights are; what differs from PyTorch's own loop."""
    found = []
    problem = Problem(train_program(kind, name).graph, gpu_hosts(world))
    with use_backend(FakeCuda()):
        for plan in [random_plan(problem, seed) for seed in seeds]:
            model = train_model(kind)
            apply(plan, model, optimizer=OptimizerRule(name, RATE))
            if rank:
                model.placed.serve()
                continue
            with model.placed:
                results = follow_placed(model, kind, script)
                weights = model.placed.gather_weights()
            loop = train_by_pytorch(kind, name, script)
            pairs = zip(leaves([results, weights]), leaves(list(loop)), strict=True)
            found += [distance(one, other) for one, other in pairs]
    return max(found, default=0.0)
