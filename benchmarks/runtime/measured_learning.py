"""A policy that learns from measured time: `python benchmarks/measured_learning.py [-o FILE]`.

Two CPU workers run every plan that ColocRL draws of a network with branches; nothing is simulated
while it learns. The table has the first plans that it drew, its best, and everything on one worker,
all measured again at the end, in turn, so that a machine that does other things too slows all of
them alike.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import placewright as pw
from placewright.profiling.machine_profile import profile_machine
from placewright.runtime.meter import Meter
from placewright.runtime.program.program import build_program
from placewright.training import Environment, Trainer, find_recipe
from placewright.zoo import build_network

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--network", default="inception-v3:training=false,batch=1")
    parser.add_argument("--plans", type=int, default=150)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    model, args, kwargs = build_network(given.network)
    program = build_program(model, args, kwargs, name=given.network)
    problem = pw.Problem(program.graph, profile_machine(2, notify=print).cluster)
    alone = [problem.legalize(np.full(len(problem.graph), at)) for at in range(2)]
    with Meter(given.network, steps=8, warmup_steps=3) as meter:
        reference = min(meter(problem, row).seconds[0] for row in alone)
        drawn: list[NDArray[np.int32]] = []

        def measure(problem: pw.Problem, device: NDArray[np.int32]):  # type: ignore[no-untyped-def]
            drawn.extend(device)
            return meter(problem, device)

        environment = Environment(problem, measure, reference)
        made = find_recipe("colocrl", groups=given.groups, hidden=32)
        trainer = Trainer([environment], made, seed=0, max_evaluations=given.plans, device="cpu")
        trainer.run(lambda now: print(now.log[-1], flush=True) is None)
        assert environment.best_placement is not None
        named = {
            "everything on one worker": alone[:1],
            "first plans drawn": drawn[: made.episodes],
            "best plan": [environment.best_placement],
        }
        seconds: dict[str, list[float]] = {name: [] for name in named}
        for _ in range(ROUNDS):
            meter.measurements.clear()
            for name, rows in named.items():
                seconds[name].append(statistics.mean(meter(problem, np.array(rows)).seconds))
    middle = {name: statistics.median(several) for name, several in seconds.items()}
    lines = [
        f"{datetime.date.today()}, {given.network}, two CPU workers, {environment.evaluations} "
        f"plans measured in {environment.seconds:.0f} s",
        "",
        "| plan | measured | of one worker's |",
        "|---|---|---|",
    ]
    for name, value in middle.items():
        share = value / middle["everything on one worker"]
        lines.append(f"| {name} | {1e3 * value:.1f} ms | {share:.2f} |")
    text = "\n".join(lines)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
