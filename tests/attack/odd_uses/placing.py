"""Plans of each kind, and `place`, the one function that makes a placed model."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placewright as pw
from placewright import Cluster, Device, Link, Plan, Problem
from placewright.errors import GraphError
from placewright.runtime.program.optimizer_step import OptimizerRule

sys.path.append(str(Path(__file__).parents[2] / "runtime"))

from fake_cuda import fake_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import torch

KINDS = ("alternating", "baselines", "streaming", "gpu")
"""Ops alternate over two workers; a solver's plan for two workers; a fake GPU to which the host
streams all weights; the same on a real GPU."""

LEARNING_RATE = 0.05

PLANS: dict[Hashable, Plan] = {}
"""Plans by network and kind: capturing takes half a second."""


def place(model: torch.nn.Module, plan: Plan, optimizer: str | None = None) -> torch.nn.Module:
    """The model under a plan."""
    rule = OptimizerRule(optimizer, LEARNING_RATE) if optimizer else None
    return pw.apply(plan, model, optimizer=rule)


@contextlib.contextmanager
def devices_of(kind: str) -> Iterator[None]:
    """The devices of this kind of plan exist inside the block."""
    with fake_gpus() if kind == "streaming" else contextlib.nullcontext():
        yield


def make_plan(
    key: Hashable,
    kind: str,
    build: Callable[[], torch.nn.Module],
    example: Callable[[], tuple[Any, ...]],
    optimizer: str | None = None,
) -> Plan:
    """A plan of this kind for a network, made once."""
    if (key, kind, optimizer) not in PLANS:
        PLANS[key, kind, optimizer] = _make_plan(kind, build(), example(), optimizer)
    return PLANS[key, kind, optimizer]


def _make_plan(
    kind: str, model: torch.nn.Module, args: tuple[Any, ...], optimizer: str | None
) -> Plan:
    cluster = cluster_of(kind)
    if not getattr(model, "is_exportable", True):
        return _plan_of_names(kind, model, cluster)
    how = {"training": True, "optimizer": optimizer} if optimizer else {}
    try:
        problem = Problem(pw.from_torch(model, args, **how), cluster)
    except GraphError:
        if optimizer:
            raise
        return _plan_of_names(kind, model, cluster)
    return plan_of(problem, kind)


def plan_of(problem: Problem, kind: str) -> Plan:
    """A plan of this kind."""
    if kind == "baselines":
        return pw.solve(problem, pw.solvers.Baselines()).plan
    if kind == "alternating":
        return Plan.of(problem, problem.legalize(np.arange(len(problem.graph)) % 2))
    return _streaming_plan(problem)


def _streaming_plan(problem: Problem) -> Plan:
    """Weights are stored on the host, and every op runs on the GPU."""
    a = problem.arrays
    placement = problem.legalize(np.ones(len(problem.graph), dtype=int))
    placement[a.is_weight] = 0
    placement = placement[a.unit_head]
    largest = max(
        sum(int(a.sizes[t]) for t in a.inputs[a.first_input[op] : a.first_input[op + 1]])
        for op in range(a.ops)
    )
    return Plan.of(problem, placement, staging={"gpu0": largest})


def _plan_of_names(kind: str, model: torch.nn.Module, cluster: Cluster) -> Plan:
    """A plan for a model that cannot be captured: its tensors, and an op of every module."""
    tensors = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    ops = [f"{name}.op" for name, _ in model.named_modules() if name]
    if kind in ("alternating", "baselines"):
        placement = np.arange(len(tensors) + len(ops)) % 2
    else:
        placement = np.array([0] * len(tensors) + [1] * len(ops))
    largest = max((tensor.nbytes for tensor in model.state_dict().values()), default=0)
    staging = None if kind in ("alternating", "baselines") else np.array([-1, 2 * largest])
    return Plan(
        (*tensors, *ops),
        tuple(device.name for device in cluster.devices),
        placement.astype(np.int32),
        staging=staging,
    )


def cluster_of(kind: str) -> Cluster:
    """Two workers, or the host and a GPU."""
    if kind in ("alternating", "baselines"):
        return Cluster.parse("2xcpu")
    host = Device("cpu", "cpu", memory=2**34, rates={"float32": 1e9}, memory_bandwidth=1e30)
    gpu = Device("gpu0", memory=2**34, rates={"float32": 1e12}, memory_bandwidth=1e30)
    links = {pair: Link(1e10) for pair in (("cpu", "gpu0"), ("gpu0", "cpu"))}
    return Cluster("host and GPU", (host, gpu), links)
