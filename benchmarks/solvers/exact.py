"""Optima of the random problems: `python benchmarks/exact.py [--seeds 0:200] [--seconds 60]`.

Solves each with `Exact` and writes (seed, value, bound, proven) to out/exact.json, for others to
compare with; problems that are there already are left out, so that it can go on another time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from random_problems import SEEDS, random_problem

import placewright as pw

PROVEN = 1e-6  # gaps below this are rounding


def solved(seed: int, seconds: float, workers: int) -> dict[str, object]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default=f"{SEEDS.start}:{SEEDS.stop}", help="first:last + 1")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each problem")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/exact.json"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(exist_ok=True)
    known = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    rows = {row["seed"]: row for row in known}
    print("seed  ops  devices   value ms   bound ms  proven  above it: baselines   seconds")
    for seed in range(*map(int, arguments.seeds.split(":"))):
        if seed not in rows:
            rows[seed] = solved(seed, arguments.seconds, arguments.workers)
            found = [rows[at] for at in sorted(rows)]
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")
        row = rows[seed]
        above = row["baselines"] / row["value"] - 1
        print(
            f"{seed:4}  {row['ops']:3}  {row['devices']:7}  {row['value'] * 1e3:9.4f}  "
            f"{row['bound'] * 1e3:9.4f}  {'yes' if row['proven'] else 'no':6}  "
            f"{above:19.1%}  {row['seconds']:8.1f}",
            flush=True,
        )
    proven = [row for row in rows.values() if row["proven"]]
    seconds = sorted(row["seconds"] for row in rows.values())
    print(
        f"\n{len(proven)} of {len(rows)} proven; seconds: median {seconds[len(seconds) // 2]:.1f}, "
        f"most {seconds[-1]:.1f}, all {sum(seconds):.0f}"
    )


if __name__ == "__main__":
    main()
