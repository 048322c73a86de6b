"""Branchy networks on one GPU: several streams against one, and against `torch.compile`.

    python -m benchmarks.runtime.streams                              on a GPU
    python -m benchmarks.runtime.streams --networks inception-v3:training=false,batch=1
    python -m benchmarks.runtime.streams --small                      also without a GPU

A stream is a device of the plan that is as fast as the whole GPU while the others are idle, and a
transfer between streams is an event; `auto` plans with that. Variants are timed alternately in one
process: the median of the steps of all rounds, and the spread between their quartiles.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.common import Table, int_list, machine, make_parser, milliseconds
from placewright import Cluster, Link, MaxTime, Plan, Problem, solve, zoo
from placewright.profiling.as_executed import executed_problem
from placewright.profiling.machine_profile import profile_machine
from placewright.profiling.op_costs import profile_ops
from placewright.runtime.executor import Executor
from placewright.runtime.program.program import build_program
from placewright.runtime.real_devices import machine_devices
from placewright.solvers import Auto

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

NETWORKS = (
    "inception-v3:training=false,batch=1",
    "nasnet-a:training=false,batch=1",
    "inception-v3:training=false,batch=16",
)
SMALL = ("inception-v3:training=false,batch=1,size=test",)
EVENT = Link(1e13, 2e-6)
"""Between two streams nothing is copied: the reading stream waits for an event."""
WARMING, STEPS, ROUNDS = 10, 10, 3


@dataclass
class Variant:
    """One way to run a network, and the seconds of its steps."""

    name: str
    step: Callable[[], Any]
    predicted: float | None = None
    times: list[float] | None = None


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--networks", nargs="*", help="networks of the zoo")
    parser.add_argument("--streams", type=int_list, default=[2, 4], help="numbers of streams")
    parser.add_argument("--search", type=float, default=10.0, help="time budget of `auto`, seconds")
    parser.add_argument("--small", action="store_true", help="a tiny network, a short search")
    arguments = parser.parse_args(argv)
    print(f"{machine()}\n")
    table = Table(
        *("network", "variant", "predicted ms", "measured ms", "spread"),
        "times as fast as one stream",
    )
    for text in arguments.networks or (SMALL if arguments.small else NETWORKS):
        report(text, table, arguments)


def report(text: str, table: Table, arguments: argparse.Namespace) -> None:
    """Time all variants of one network alternately."""
    entry, given = zoo.parse(text)
    chosen: dict[str, Any] = dict(given)
    size = str(chosen.pop("size", "full"))
    torch.manual_seed(0)
    assert entry.network is not None
    model, args, kwargs = entry.network.build(size, **chosen)
    model.eval()
    program = build_program(model, args, kwargs, name=text)
    profile = profile_machine()
    costs = profile_ops(
        program, profile.machine, profile.cluster, machine_devices(profile.machine)
    ).table
    gpu = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    variants, expected = [], None
    for count in (1, *arguments.streams):
        problem = Problem(program.graph, streams(profile.cluster, count), costs)
        problem = executed_problem(problem, profile)
        seconds = 1.0 if arguments.small else arguments.search
        if count == 1:
            plan = Plan.of(problem, problem.legalize(np.zeros(len(program.graph))))
            predicted = solve(problem, Auto(), MaxTime(0.1)).step_time
        else:
            result = solve(problem, Auto(), MaxTime(seconds))
            plan, predicted = result.plan, result.step_time
        device_map = {} if gpu.type == "cuda" else dict.fromkeys(plan.device_names, "cpu:1")
        executor = Executor(program, model, plan, device_map)
        outputs = executor(*args, **kwargs)
        expected = outputs if expected is None else expected
        check(outputs, expected, f"{count} streams")
        variants.append(
            Variant(
                f"{count} stream{'s' * (count > 1)}",
                lambda run=executor: run(*args, **kwargs),  # type: ignore[misc]
                predicted,
            )
        )
    there = model.to(gpu)
    moved = [arg.to(gpu) if isinstance(arg, torch.Tensor) else arg for arg in args]
    variants.append(Variant("PyTorch, op by op", lambda: there(*moved, **kwargs)))
    if gpu.type == "cuda":
        compiled = torch.compile(there, mode="reduce-overhead")
        variants.append(Variant('torch.compile(mode="reduce-overhead")', lambda: compiled(*moved)))
    time_alternately(variants)
    one = statistics.median(variants[0].times or [])
    for variant in variants:
        took = variant.times or []
        middle, quarters = statistics.median(took), statistics.quantiles(took, n=4)
        table.row(
            text,
            variant.name,
            None if variant.predicted is None else milliseconds(variant.predicted),
            milliseconds(middle),
            f"{(quarters[2] - quarters[0]) / middle:.0%}",
            f"{one / middle:.2f}",
        )


def streams(cluster: Cluster, count: int) -> Cluster:
    """`count` streams of the first GPU, or of the first worker where there is no GPU."""
    gpu = cluster.devices[0]
    if count == 1:
        return Cluster("streams", (replace(gpu, name="gpu0"),), {})
    devices = tuple(replace(gpu, name=f"gpu0.{at}") for at in range(count))
    names = [device.name for device in devices]
    return Cluster("streams", devices, {(a, b): EVENT for a in names for b in names if a != b})


def check(outputs: Any, expected: Any, what: str) -> None:
    """End the program if outputs are not those of one stream."""
    for one, other in zip(tensors(outputs), tensors(expected), strict=True):
        if not torch.allclose(one.cpu(), other.cpu(), rtol=1e-3, atol=1e-4):
            raise SystemExit(f"{what}: outputs differ from those of one stream")


def tensors(outputs: Any) -> list[torch.Tensor]:
    leaves: list[Any] = torch.utils._pytree.tree_leaves(outputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def time_alternately(variants: list[Variant]) -> None:
    """Run all variants one after the other, several times."""
    with torch.no_grad():
        for round_ in range(ROUNDS + 1):
            for variant in variants:
                for _ in range(WARMING if round_ == 0 else 1):
                    variant.step()
                if round_ == 0:
                    variant.times = []
                    continue
                for _ in range(STEPS):
                    wait()
                    began = time.perf_counter()
                    variant.step()
                    wait()
                    assert variant.times is not None
                    variant.times.append(time.perf_counter() - began)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
