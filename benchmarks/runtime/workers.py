"""Plans for two CPU workers, run for real: `python benchmarks/workers.py [--size full] [-o FILE]`.

Two workers are two threads with cores of their own. Inception-V3's inference is placed by `auto` on
op times measured on one worker, and its step time measured against everything on one worker. A
chain of equal blocks is placed for the period, and run with several inputs in flight.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

import numpy as np
import torch
from torch import nn

import placewright as pw
from placewright.frontends.pytorch.values import tensors_in
from placewright.runtime import Executor, time_steps, verify
from placewright.runtime.in_flight import pipelined_results
from placewright.runtime.program.program import build_program
from placewright.zoo import build_network

HANDED_OVER = 60e-6  # seconds until a worker that waits has a tensor of another


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
    """Two workers; threads share their memory, so that a tensor is handed over in no time."""
    devices = tuple(
        pw.Device(f"cpu{at}", "cpu", memory=2**36, rates={"float32": 1e11}) for at in range(2)
    )
    link = pw.Link(1e15, HANDED_OVER)
    return pw.Cluster("2 workers", devices, {("cpu0", "cpu1"): link, ("cpu1", "cpu0"): link})


def profile(program, model, args, steps=7):
    """The median seconds of each op on one worker, taken while the whole step runs there."""
    problem = pw.Problem(program.graph, workers())
    alone = pw.Plan.of(problem, problem.legalize(np.zeros(len(program.graph), dtype=int)))
    seen = [[] for _ in program.graph.ops]

    def record(position, begin, end):
        seen[position].append(end - begin)

    with Executor(program, model, alone, record=record) as run:
        for _ in range(steps):
            run(*args)
    seconds = np.array([median(one[2:]) if one else 0.0 for one in seen])
    return pw.Table(tuple(op.name for op in program.graph.ops), ("cpu",), seconds[:, None])


def planned(program, model, args, objective, budget):
    """A problem with measured costs, the plan of one worker, and the one that `auto` finds."""
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
    problem, alone, result = planned(program, model, args, "step", budget)
    with torch.no_grad():
        expected = model(*args, **kwargs)
    seen = verify(program, model, result.plan, args, kwargs, problem=problem)
    seconds = {"one": [], "two": []}
    for _ in range(rounds):  # in turn, so that whatever else the machine does hits both
        for name, plan in (("one", alone), ("two", result.plan)):
            with Executor(program, model, plan) as run:
                seconds[name].append(time_steps(run, args, kwargs).seconds)
                assert same(run(*args, **kwargs), expected)
    one, two = median(seconds["one"]), median(seconds["two"])
    return (
        f"| inception-v3 ({size}, batch 4), step time | {one * 1e3:.2f} ms | {two * 1e3:.2f} ms | "
        f"{one / two:.2f} | {result.objective_value * 1e3:.2f} ms | {seen.difference:.1e} |"
    )


def pipeline(budget, rounds, in_flight=4, steps=40):
    """Period of a chain with several inputs in flight: one worker against two."""
    torch.manual_seed(0)
    model, x = Chain(8, 64).eval(), torch.randn(4, 64, 28, 28)
    program = build_program(model, (x,))
    _, alone, result = planned(program, model, (x,), "period", budget)
    inputs = [(torch.randn_like(x),) for _ in range(steps)]
    with torch.no_grad():
        expected = [model(*one) for one in inputs]
    seconds = {"one": [], "two": []}
    for _ in range(rounds):
        for name, plan in (("one", alone), ("two", result.plan)):
            with Executor(program, model, plan) as run:
                run(x)
                begin = time.perf_counter()
                made = [one for _, one in pipelined_results(run, inputs[0], inputs[1:], in_flight)]
                seconds[name].append((time.perf_counter() - begin) / steps)
            assert len(made) == steps
            assert all(same(a, b) for a, b in zip(made, expected, strict=True))  # and in order
    one, two = median(seconds["one"]), median(seconds["two"])
    return (
        f"| chain of 8 blocks, period, {in_flight} in flight | {one * 1e3:.2f} ms | "
        f"{two * 1e3:.2f} ms | {one / two:.2f} | {result.objective_value * 1e3:.2f} ms | in order, equal |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=("test", "full"), default="full")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [inception(asked.size, asked.budget, asked.rounds), pipeline(asked.budget, asked.rounds)]
    text = "\n".join(
        [
            f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}",
            "",
            "| what | one worker | two workers | times faster | predicted | difference |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
    print(text)
    if asked.output:
        with open(asked.output, "a") as file:
            file.write(text)


if __name__ == "__main__":
    main()
