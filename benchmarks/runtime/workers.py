"""Plans for two CPU workers, measured against one worker.

    python -m benchmarks.runtime.workers --size test

Two workers are two threads with cores of their own. Inception-V3's inference is placed by `auto`
with op times measured on one worker, and its step time is compared with everything on one worker. A
chain of equal blocks is placed for the period, and run with several inputs in flight.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

import placewright as pw
from benchmarks.common import Table, machine, make_parser, milliseconds
from placewright.frontends.pytorch.values import tensors_in
from placewright.runtime import Executor, time_steps, verify
from placewright.runtime.in_flight import pipelined_results
from placewright.runtime.program.program import build_program
from placewright.zoo import build_network

if TYPE_CHECKING:
    from collections.abc import Sequence

HANDOFF = 60e-6  # seconds until a waiting worker has another worker's tensor


class Chain(nn.Module):
    """Blocks of two convolutions, one after the other."""

    def __init__(self, blocks: int, channels: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1),
            )
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def workers() -> pw.Cluster:
    """Two workers; threads share memory, so that handing a tensor over takes no bandwidth."""
    devices = tuple(
        pw.Device(f"cpu{at}", "cpu", memory=2**36, rates={"float32": 1e11}) for at in range(2)
    )
    link = pw.Link(1e15, HANDOFF)
    return pw.Cluster("2 workers", devices, {("cpu0", "cpu1"): link, ("cpu1", "cpu0"): link})


def profile(program, model, args, steps=7):
    """The median seconds of each op on one worker, measured while the whole step runs there."""
    problem = pw.Problem(program.graph, workers())
    alone = pw.Plan.of(problem, problem.legalize(np.zeros(len(program.graph), dtype=int)))
    durations = [[] for _ in program.graph.ops]

    def record(position, begin, end):
        durations[position].append(end - begin)

    with Executor(program, model, alone, record=record) as run:
        for _ in range(steps):
            run(*args)
    seconds = np.array([median(times[2:]) if times else 0.0 for times in durations])
    return pw.Table(tuple(op.name for op in program.graph.ops), ("cpu",), seconds[:, None])


def plan_network(program, model, args, objective, budget):
    """A problem with measured costs, the plan of one worker, and the plan that `auto` finds."""
    costs = profile(program, model, args)
    problem = pw.Problem(program.graph, workers(), costs, objective=objective)
    alone = pw.Plan.of(problem, problem.legalize(np.zeros(len(program.graph), dtype=int)))
    result = pw.solve(problem, pw.solvers.Auto(), pw.MaxTime(budget), seed=0)
    return problem, alone, result


def same(one, other):
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5)
        for a, b in zip(tensors_in(one), tensors_in(other), strict=True)
    )


def inception(size, budget, rounds):
    """Step time of one inference: one worker against two."""
    torch.manual_seed(0)
    model, args, kwargs = build_network(f"inception-v3:training=false,size={size},batch=4")
    model.eval()
    program = build_program(model, args, kwargs)
    problem, alone, result = plan_network(program, model, args, "step", budget)
    with torch.no_grad():
        expected = model(*args, **kwargs)
    report = verify(program, model, result.plan, args, kwargs, problem=problem)
    seconds = {"one": [], "two": []}
    for _ in range(rounds):  # alternately, so that other load on the machine slows both
        for name, plan in (("one", alone), ("two", result.plan)):
            with Executor(program, model, plan) as run:
                seconds[name].append(time_steps(run, args, kwargs).seconds)
                assert same(run(*args, **kwargs), expected)
    one, two = median(seconds["one"]), median(seconds["two"])
    name = f"inception-v3 ({size}, batch 4), step time"
    return name, one, two, result.objective_value, f"{report.difference:.1e}"


def pipeline(budget, rounds, in_flight=4, steps=40):
    """Period of a chain with several inputs in flight: one worker against two."""
    torch.manual_seed(0)
    model, x = Chain(8, 64).eval(), torch.randn(4, 64, 28, 28)
    program = build_program(model, (x,))
    _, alone, result = plan_network(program, model, (x,), "period", budget)
    inputs = [(torch.randn_like(x),) for _ in range(steps)]
    with torch.no_grad():
        expected = [model(*one) for one in inputs]
    seconds = {"one": [], "two": []}
    for _ in range(rounds):
        for name, plan in (("one", alone), ("two", result.plan)):
            with Executor(program, model, plan) as run:
                run(x)
                begin = time.perf_counter()
                steps_run = pipelined_results(run, inputs[0], inputs[1:], in_flight)
                outputs = [output for _, output in steps_run]
                seconds[name].append((time.perf_counter() - begin) / steps)
            assert len(outputs) == steps
            assert all(same(a, b) for a, b in zip(outputs, expected, strict=True))  # and in order
    one, two = median(seconds["one"]), median(seconds["two"])
    name = f"chain of 8 blocks, period, {in_flight} in flight"
    return name, one, two, result.objective_value, "in order, equal"


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument(
        "--size", choices=("test", "full"), default="full", help="size of Inception-V3"
    )
    parser.add_argument("--budget", type=float, default=20.0, help="time budget of `auto`, seconds")
    parser.add_argument("--rounds", type=int, default=5, help="how often both plans are timed")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = [
        inception(arguments.size, arguments.budget, arguments.rounds),
        pipeline(arguments.budget, arguments.rounds),
    ]
    print(f"{machine()}\n")
    table = Table(
        *("what", "one worker, ms", "two workers, ms", "times as fast", "predicted, ms"),
        "difference of outputs",
    )
    for name, one, two, predicted, difference in rows:
        times = f"{one / two:.2f}"
        milli = [milliseconds(seconds, 2) for seconds in (one, two, predicted)]
        table.row(name, *milli[:2], times, milli[2], difference)


if __name__ == "__main__":
    main()
