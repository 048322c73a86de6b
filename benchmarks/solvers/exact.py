"""Optima of the random problems, by CP-SAT.

    python -m benchmarks.solvers.exact --seeds 0:200 --seconds 60

Solves each with `Exact` and adds seed, value, bound and whether it is proven to the file of
results, for other methods to compare with. Problems that are in the file are not solved again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_results,
    make_parser,
    milliseconds,
    seed_range,
)
from benchmarks.solvers.random_problems import SEEDS, random_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

PROVEN = 1e-6  # gaps below this are rounding


def solve_exactly(seed: int, seconds: float, workers: int) -> dict[str, Any]:
    problem = random_problem(seed)
    start = time.perf_counter()
    result = pw.solve(problem, pw.solvers.Exact(seconds=seconds, workers=workers))
    return {
        "seed": seed,
        "ops": len(problem.graph),
        "devices": len(problem.cluster),
        "value": result.objective_value,
        "bound": result.bound,
        "fits": result.fits,
        "proven": bool(result.fits and result.gap < PROVEN),
        "baselines": pw.solve(problem, pw.solvers.Baselines()).objective_value,
        "seconds": time.perf_counter() - start,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--seeds", type=seed_range, default=SEEDS, help="first:last + 1")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit per problem")
    parser.add_argument("--workers", type=int, default=2, help="threads of CP-SAT")
    add_results(parser, "out/exact.jsonl")
    arguments = parser.parse_args(argv)
    results = ResultFile(arguments.out, lambda row: row["seed"])
    table = Table(
        *("seed", "ops", "devices", "value, ms", "bound, ms", "proven"),
        *("best baseline above it", "seconds"),
    )
    for seed in arguments.seeds:
        if seed not in results:
            results.append(solve_exactly(seed, arguments.seconds, arguments.workers))
        row = next(row for row in results.rows if row["seed"] == seed)
        table.row(
            seed,
            row["ops"],
            row["devices"],
            milliseconds(row["value"], 4),
            milliseconds(row["bound"], 4),
            "yes" if row["proven"] else "no",
            f"{row['baselines'] / row['value'] - 1:.1%}",
            f"{row['seconds']:.1f}",
        )
    proven = [row for row in results.rows if row["proven"]]
    seconds = sorted(row["seconds"] for row in results.rows)
    print(
        f"\n{len(proven)} of {len(seconds)} proven; seconds: median "
        f"{seconds[len(seconds) // 2]:.1f}, most {seconds[-1]:.1f}, all {sum(seconds):.0f}"
    )


if __name__ == "__main__":
    main()
