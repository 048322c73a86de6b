"""Population annealing against `auto` at equal time, on the CPU and in lanes on a GPU.

    python -m benchmarks.solvers.population --cpu --budgets 10,30
    python -m benchmarks.solvers.population --budgets 10,60      # on a machine with a GPU

Layered graphs on eight GPUs; with `--cpu` budgets are CPU seconds of the process, for a machine
that others use, otherwise wall time. Both methods start from nothing, and their last plans are
evaluated by the exact kernel; `heft` is the best plan that population annealing starts from. The
arm `population gpu` is run where there is a GPU. What is in `--out` already is not run again.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_results,
    float_list,
    int_list,
    make_parser,
    seed_range,
)
from benchmarks.proposers.compare import CpuTime
from benchmarks.simulator.speed import find_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common import Row

ARMS = {
    "auto": lambda: pw.solvers.Auto(),
    "heft": lambda: pw.solvers.HEFT(contended=True),
    "population": lambda: pw.solvers.PopulationAnnealing(),
    "population gpu": lambda: pw.solvers.PopulationAnnealing(device="cuda"),
}


def key_of(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("ops", "arm", "budget", "clock", "seed"))


def solve_once(ops: int, arm: str, budget: float, clock: str, seed: int) -> Row:
    """One method on one problem."""
    graph = pw.zoo.load(f"layered:ops={ops},seed={seed + 1},weights=no")
    problem = pw.Problem(graph, pw.Cluster.parse("8xA100-nvlink"))
    stop = CpuTime(budget) if clock == "cpu" else pw.MaxTime(budget)
    result = pw.solve(problem, ARMS[arm](), stop=stop, seed=seed)
    return {
        "ops": ops,
        "arm": arm,
        "budget": budget,
        "clock": clock,
        "seed": seed,
        "step_time": result.step_time,
        "fits": result.fits,
        "evaluations": result.evaluations,
        "found_by": result.found_by,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--sizes", type=int_list, default=[5_000, 50_000], help="numbers of ops")
    parser.add_argument("--budgets", type=float_list, default=[10.0], help="seconds of each run")
    parser.add_argument("--seeds", type=seed_range, default=range(3), help="seeds, as 0:3")
    parser.add_argument("--cpu", action="store_true", help="budgets are CPU seconds")
    add_results(parser, "out/population.jsonl")
    arguments = parser.parse_args(argv)
    clock = "cpu" if arguments.cpu else "wall"
    results = ResultFile(arguments.out, key_of)
    arms = [arm for arm in ARMS if not arm.endswith("gpu") or find_gpu() is not None]
    runs = [
        (ops, arm, budget, clock, seed)
        for ops in arguments.sizes
        for budget in arguments.budgets
        for seed in arguments.seeds
        for arm in arms
    ]
    for run in runs:
        if run not in results:
            results.append(solve_once(*run))
    found = {key_of(row): row for row in results.rows}
    table = Table("ops", "budget", "arm", "step time / auto's", "range", "plans")
    for ops in arguments.sizes:
        for budget in arguments.budgets:
            for arm in arms:
                rows = [found[ops, arm, budget, clock, seed] for seed in arguments.seeds]
                ratios = [
                    row["step_time"] / found[ops, "auto", budget, clock, row["seed"]]["step_time"]
                    for row in rows
                ]
                table.row(
                    f"{ops:,}",
                    f"{budget:g} s {clock}",
                    arm,
                    f"{statistics.median(ratios):.3f}",
                    f"{min(ratios):.3f} to {max(ratios):.3f}",
                    f"{statistics.median(row['evaluations'] for row in rows):,.0f}",
                )


if __name__ == "__main__":
    main()
