"""How tight the lower bounds are, and how long they take.

    python -m benchmarks.solvers.bounds --only offload --baselines

Problems: the zoo at test size (step time), the offload network, and, with the folder of the public
workload files (docs/workloads.md), their period. The gap is that of the best baseline to the best
bound; seconds are CPU time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import scipy.optimize
import scipy.sparse.csgraph  # noqa: F401  so that no row pays for the import

import placewright as pw
from benchmarks.common import Table, make_parser, milliseconds
from placewright.solvers import Baselines, bound
from placewright.zoo.networks import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def problems(workloads: Path | None) -> Iterator[tuple[str, pw.Problem]]:
    if workloads is not None:
        for path in sorted(workloads.glob("**/throughput*/**/*.json")):
            yield f"{path.stem}, period", replace(pw.from_workload(path), objective="period")
    for tokens in (1, 512, 4096):
        graph = pw.zoo.load(f"offload:tokens={tokens}")
        cluster = pw.Cluster.parse("1xH200+cpu")
        half = sum(sum(op.outputs) for op in graph.ops if op.kind == "weight") // 2
        limits = pw.Constraints(limits={"gpu0": half + 2**25})
        yield f"offload, {tokens} tokens, half", pw.Problem(graph, cluster, constraints=limits)
    for name in NETWORKS:
        graph = pw.zoo.load(f"{name}:size=test")
        yield f"{name}, step", pw.Problem(graph, pw.Cluster.parse("4xP100+cpu"))


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--workloads", type=Path, help="folder of the public workload files")
    parser.add_argument("--only", default="", help="problems whose name contains this text")
    parser.add_argument(
        "--baselines", action="store_true", help="also solve each with the best baseline (20 s)"
    )
    arguments = parser.parse_args(argv)
    efforts = ("quick", "thorough")
    columns = [column for effort in efforts for column in (f"{effort}, ms", "CPU s")]
    table = Table("problem", "ops", *columns, "bound by", "best baseline, ms", "gap")
    for name, problem in problems(arguments.workloads):
        if arguments.only not in name:
            continue
        cells = [name, f"{problem.arrays.ops:,}"]
        best = 0.0
        for effort in efforts:
            start = time.process_time()
            lower = bound(problem, effort)
            cells += [milliseconds(lower.seconds, 4), f"{time.process_time() - start:.2f}"]
            best = max(best, lower.seconds)
        cells.append(lower.name)
        if arguments.baselines:
            result = pw.solve(problem, Baselines(), stop=pw.MaxTime(20))
            fits = "" if result.fits else " (does not fit)"
            cells.append(milliseconds(result.objective_value, 4) + fits)
            cells.append(f"{result.objective_value / best - 1:.1%}")
        else:
            cells += ["", ""]
        table.row(*cells)


if __name__ == "__main__":
    main()
