"""A policy that learns from measured step times.

    python -m benchmarks.runtime.measured_learning --plans 150

Two CPU workers run every plan that ColocRL samples for a network with branches; nothing is
simulated while it learns. The table has the first plans that it sampled, its best, and everything
on one worker, all measured again at the end, alternately, so that other load on the machine slows
all of them alike.
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import placewright as pw
from benchmarks.common import Table, machine, make_parser, milliseconds
from placewright.files.journal import Journal
from placewright.profiling.machine_profile import profile_machine
from placewright.runtime.meter import Meter
from placewright.runtime.program.program import build_program
from placewright.training import Environment, Trainer, find_recipe
from placewright.zoo import build_network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROUNDS = 5


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument(
        "--network", default="inception-v3:training=false,batch=1", help="network of the zoo"
    )
    parser.add_argument("--plans", type=int, default=150, help="plans to measure")
    parser.add_argument("--groups", type=int, default=16, help="groups that are placed")
    parser.add_argument(
        "--journal", type=Path, help="file of measured plans, from which a stopped run goes on"
    )
    arguments = parser.parse_args(argv)
    model, args, kwargs = build_network(arguments.network)
    program = build_program(model, args, kwargs, name=arguments.network)
    problem = pw.Problem(program.graph, profile_machine(2, notify=print).cluster)
    alone = [problem.legalize(np.full(len(problem.graph), at)) for at in range(2)]
    with (
        nullcontext() if arguments.journal is None else Journal(arguments.journal) as journal,
        Meter(arguments.network, steps=8, warmup_steps=3, journal=journal) as meter,
    ):
        reference = min(meter(problem, row).seconds[0] for row in alone)
        sampled: list[NDArray[np.int32]] = []

        def measure(problem: pw.Problem, device: NDArray[np.int32]):  # type: ignore[no-untyped-def]
            sampled.extend(device)
            return meter(problem, device)

        environment = Environment(problem, measure, reference)
        recipe = find_recipe("colocrl", groups=arguments.groups, hidden=32)
        trainer = Trainer(
            [environment], recipe, seed=0, max_evaluations=arguments.plans, device="cpu"
        )
        trainer.run(lambda now: print(now.log[-1], flush=True) is None)
        assert environment.best_placement is not None
        named = {
            "everything on one worker": alone[:1],
            "first sampled plans": sampled[: recipe.episodes],
            "best plan": [environment.best_placement],
        }
        seconds: dict[str, list[float]] = {name: [] for name in named}
        for _ in range(ROUNDS):
            meter.journal = None  # the same plans again
            meter.measurements.clear()
            for name, rows in named.items():
                seconds[name].append(statistics.mean(meter(problem, np.array(rows)).seconds))
    middle = {name: statistics.median(several) for name, several in seconds.items()}
    print(
        f"{arguments.network}, two CPU workers, {environment.evaluations} plans measured in "
        f"{environment.seconds:.0f} s; {machine()}\n"
    )
    table = Table("plan", "measured, ms", "share of one worker's")
    for name, value in middle.items():
        share = value / middle["everything on one worker"]
        table.row(name, milliseconds(value, 1), f"{share:.2f}")


if __name__ == "__main__":
    main()
