"""What ranks with GPUs do in the tests: fake GPUs, and NCCL's transport over gloo."""

from __future__ import annotations

import os

import rank_jobs
import torch
from fake_cuda import FakeCuda

from placewright import Cluster, Device, Link, Problem
from placewright.runtime.cuda.backend import use_backend
from placewright.runtime.distributed.nccl_transport import NcclTransport


class CountedPins(FakeCuda):
    """Fake GPUs that count what is pinned, and what is copied from them into pinned memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pins, self.copies = 0, 0

    def pin(self, tensor):
        self.pins += 1
        return super().pin(tensor)

    def pinned_like(self, tensor):
        self.copies += 1
        return super().pinned_like(tensor)


def gpu_hosts(count: int) -> Cluster:
    """Equal hosts with a GPU and a CPU each."""
    names = [f"node{host}/{device}" for host in range(count) for device in ("gpu0", "cpu")]
    links = {(a, b): Link(1e9) for a in names for b in names if a != b}
    kinds = [name.rpartition("/")[2][:3] for name in names]
    parts = [
        Device(name, kind, memory=2**32, rates={"float32": 1e9}, memory_bandwidth=1e30)
        for name, kind in zip(names, kinds, strict=True)
    ]
    return Cluster("hosts", tuple(parts), links)


def run_on_gpus(rank: int, world: int, kind: str, seeds: list[int]):
    """Run plans on fake GPUs; what differs from the untouched model, and what was pinned."""
    problem = Problem(rank_jobs.program_of(kind).graph, gpu_hosts(world))
    plans = [rank_jobs.random_plan(problem, seed) for seed in seeds]
    cuda = CountedPins()
    with use_backend(cuda):
        found = rank_jobs.run_plans(rank, world, kind, plans)
    return found, cuda.pins, cuda.copies


def run_over_groups(rank: int, world: int, kind: str, seeds: list[int]):
    """Run plans over the transport of NCCL, whose groups are gloo's here."""
    found = []
    for seed in seeds:
        transport = NcclTransport(60.0, "gloo", torch.device("cpu"))
        plans = [rank_jobs.host_plan(kind, world, seed)]
        found += rank_jobs.run_plans(rank, world, kind, plans, transport=transport) or []
    return found


def open_without_gpus(rank: int, world: int):
    """The error of a rank that has no GPU of its own."""
    os.environ["LOCAL_RANK"] = str(rank)
    with use_backend(FakeCuda(gpus=0)):
        NcclTransport(60.0)
