"""Branchy networks on one GPU: several streams against one, and against `torch.compile`.

    python benchmarks/streams.py                              on a GPU
    python benchmarks/streams.py --networks inception-v3:training=false,batch=1 --streams 2,3
    python benchmarks/streams.py --small                      tiny networks; also without a GPU

A stream is a device of the plan that is as fast as the whole GPU while the others rest, and an
event is what a tensor takes from one to another; `auto` plans with that. Ways are timed in turn in
one process: median of the steps of all rounds, and the spread between their quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright import Cluster, Link, MaxTime, Plan, Problem, solve, zoo
from placewright.profiling.as_executed import executed_problem
from placewright.profiling.machine_profile import profile_machine
from placewright.profiling.op_costs import profile_ops
from placewright.runtime.executor import Executor
from placewright.runtime.program.program import build_program
from placewright.runtime.real_devices import machine_devices
from placewright.solvers import Auto

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS = (
    "inception-v3:training=false,batch=1",
    "nasnet-a:training=false,batch=1",
    "inception-v3:training=false,batch=16",
)
SMALL = ("inception-v3:training=false,batch=1,size=test",)
EVENT = Link(1e13, 2e-6)
"""What is between two streams: nothing moves, and who reads waits for an event."""
WARMING, STEPS, ROUNDS = 10, 10, 3


@dataclass
class Way:
    """A way to run a network, and what it took."""

    name: str
    step: Callable[[], Any]
    predicted: float | None = None
    times: list[float] | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="*", default=None)
    parser.add_argument("--streams", default="2,4")
    parser.add_argument("--search", type=float, default=10.0, help="seconds of auto")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    print("| network | way | predicted ms | measured ms | spread | times as fast as one stream |")
    print("|---|---|---|---|---|---|")
    for text in asked.networks or (SMALL if asked.small else NETWORKS):
        report(text, [int(count) for count in asked.streams.split(",")], asked)


def report(text: str, counts: list[int], asked: argparse.Namespace) -> None:
    """Time all ways of one network in turn."""
    entry, given = zoo.parse(text)
    chosen: dict[str, Any] = dict(given)
    size = str(chosen.pop("size", "full"))
    torch.manual_seed(0)
    assert entry.network is not None
    model, args, kwargs = entry.network.build(size, **chosen)
    model.eval()
    program = build_program(model, args, kwargs, name=text)
    profile = profile_machine()
    table = profile_ops(
        program, profile.machine, profile.cluster, machine_devices(profile.machine)
    ).table
    gpu = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    ways, right = [], None
    for count in (1, *counts):
        problem = Problem(program.graph, streams(profile.cluster, count), table)
        problem = executed_problem(problem, profile)
        seconds = 1.0 if asked.small else asked.search
        if count == 1:
            plan = Plan.of(problem, problem.legalize(np.zeros(len(program.graph))))
            predicted = solve(problem, Auto(), MaxTime(0.1)).step_time
        else:
            result = solve(problem, Auto(), MaxTime(seconds))
            plan, predicted = result.plan, result.step_time
        where = {} if gpu.type == "cuda" else dict.fromkeys(plan.device_names, "cpu:1")
        executor = Executor(program, model, plan, where)
        made = executor(*args, **kwargs)
        right = made if right is None else right
        check(made, right, f"{count} streams")
        ways.append(
            Way(
                f"{count} stream{'s' * (count > 1)}",
                lambda run=executor: run(*args, **kwargs),  # type: ignore[misc]
                predicted,
            )
        )
    there = model.to(gpu)
    moved = [arg.to(gpu) if isinstance(arg, torch.Tensor) else arg for arg in args]
    ways.append(Way("PyTorch, op by op", lambda: there(*moved, **kwargs)))
    if gpu.type == "cuda":
        compiled = torch.compile(there, mode="reduce-overhead")
        ways.append(Way('torch.compile(mode="reduce-overhead")', lambda: compiled(*moved)))
    timed(ways)
    one = statistics.median(ways[0].times or [])
    for way in ways:
        took = way.times or []
        middle, quarters = statistics.median(took), statistics.quantiles(took, n=4)
        predicted_ms = "" if way.predicted is None else f"{1e3 * way.predicted:.3f}"
        print(
            f"| {text} | {way.name} | {predicted_ms} | {1e3 * middle:.3f} | "
            f"{(quarters[2] - quarters[0]) / middle:.0%} | {one / middle:.2f} |",
            flush=True,
        )


def streams(cluster: Cluster, count: int) -> Cluster:
    """So many streams of the first GPU; of the first worker where there is none."""
    gpu = cluster.devices[0]
    if count == 1:
        return Cluster("streams", (replace(gpu, name="gpu0"),), {})
    devices = tuple(replace(gpu, name=f"gpu0.{at}") for at in range(count))
    names = [device.name for device in devices]
    return Cluster("streams", devices, {(a, b): EVENT for a in names for b in names if a != b})


def check(made: Any, right: Any, what: str) -> None:
    """Outputs are those of one stream."""
    for one, other in zip(tensors(made), tensors(right), strict=True):
        if not torch.allclose(one.cpu(), other.cpu(), rtol=1e-3, atol=1e-4):
            raise SystemExit(f"{what}: outputs differ from those of one stream")


def tensors(made: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = torch.utils._pytree.tree_leaves(made)
    return [one for one in found if isinstance(one, torch.Tensor)]


def timed(ways: list[Way]) -> None:
    """Run all ways in turn, several times."""
    with torch.no_grad():
        for round_ in range(ROUNDS + 1):
            for way in ways:
                for _ in range(WARMING if round_ == 0 else 1):
                    way.step()
                if round_ == 0:
                    way.times = []
                    continue
                for _ in range(STEPS):
                    wait()
                    began = time.perf_counter()
                    way.step()
                    wait()
                    assert way.times is not None
                    way.times.append(time.perf_counter() - began)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
