"""Evaluations per second on workers, against one thread of one process; and what an exchange costs.

    python -m benchmarks.scaling.evaluations                  # 1 and 2 processes, threads, Ray
    python -m benchmarks.scaling.evaluations --workers "" --processes 1,2,4,8,16
    python -m benchmarks.scaling.evaluations --repeats 0      # prints what is in --out

Plans are distinct. "lanes" share one order of ops, so that they are evaluated side by side;
"events" have orders of their own. A repeat measures one thread and the workers in turn on the same
plans, by the clock on the wall, and their ratio is the speed-up: let nothing else run. The driver's
CPU time per plan is what one driver cannot share out; the last table works out from it, from the
bytes of a plan and from the cost of an exchange what 8, 64 and 512 workers could do.
"""

from __future__ import annotations

import pickle
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_results,
    int_list,
    make_parser,
    milliseconds,
    name_list,
)
from placewright.plan_batch import PlanBatch
from placewright.simulator import EvaluatePlans, judge_batch

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from placewright.workers import Workers

    Row = dict[str, Any]

DEVICES = 8
PLANS = {"lanes": 4_000, "events": 800}  # about half a second of one core each
EXCHANGES = 300
LIMIT_WORKERS = (8, 64, 512)
NETWORK_BYTES = 10e9 / 8  # bytes per second of a network of 10 Gb/s


def layered_problem(ops: int) -> pw.Problem:
    graph = pw.zoo.load(f"layered:ops={ops},seed=1,weights=no")
    return pw.Problem(graph, pw.Cluster.parse(f"{DEVICES}xA100-nvlink"))


def distinct_plans(problem: pw.Problem, kind: str) -> PlanBatch:
    """Contiguous blocks with 5 % of the ops moved, as local search produces them."""
    rng = np.random.default_rng(0)
    count, ops = PLANS[kind], len(problem.graph)
    blocks = np.tile((np.arange(ops) * DEVICES // ops).astype(np.int32), (count, 1))
    anywhere = rng.integers(0, DEVICES, size=(count, ops), dtype=np.int32)
    placement = np.where(rng.random((count, ops)) < 0.05, anywhere, blocks)
    priority = np.arange(ops) + rng.normal(size=(count, ops)) if kind == "events" else None
    return PlanBatch(placement, priority)


@dataclass(frozen=True, eq=False)
class Timed:
    """One run: seconds on the wall, and of this process's CPU."""

    seconds: float
    cpu_seconds: float


def timed(work: Any) -> Timed:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Timed(time.perf_counter() - wall, time.process_time() - cpu)


def measure_evaluations(workers: Workers, problem: pw.Problem, kind: str, repeats: int) -> Row:
    """Plans per second on workers and with one thread, in turn."""
    plans, task = distinct_plans(problem, kind), EvaluatePlans()
    expected = judge_batch(problem, plans).value
    for _ in range(2):  # the problem is sent, and the time of an item is known
        found = np.array([figures[0] for figures in workers.map(task, plans, problem)])
    assert np.array_equal(found, expected), "workers disagree with this process"
    alone, shared = [], []
    for _ in range(repeats):
        alone.append(timed(lambda: judge_batch(problem, plans)))
        shared.append(timed(lambda: workers.map(task, plans, problem)))
    ratios = [one.seconds / many.seconds for one, many in zip(alone, shared, strict=True)]
    return {
        "row": "evaluations",
        "plans": kind,
        "batch": len(plans),
        "one_thread_seconds": statistics.median(run.seconds for run in alone) / len(plans),
        "seconds": statistics.median(run.seconds for run in shared) / len(plans),
        "speedup": statistics.median(ratios),
        "speedups": [round(ratio, 3) for ratio in sorted(ratios)],
        "driver_seconds": statistics.median(run.cpu_seconds for run in shared) / len(plans),
        "plan_bytes": len(pickle.dumps(plans[:256], 5)) / 256,
    }


def measure_exchange(workers: Workers, problem: pw.Problem) -> Row:
    """The time of a request that does nothing, and of the first one with a new problem."""
    task, nothing = EvaluatePlans(), distinct_plans(problem, "lanes")[:0]
    for _ in range(20):
        workers.submit(task, nothing, problem).result()
    empty = [
        timed(lambda: workers.submit(task, nothing, problem).result()) for _ in range(EXCHANGES)
    ]
    fresh = [problem.with_arrays() for _ in range(10)]  # another object: encoded and sent again
    sent = [timed(lambda each=each: workers.submit(task, nothing, each).result()) for each in fresh]
    return {
        "row": "exchange",
        "exchange_seconds": statistics.median(run.seconds for run in empty),
        "driver_seconds": statistics.mean(run.cpu_seconds for run in empty),
        "problem_seconds": statistics.median(run.seconds for run in sent),
        "problem_bytes": len(pickle.dumps(problem, 5)),
    }


def print_tables(rows: Sequence[Row]) -> None:
    evaluations = [row for row in rows if row["row"] == "evaluations"]
    table = Table(
        *("plans", "ops", "workers", "µs per plan", "one thread", "speed-up", "runs"),
        *("driver µs per plan", "bytes per plan"),
        title="evaluations",
    )
    for row in evaluations:
        table.row(
            *(row["plans"], row["ops"], row["workers"], f"{1e6 * row['seconds']:.0f}"),
            f"{1e6 * row['one_thread_seconds']:.0f}",
            f"{row['speedup']:.2f}",
            f"{row['speedups'][0]:.2f} to {row['speedups'][-1]:.2f}",
            f"{1e6 * row['driver_seconds']:.1f}",
            f"{row['plan_bytes']:.0f}",
        )
    table = Table("workers", "exchange, ms", "driver, ms", "new problem, ms", "bytes of a problem")
    for row in rows:
        if row["row"] == "exchange":
            table.row(
                row["workers"],
                milliseconds(row["exchange_seconds"]),
                milliseconds(row["driver_seconds"]),
                milliseconds(row["problem_seconds"], 1),
                f"{row['problem_bytes']:,}",
            )
    print_limits(evaluations, [row for row in rows if row["row"] == "exchange"])


def print_limits(evaluations: Sequence[Row], exchanges: Sequence[Row]) -> None:
    """What more workers could do: the least of three rates (docs/scaling.md)."""
    table = Table(
        *("plans", "workers", "plans/s of workers", "of the driver", "of 10 Gb/s"),
        *("speed-up at most", "limited by", "problem to all, s"),
        title="limits",
    )
    problem_bytes = exchanges[0]["problem_bytes"] if exchanges else 0
    chosen = {row["workers"] for row in evaluations} & {"ray:2"} or {"processes:2"}
    kinds = {row["plans"]: row for row in evaluations if row["workers"] in chosen}
    for kind, row in kinds.items():
        for count in LIMIT_WORKERS:
            rates = {
                "workers": count / row["one_thread_seconds"],
                "driver": 1 / row["driver_seconds"],
                "network": NETWORK_BYTES / row["plan_bytes"],
            }
            limit = min(rates, key=lambda name: rates[name])
            table.row(
                *(kind, count, *(f"{rate:,.0f}" for rate in rates.values())),
                f"{rates[limit] * row['one_thread_seconds']:.0f}",
                limit,
                f"{count * problem_bytes / NETWORK_BYTES:.2f}",
            )


def key_of(row: Row) -> Hashable:
    return row["row"], row["workers"], row.get("plans"), row["ops"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--ops", type=int, default=5_000, help="ops of the problem")
    parser.add_argument(
        "--processes", type=int_list, default=[1, 2], help="numbers of local processes"
    )
    parser.add_argument(
        "--workers",
        type=name_list,
        default=["threads:2", "ray:1", "ray:2"],
        help="other workers, as in `placewright place --workers`",
    )
    parser.add_argument(
        "--repeats", type=int, default=9, help="runs of each figure; 0 prints what is in --out"
    )
    add_results(parser, "out/scaling-evaluations.jsonl")
    arguments = parser.parse_args(argv)
    results = ResultFile(arguments.out, key_of)
    specs = [f"processes:{count}" for count in arguments.processes] + arguments.workers
    problem = layered_problem(arguments.ops)
    for spec in specs if arguments.repeats else ():
        about = {"workers": spec, "ops": arguments.ops}
        missing = [
            kind for kind in PLANS if ("evaluations", spec, kind, arguments.ops) not in results
        ]
        needs_exchange = ("exchange", spec, None, arguments.ops) not in results
        if not missing and not needs_exchange:
            continue
        with pw.open_workers(spec) as workers:
            for kind in missing:
                row = measure_evaluations(workers, problem, kind, arguments.repeats)
                results.append({**row, **about})
            if needs_exchange:
                results.append({**measure_exchange(workers, problem), **about})
    print_tables(results.rows)


if __name__ == "__main__":
    main()
