"""What learning adds: four systems, each with parts of its learning left out, on papers' rows.

    python -m benchmarks.learning.arms run --jobs 2
    python -m benchmarks.learning.arms report
    python -m benchmarks.learning.arms figures --folder out/figures

`run` adds to a file what is not in it yet, seed by seed. Arms (`training/recipes/arms.py`): `never
learns` leaves the update out; `rewards only` imitates nothing; `imitation only` has no gradient of
rewards; `taught then frozen` learns first and then only samples; `clipped apart` clips the
gradients of rewards and of imitation one by one. ColocRL has the control `noise around one device`.
Each arm of a row judges the same number of plans, a teacher's among them, and starts from the same
weights with the same seed. GO's teacher is `auto` with half of the plans; the others imitate their
own best plan.

`report` prints the median over seeds and their range, in simulated seconds (`ready`, as
TensorFlow's executor runs); a plan that does not fit counts as twice its step time. Then it
compares arms seed by seed: the geometric mean of the ratios, its 95 % interval (bootstrap over
networks, rows and seeds), and how many pairs are better; none of the intervals is corrected for the
number of them. The argmax plan shows what a policy does without noise. `figures` draws a picture of
curves for each system. The papers' figures were measured on their own machines.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    ResultFile,
    Table,
    add_jobs,
    add_results,
    chosen,
    make_parser,
    name_list,
    read_rows,
    run_jobs,
    seed_range,
)
from benchmarks.learning.arm_runs import BESIDE, UNSEEDED, Run, key_of
from benchmarks.learning.curves import Curve, draw_curves
from benchmarks.learning.rows import ONE_DEVICE, PLANS, SEEDS, SYSTEMS
from benchmarks.proposers.compare import UNFIT_FACTOR, interval

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    Rows = list[dict[str, Any]]

RESULTS = "benchmarks/results/raw/2026-11-18-arms.jsonl"
MIN_SEEDS = 3
"""Seeds of every row without which nothing is decided."""
PAIRS = (
    ("as shipped", "never learns"),
    ("rewards only", "never learns"),
    ("imitation only", "never learns"),
    ("taught then frozen", "as shipped"),
    ("rewards only", "as shipped"),
    ("imitation only", "as shipped"),
    ("clipped apart", "as shipped"),
    ("as shipped", "local search"),
    ("never learns", "local search"),
    ("as shipped", "auto"),
    ("rewards only", ONE_DEVICE),
    ("as shipped", ONE_DEVICE),
)
"""Arms and methods that are compared seed by seed: one over the other."""


def needed_runs(systems: Sequence[str], seeds: range, plans: int) -> list[Run]:
    """All runs, seed by seed, so that a table fills evenly."""
    fixed = [
        Run(system, row.name, method, 0, 0)
        for system in systems
        for row in SYSTEMS[system].rows
        for method in UNSEEDED
    ]
    return fixed + [
        Run(system, row.name, arm, seed, plans)
        for seed in seeds
        for system in systems
        for row in SYSTEMS[system].rows
        for arm in (
            *(name for name in BESIDE if name not in UNSEEDED),
            *SYSTEMS[system].arms,
            *SYSTEMS[system].controls,
        )
    ]


def run(arguments: argparse.Namespace) -> None:
    needed = needed_runs(arguments.systems, arguments.seeds, arguments.plans)
    run_jobs(needed, ResultFile(arguments.out, key_of), arguments.jobs, describe)


def describe(row: dict[str, Any]) -> str:
    names = ", ".join(str(row[name]) for name in ("system", "row", "arm", "seed"))
    return f"{names}: {row['best']:.4f} in {row['cpu_seconds']:.0f} CPU s"


def value(row: dict[str, Any]) -> float:
    """The step time of a run's best plan; twice that of one that does not fit."""
    return row["best"] * (UNFIT_FACTOR if row["over"] else 1.0)


class Results:
    """The runs of a file, by system, row and arm.

    Args:
        plans: Only runs with this many plans.
    """

    def __init__(self, rows: Rows, plans: int) -> None:
        self.runs: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        for row in rows:
            if row["plans"] == plans or row["arm"] in UNSEEDED:
                self.runs[row["system"], row["row"], row["arm"]][row["seed"]] = row

    def values(self, system: str, row: str, arm: str) -> list[float]:
        """Of each seed."""
        return [value(each) for each in self.runs[system, row, arm].values()]

    def logs(self, systems: Sequence[str], arm: str, other: str) -> dict[str, list[float]]:
        """For each row the logarithms of an arm's step times over another's, seed by seed."""
        logs = {}
        for system in systems:
            for row in SYSTEMS[system].rows:
                mine, theirs = (self.runs[system, row.name, name] for name in (arm, other))
                seeds = sorted(mine.keys() & theirs.keys())
                if seeds:
                    key = f"{row.network}@{system}"
                    logs[key] = [math.log(value(mine[s]) / value(theirs[s])) for s in seeds]
        return logs


def shown(values: list[float]) -> str:
    """The median and the range."""
    if not values:
        return "–"
    if max(values) - min(values) < 5e-5:
        return f"{values[0]:.4f}"
    return f"{statistics.median(values):.4f} ({min(values):.4f}–{max(values):.4f})"


def report(arguments: argparse.Namespace) -> None:
    results = Results(read_rows(arguments.out), arguments.plans)
    print_table(results, arguments.systems)
    table = Table("ratio", *(SYSTEMS[name].title for name in arguments.systems), title="Pairs")
    for arm, other in PAIRS:
        cells = [ratio(results.logs([name], arm, other)) for name in arguments.systems]
        table.row(f"{arm} / {other}", *cells)
    print_likeliest(results, arguments.systems)
    print()
    for system in arguments.systems:
        print(f"- {SYSTEMS[system].title}: {verdict(results, system)}")


def print_table(results: Results, systems: Sequence[str]) -> None:
    """Rows of all systems, their arms, what stands beside them, and the papers' figures."""
    arms = list(dict.fromkeys(arm for name in systems for arm in SYSTEMS[name].arms))
    arms += dict.fromkeys(arm for name in systems for arm in SYSTEMS[name].controls)
    columns = ["system", "row", *arms, *BESIDE, "gap", "as shipped / best of expert and single"]
    table = Table(*columns, "paper: other, own", "own / other")
    for system in systems:
        for row in SYSTEMS[system].rows:
            cells = {name: results.values(system, row.name, name) for name in (*arms, *BESIDE)}
            shipped = statistics.median(cells["as shipped"]) if cells["as shipped"] else math.nan
            simple = min([*cells["expert"], *cells["single device"]], default=math.nan)
            table.row(
                SYSTEMS[system].title,
                f"{row.name}, {row.cluster}",
                *(shown(cells[name]) for name in (*arms, *BESIDE)),
                _figure(shipped / min(cells["bound"], default=math.nan) - 1, ".0%"),
                _figure(shipped / simple, ".3f"),
                f"{row.other:g}, {row.own:g} {row.tag}",
                f"{row.own / row.other:.3f}",
            )


def _figure(number: float, style: str) -> str:
    return "–" if math.isnan(number) else format(number, style)


def likeliest(results: Results, system: str, row: str, arm: str) -> list[float]:
    """Of each seed the argmax plan at the end over the best single device."""
    single = results.values(system, row, "single device")
    runs = results.runs[system, row, arm].values()
    ends = [each["greedy"] for each in runs if each.get("greedy") is not None]
    return [end / single[0] for end in ends] if single else []


def print_likeliest(results: Results, systems: Sequence[str]) -> None:
    """What the policies themselves would do at the end, without noise and search."""
    arms = list(dict.fromkeys(arm for name in systems for arm in SYSTEMS[name].arms))
    table = Table("system", "row", *arms, title="Argmax plan at the end / best single device")
    for system in systems:
        for row in SYSTEMS[system].rows:
            ends = [likeliest(results, system, row.name, arm) for arm in arms]
            cells = [f"{statistics.median(each):.3f}" if each else "–" for each in ends]
            table.row(SYSTEMS[system].title, row.name, *cells)


def ratio(logs: dict[str, list[float]]) -> str:
    """The geometric mean, how many pairs are better by more than 0.1 %, and the interval.

    There is no interval of fewer than two rows or two seeds: it would leave out their chance.
    """
    if not logs:
        return "–"
    pairs = [each for row in logs.values() for each in row]
    better = f"{sum(each < -0.001 for each in pairs)} of {len(pairs)}"
    if len(logs) < 2 or min(len(row) for row in logs.values()) < 2:
        mean = statistics.mean(statistics.mean(row) for row in logs.values())
        return f"{math.exp(mean):.3f}, {better}"
    mean, low, high = interval(logs)
    return f"{mean:.3f} ({low:.3f}–{high:.3f}), {better}"


def verdict(results: Results, system: str) -> str:
    """Whether its plans are learned, or found by search: a rule that was written before the run.

    Learned from rewards: the interval of `rewards only` over `never learns` is below 1. Learned:
    that of `as shipped` is. It beats search only if its interval over local search is below 1.
    Without all rows and `MIN_SEEDS` seeds nothing is decided. The argmax plans say whether the
    policy itself is good, or the noise around it.
    """
    parts, rows = [], SYSTEMS[system].rows
    for title, arm, other in (
        ("learned from rewards", "rewards only", "never learns"),
        ("learned", "as shipped", "never learns"),
        ("better than local search", "as shipped", "local search"),
    ):
        logs = results.logs([system], arm, other)
        if len(logs) < len(rows) or min(len(row) for row in logs.values()) < MIN_SEEDS:
            count = sum(len(row) for row in logs.values())
            return f"not decided, {count} of {len(rows) * MIN_SEEDS} pairs of runs are there"
        parts.append(f"{'' if interval(logs)[2] < 1 else 'not '}{title} ({ratio(logs)} pairs)")
    for arm in ("rewards only", "as shipped"):
        ends = [end for row in rows for end in likeliest(results, system, row.name, arm)]
        parts.append(f"argmax plan of `{arm}` / best single device {statistics.median(ends):.3f}")
    return "; ".join(parts)


def figures(arguments: argparse.Namespace) -> None:
    rows = [row for row in read_rows(arguments.out) if row["plans"] == arguments.plans]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for system in arguments.systems:
        own = SYSTEMS[system]
        panels = {}
        for row in own.rows:
            mine = [each for each in rows if (each["system"], each["row"]) == (system, row.name)]
            panels[f"{row.name} on {row.cluster}"] = [
                Curve(arm, [each["curve"] for each in mine if each["arm"] == arm])
                for arm in (*own.arms, *own.controls, "local search", "auto")
            ]
        path = arguments.folder / f"arms-{system}.svg"
        title = f"{own.title}: best step time so far, in seconds; median of seeds"
        path.write_text(draw_curves(title, panels, arguments.plans))
        print(path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    actions = {"run": run, "report": report, "figures": figures}
    parser.add_argument("action", choices=actions, help="what to do")
    parser.add_argument("--systems", type=name_list, default=[*SYSTEMS], help="systems")
    parser.add_argument("--seeds", type=seed_range, default=SEEDS, help="first:last + 1")
    parser.add_argument("--plans", type=int, default=PLANS, help="plans that each run judges")
    parser.add_argument(
        "--folder", type=Path, default=Path("benchmarks/results/figures"), help="of the figures"
    )
    add_results(parser, RESULTS)
    add_jobs(parser, 1)
    arguments = parser.parse_args(argv)
    chosen(parser, arguments.systems, SYSTEMS)
    actions[arguments.action](arguments)


if __name__ == "__main__":
    main()
