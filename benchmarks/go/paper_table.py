"""GO's table on our simulator: placement on the paper's 14 rows, and all three of its tasks.

    python -m benchmarks.go.paper_table --rows rnnlm-2,nmt-4 --plans 8000
    python -m benchmarks.go.paper_table --large        50,000 ops in one call: seconds and memory

Step times in seconds on simulated P100 clusters, devices running ready ops first as TensorFlow's
executor does. `go`: trained on the graph, on units merged to at most 5,000: imitation of `auto`'s
plan of `--seconds`, then PPO; its figure is the best plan that it sampled or its greedy plan, not a
demonstration. `no imitation`: PPO alone. `zero-shot`: best of 16 plans of a policy that never saw
the row's fold, on the whole graph, the `first plans` among them, which it has before it has learned
anything; `fine-tuned`: 50 more updates, 40 of imitation and 10 of PPO; `50 updates`: as many of
fresh weights.
Section `tasks`: placement, schedule and fusion alone, in pairs and together, against the best
single device that fits (else repaired METIS), first-ready, fused as a compiler would; the paper
prints 33-60 %.
`--policies` holds `go-a.json` and `go-b.json` as `benchmarks.train.train_go` writes them, by
default those of `benchmarks/go/weights`. The paper's figures were measured on real machines; they
are printed for reference only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    Table,
    add_jobs,
    add_results,
    add_seed,
    chosen,
    geometric_mean,
    make_parser,
    name_list,
)
from benchmarks.go.folds import FOLD_WEIGHTS
from benchmarks.go.runs import ABLATIONS, FIRST, LEARNED, SOLVERS, TASKS, Run, run_all

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


@dataclass(frozen=True)
class Line:
    """One row of the paper.

    Args:
        fold: Of `train_go.FOLDS`.
        paper: GO-one, human, METIS, HDP, as printed; None for out of memory.
    """

    name: str
    network: str
    cluster: str
    fold: str
    paper: tuple[float, float, float | None, float]


LINES = (
    Line("rnnlm-2", "rnnlm-2", "2xP100+cpu", "a", (0.173, 0.192, 0.355, 0.191)),
    Line("rnnlm-4", "rnnlm-4", "4xP100+cpu", "a", (0.210, 0.239, 0.503, 0.251)),
    Line("rnnlm-8", "rnnlm-8", "8xP100+cpu", "a", (0.320, 0.332, None, 0.764)),
    Line("nmt-2", "nmt-2", "2xP100+cpu", "a", (0.301, 0.384, 0.344, 0.327)),
    Line("nmt-4", "nmt-4", "4xP100+cpu", "a", (0.350, 0.469, 0.466, 0.432)),
    Line("nmt-8", "nmt-8", "8xP100+cpu", "a", (0.440, 0.562, None, 0.693)),
    Line("txl-2", "transformer-xl-2", "2xP100+cpu", "b", (0.223, 0.268, 0.37, 0.262)),
    Line("txl-4", "transformer-xl-4", "4xP100+cpu", "b", (0.230, 0.27, None, 0.259)),
    Line("txl-8", "transformer-xl-8", "8xP100+cpu", "b", (0.350, 0.46, None, 0.425)),
    Line("inception-32", "inception-v3", "2xP100+cpu", "b", (0.229, 0.312, None, 0.301)),
    Line("inception-64", "inception-v3:batch=64", "2xP100+cpu", "b", (0.423, 0.731, None, 0.498)),
    Line("amoebanet", "amoebanet-d", "4xP100+cpu", "b", (0.394, 0.44, 0.426, 0.418)),
    Line("wavenet-2", "wavenet-2x18", "2xP100+cpu", "a", (0.317, 0.376, None, 0.354)),
    Line("wavenet-4", "wavenet-4x36", "4xP100+cpu", "a", (0.659, 0.988, None, 0.721)),
)
OTHER = {"a": "b", "b": "a"}
MARKS = (250, 500, 1000, 2000, 4000)
SIMPLE = ("auto", "bound", FIRST, *SOLVERS)
TRAINED = ("go", "no imitation", "hierarchical")
TRANSFERRED = ("zero-shot", "fine-tuned", "50 updates")


def runs(section: str, lines: list[Line], arguments: argparse.Namespace) -> list[Run]:
    """What a section needs."""
    methods: tuple[str, ...] = (*SIMPLE, *TRAINED, *TRANSFERRED)
    if section == "ablations":
        methods = ("go", *ABLATIONS)
    if section == "tasks":
        methods = ("default", *TASKS)
    if arguments.methods:
        methods = tuple(name for name in methods if name in arguments.methods)
    needed = []
    for line in lines:
        for method in methods:
            policy = ""
            if method in ("zero-shot", "fine-tuned"):
                policy = str(arguments.policies / f"go-{OTHER[line.fold]}.json")
            needed.append(
                Run(
                    line.network,
                    line.cluster,
                    method,
                    arguments.seed if method in LEARNED or method == "auto" else 0,
                    arguments.plans if method in LEARNED else 0,
                    arguments.device if method in LEARNED else "cpu",
                    policy,
                    arguments.samples,
                    arguments.hidden,
                    arguments.seconds,
                    arguments.threads,
                    str(arguments.graphs or ""),
                )
            )
    return needed


def cells(rows: list[dict[str, Any]], line: Line) -> dict[str, dict[str, Any]]:
    """The last run of each method on a row."""
    return {row["method"]: row for row in on(rows, line)}


def on(rows: list[dict[str, Any]], line: Line) -> list[dict[str, Any]]:
    """All runs on a row."""
    return [row for row in rows if (row["network"], row["cluster"]) == (line.network, line.cluster)]


def best_known(rows: list[dict[str, Any]], line: Line) -> float:
    """The best of all runs on a row, and of the demonstrations that some of them had."""
    mine = on(rows, line)
    figures = [fitting(row) for row in mine if row["method"] not in ("bound", "default", *TASKS)]
    return min([*figures, *(row["teacher"] for row in mine if "teacher" in row)], default=math.inf)


def shown(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['best']:.4f}" if not row["over"] else f"{row['over'] / 2**30:.1f} GiB over"


def fitting(row: dict[str, Any] | None) -> float:
    return row["best"] if row is not None and not row["over"] else math.inf


def mean(values: list[float]) -> str:
    """The geometric mean."""
    finite = [value for value in values if 0 < value < math.inf]
    if not finite:
        return "–"
    return f"{geometric_mean(finite):.4f} ({len(finite)} rows)"


def print_rows(columns: list[str], table: list[list[str]]) -> None:
    printed = Table(*columns)
    for line in table:
        printed.row(*line)
    print()


def print_table(rows: list[dict[str, Any]], lines: list[Line]) -> None:
    methods = (*TRAINED, *TRANSFERRED, *SIMPLE)
    table, ratios = [], {name: [] for name in methods}  # type: dict[str, list[float]]
    near = transfer = tuned = 0
    against: list[float] = []
    for line in lines:
        figures = cells(rows, line)
        best = best_known(rows, line)
        for name in methods:
            if name in figures and math.isfinite(best):
                ratios[name].append(fitting(figures[name]) / best)
        near += fitting(figures.get("go")) <= 1.03 * best
        lists = min(fitting(figures.get("heft")), fitting(figures.get("m-etf")))
        if "zero-shot" in figures:
            against.append(fitting(figures["zero-shot"]) / lists)
            transfer += against[-1] <= 1
        if "fine-tuned" in figures and "go" in figures:
            tuned += fitting(figures["fine-tuned"]) <= 1.05 * fitting(figures.get("go"))
        printed = " / ".join("OOM" if value is None else f"{value:.3f}" for value in line.paper)
        table.append([line.name, *(shown(figures.get(name)) for name in methods), printed])
    table.append(["over the best known", *(mean(ratios[name]) for name in methods), ""])
    print_rows(["row", *methods, "printed: GO / human / METIS / HDP"], table)
    print(f"GO trained is within 3 % of the best known plan on {near} of {len(lines)} rows.")
    print(f"Zero-shot over the better of HEFT and m-ETF: {mean(against)}, no worse on {transfer}.")
    print(f"Fine-tuned is within 5 % of trained on {tuned} rows.\n")


def print_curves(rows: list[dict[str, Any]], lines: list[Line]) -> None:
    """The best after fewer plans, and when half of the gain was there."""
    table = []
    for line in lines:
        figures = cells(rows, line)
        for name in (*TRAINED, "fine-tuned", "50 updates"):
            curve = figures.get(name, {}).get("curve") or []
            if not curve:
                continue
            after = []
            for mark in MARKS:
                best = [value for plans, _, value in curve if plans <= mark]
                after.append(f"{best[-1]:.4f}" if best else "–")
            last = curve[-1]
            table.append([line.name, name, *after, f"{last[0]:,}", f"{last[1]:.0f}"])
    columns = [*(f"after {mark:,} plans" for mark in MARKS), "last gain at plan", "at second"]
    print_rows(["row", "method", *columns], table)


def print_ablations(rows: list[dict[str, Any]], lines: list[Line]) -> None:
    table = []
    for line in lines:
        figures = cells(rows, line)
        whole = fitting(figures.get("go"))
        cell = [
            f"{shown(figures.get(name))} ({fitting(figures.get(name)) / whole:.3f})"
            for name in ABLATIONS
        ]
        table.append([line.name, shown(figures.get("go")), *cell])
    print_rows(["row", "go", *ABLATIONS], table)


def print_tasks(rows: list[dict[str, Any]], lines: list[Line]) -> None:
    """How much faster than the default each set of tasks is, in percent as the paper counts."""
    table, gains = [], {name: [] for name in TASKS}  # type: dict[str, list[float]]
    for line in lines:
        figures = cells(rows, line)
        whole = fitting(figures.get("default"))
        cell = []
        for name in TASKS:
            ratio = whole / fitting(figures.get(name))
            gains[name].append(ratio)
            cell.append(f"{shown(figures.get(name))} ({ratio - 1:+.1%})")
        table.append([line.name, shown(figures.get("default")), *cell])
    table.append(["default over it", "", *(mean(gains[name]) for name in TASKS)])
    print_rows(["row", "default", *TASKS], table)


def large() -> None:
    """50,000 ops in one call."""
    import resource
    import time

    import torch

    import placewright as pw
    from placewright.policies.go.config import GoConfig
    from placewright.training.clock import SimulatorClock

    torch.set_num_threads(2)
    problem = pw.Problem(
        pw.zoo.load("layered:ops=50000,seed=3,weights=yes"), pw.Cluster.parse("8xP100+cpu")
    )
    ops = problem.arrays.ops
    policy = GoConfig(tasks=("device", "priority"), timed=True).build(problem)
    policy.use_clock(SimulatorClock())
    began, worked = time.perf_counter(), time.process_time()
    policy.act(problem, 1, 0, greedy=True)
    took, worked = time.perf_counter() - began, time.process_time() - worked
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{ops:,} ops: {took:.1f} s, {worked:.1f} s of CPU, {memory:.1f} GiB")


PRINTERS = {
    "table": print_table,
    "curves": print_curves,
    "ablations": print_ablations,
    "tasks": print_tasks,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    known = {line.name: line for line in LINES}
    option = parser.add_argument
    option("--large", action="store_true", help="only time one call on 50,000 ops")
    option("--sections", type=name_list, default=["table", "curves"], help="sections to run")
    option("--rows", type=name_list, default=[*known], help="rows of the table")
    option("--methods", type=name_list, default="", help="run these methods alone")
    option("--policies", type=Path, default=FOLD_WEIGHTS, help="folder of both folds' policies")
    option("--plans", type=int, default=4000, help="plans that a learned method samples")
    option("--samples", type=int, default=16, help="episodes per update")
    option("--hidden", type=int, default=64, help="size of GO's hidden states")
    option("--seconds", type=float, default=30.0, help="time budget of `auto`")
    option("--device", default="cpu", help="torch device of the policies")
    option("--threads", type=int, default=1, help="threads that evaluate a run's plans")
    option("--graphs", type=Path, help="folder of captured graphs (benchmarks.train.train_go)")
    add_seed(parser)
    add_results(parser, "out/go.jsonl")
    add_jobs(parser)
    arguments = parser.parse_args(argv)
    if arguments.large:
        large()
        return
    lines = [known[name] for name in chosen(parser, arguments.rows, known)]
    sections = chosen(parser, arguments.sections, PRINTERS)
    needed = [run for section in sections for run in runs(section, lines, arguments)]
    rows = run_all(needed, arguments.out, arguments.jobs)
    for section in sections:
        print(f"\n## {section}\n")
        PRINTERS[section](rows, lines)


if __name__ == "__main__":
    main()
