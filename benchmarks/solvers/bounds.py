"""What the bounds are worth, and how long they take.

`python benchmarks/bounds.py [--workloads DIR] [--baselines] [--only WORD]`: the zoo at test size
(step time), the offload network, and, with the folder of the public workload files
(docs/workloads.md), their period. The gap is that of the best baseline to the best bound; seconds
are CPU time.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import scipy.optimize
import scipy.sparse.csgraph  # noqa: F401  so that no row pays for the import

import placewright as pw
from placewright.solvers import Baselines, bound
from placewright.zoo.networks import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator


def problems(workloads: Path | None) -> Iterator[tuple[str, pw.Problem]]:
    if workloads is not None:
        for path in sorted(workloads.glob("**/throughput*/**/*.json")):
            yield f"{path.stem}, period", replace(pw.from_workload(path), objective="period")
    for tokens in (1, 512, 4096):
        graph = pw.zoo.load(f"offload:tokens={tokens}")
        cluster = pw.Cluster.parse("1xH200+cpu")
        half = sum(sum(op.outputs) for op in graph.ops if op.kind == "weight") // 2
        limits = pw.Constraints(limits={"gpu0": half + cluster.devices[0].reserve + 2**25})
        yield f"offload, {tokens} tokens, half", pw.Problem(graph, cluster, constraints=limits)
    for name in NETWORKS:
        graph = pw.zoo.load(f"{name}:size=test")
        yield f"{name}, step", pw.Problem(graph, pw.Cluster.parse("4xP100+cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", type=Path)
    parser.add_argument("--only", default="", help="problems whose name has this word")
    parser.add_argument("--baselines", action="store_true", help="also the best baseline")
    arguments = parser.parse_args()
    print(f"{'problem':38} {'ops':>6} {'quick':>12} {'s':>6} {'thorough':>12} {'s':>6}  by")
    for name, problem in problems(arguments.workloads):
        if arguments.only not in name:
            continue
        row = f"{name:38} {problem.arrays.ops:6}"
        best = 0.0
        for effort in ("quick", "thorough"):
            start = time.process_time()
            found = bound(problem, effort)
            row += f" {found.seconds * 1e3:9.4f} ms {time.process_time() - start:6.2f}"
            best = max(best, found.seconds)
        row += f"  {found.name}"
        if arguments.baselines:
            result = pw.solve(problem, Baselines(), stop=pw.MaxTime(20))
            fits = "" if result.fits else " (does not fit)"
            row += f"; best baseline {result.objective_value * 1e3:.4f} ms, gap {result.objective_value / best - 1:.1%}"
            row += fits
        print(row, flush=True)


if __name__ == "__main__":
    main()
