"""What ColocRL learns from rewards alone with tens of millions of plans, on a GPU.

    python -m benchmarks.learning.at_scale prepare --graphs out/at-scale/graphs
    python -m benchmarks.learning.at_scale speed --graphs out/at-scale/graphs
    python -m benchmarks.learning.at_scale run --plans 50000000 --jobs 4 --slice-seconds 500
    python -m benchmarks.learning.at_scale report
    python -m benchmarks.learning.at_scale figures --folder out/figures

The sibling of `gate`, whose recipes and rows these are; updates are made on a GPU
(`training/gpu_updates.py`). `prepare` captures the networks into files, which take a minute each
and depend on PyTorch's version. `speed` prints plans per second and where the time goes. `run` ends
its processes after a slice of time: each run writes a checkpoint every 30 seconds and at the end of
its slice, and the next call goes on from there, as if it had never stopped. `never learns` samples
as the others do. `population annealing` moves the same groups in the same lanes with as many plans;
it begins with HEFT's plan, single devices and balanced splits. All best plans are judged by the
exact kernel. With `--device cpu` everything runs without a GPU, slowly.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_jobs,
    add_results,
    chosen,
    int_list,
    make_parser,
    name_list,
    read_rows,
    run_jobs,
    seed_range,
)
from benchmarks.learning.curves import draw_curves
from benchmarks.learning.gate import (
    ENTROPY_BONUS,
    GROUPS,
    HIDDEN,
    LEARNING,
    LEARNING_RATE,
    ROWS,
    arm_panels,
    gate_recipe,
    print_arms,
)
from benchmarks.learning.resumable_runs import result_row
from placewright import files
from placewright.policies.grouping import group_ops
from placewright.solvers import PopulationAnnealing
from placewright.training import Constant, Environment, Linear, Trainer
from placewright.training.checkpoints import read_checkpoint
from placewright.training.gpu_updates import GpuUpdateConfig
from placewright.training.run import TrainingRun

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from placewright.training import Recipe
    from placewright.training.gpu_updates import GpuUpdates

RESULTS = "benchmarks/results/raw/2026-11-at-scale.jsonl"
PLANS = 50_000_000
SEARCH, NULL = "population annealing", "never learns"
ARMS = (*LEARNING, NULL, SEARCH)
SAVE_INTERVAL, PRINT_INTERVAL = 30.0, 10.0
SPEED_SECONDS = 30.0  # at most, of all that `speed` measures
ARGMAX_PLANS = 64  # judged in a whole run
POINTS = 80  # of what a run learned, on a logarithmic scale
SETTLED_UPDATES = 16  # after which graphs are captured
NOT_KEY = ("device", "graphs", "checkpoints", "ends_at")


class SliceOver(Exception):
    """A run's slice of time is over before its plans are."""


@dataclass(frozen=True)
class ScaleRun:
    """One arm on one row.

    Args:
        batch: Plans of an update, or replicas.
        entropy_bonus: Its first value; it falls to 0.
        device: Where policy and lanes are.
        graphs, checkpoints: Folders of captured networks, and of the checkpoints of all runs.
        ends_at: When the slice is over, by `time.time`.
    """

    network: str
    cluster: str
    arm: str
    batch: int
    seed: int
    plans: int
    hidden: int = HIDDEN
    groups: int = GROUPS
    precision: str = "float32"
    learning_rate: float = LEARNING_RATE
    entropy_bonus: float = ENTROPY_BONUS
    device: str = "cuda"
    graphs: str = ""
    checkpoints: str = "out/at-scale"
    ends_at: float = float("inf")

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(asdict(self))

    @property
    def name(self) -> str:
        return f"{self.network}, {self.arm}, {self.batch:,}, seed {self.seed}"

    def problem(self) -> pw.Problem:
        """The row's problem, from a file if `prepare` wrote one."""
        path = graph_file(Path(self.graphs), self.network)
        graph = files.load(path, "graph") if path.exists() else pw.zoo.load(self.network)
        return pw.Problem(graph, pw.Cluster.parse(self.cluster))

    def recipe(self) -> Recipe:
        """The gate's recipe, with few argmax plans."""
        recipe = gate_recipe(self.arm, self.batch, self.groups, self.hidden)
        return replace(
            recipe,
            learning_rate=Constant(self.learning_rate),
            entropy_bonus=Linear(self.entropy_bonus, 0.0),
            greedy_every=max(1, self.plans // self.batch // ARGMAX_PLANS),
        )

    def trainer(self, problem: pw.Problem) -> Trainer:
        return Trainer(
            [Environment(problem)],
            self.recipe(),
            self.seed,
            self.plans,
            device=self.device,
            gpu_updates=GpuUpdateConfig(precision=self.precision),
        )

    def __call__(self) -> dict[str, Any]:
        if time.time() >= self.ends_at:
            raise SliceOver("not begun in this slice")
        began = time.perf_counter()
        own = {name: value for name, value in asdict(self).items() if name not in NOT_KEY}
        problem = self.problem()
        self.say(f"problem of {len(problem.graph)} ops", began)
        found = self.search(problem) if self.arm == SEARCH else self.train(problem, began)
        return {**own, **found}

    def say(self, words: str, began: float) -> None:
        """Print a line of progress."""
        print(f"[{self.name}] {time.perf_counter() - began:6.1f} s: {words}", flush=True)

    def search(self, problem: pw.Problem) -> dict[str, Any]:
        grouping = partial(group_ops, rule="colocation", count=self.groups)
        method = PopulationAnnealing(grouping, replicas=self.batch, device=self.device)
        began = time.perf_counter()
        self.say("search begins; it is not resumed", began)
        stop = pw.MaxEvaluations(self.plans)
        result = pw.solve(problem, method, stop=stop, seed=self.seed)
        seconds = time.perf_counter() - began
        return {
            "best": result.objective_value,
            "over": int(result.overflow),
            "judged": result.evaluations,
            "curve": [[count, best] for count, _, best in result.history],
            "learned": [],
            "rate": result.evaluations / seconds,
            "seconds": seconds,
        }

    def train(self, problem: pw.Problem, began: float) -> dict[str, Any]:
        trainer = self.trainer(problem)
        updates = trainer.gpu_updates
        assert updates is not None
        environment = trainer.environments[0]
        folder = Path(self.checkpoints) / "-".join(str(part) for part in self.key).replace(" ", "-")
        clock: dict[str, float] = {"seconds": 0.0, "settled_plans": 0, "settled_seconds": 0.0}
        run = TrainingRun(trainer, folder, clock, SAVE_INTERVAL)
        if run.path.exists():
            run.resume()
            clock.update(read_checkpoint(run.path)[0]["metadata"])
            self.say(f"goes on from {trainer.evaluations:,} plans", began)
        earlier, settled = dict(clock), (0, 0, 0.0)
        first_update, printed = trainer.updates, 0.0

        def on_update(trainer: Trainer) -> None:
            nonlocal settled, printed
            now = time.perf_counter()
            clock["seconds"] = earlier["seconds"] + now - began
            if not settled[0] and trainer.updates - first_update >= SETTLED_UPDATES:
                settled = trainer.updates, trainer.evaluations, now
                for note in updates.notes:
                    self.say(f"SLOWER: {note}", began)
            elif settled[0]:
                clock["settled_plans"] = earlier["settled_plans"] + trainer.evaluations - settled[1]
                clock["settled_seconds"] = earlier["settled_seconds"] + now - settled[2]
            if now - printed >= PRINT_INTERVAL:
                printed = now
                self.say(describe(trainer, clock, updates), began)

        seconds = self.ends_at - time.time()
        is_done = run.train(on_update, max_seconds=seconds)
        self.say(describe(trainer, clock, updates), began)
        if not is_done:
            raise SliceOver(f"{trainer.evaluations:,} of {self.plans:,} plans; call again to go on")
        return {
            **result_row(trainer),
            "learned": learned_points(trainer),
            "rate": environment.evaluations / clock["seconds"],
            "settled_rate": clock["settled_plans"] / max(clock["settled_seconds"], 1e-9),
            "seconds": clock["seconds"],
            "lane_error": updates.max_lane_error,
            "open": float(np.mean([row.stats["open"] for row in trainer.log])),
            "open_unfit": statistics.fmean(
                [row.stats["open/unfit"] for row in trainer.log if "open/unfit" in row.stats]
                or [0.0]
            ),
            "notes": updates.notes,
        }


def describe(trainer: Trainer, clock: dict[str, float], updates: GpuUpdates) -> str:
    """Where a run is."""
    if not trainer.log:
        return "no update yet"
    last = trainer.log[-1]
    rate = clock["settled_plans"] / max(clock["settled_seconds"], 1e-9)
    return (
        f"{trainer.evaluations:,} plans, {rate:,.0f} plans/s, best {last.best:.4f}, mean "
        f"{last.mean:.4f}, entropy {last.entropy:.1%}, gradient {last.gradient:.2g}, do not fit "
        f"{last.infeasible:.1%}, open {last.stats['open']:.1%} ({updates.open_unfit_plans} of "
        f"{updates.open_plans} do not), largest lane error {updates.max_lane_error:.1g}"
    )


def learned_points(trainer: Trainer) -> list[list[float]]:
    """(plans, mean, argmax so far, entropy, do not fit) at marks on a logarithmic scale."""
    rows, argmax = [], float("nan")
    for row in trainer.log:
        argmax = row.greedy if row.greedy == row.greedy else argmax
        rows.append([row.plans, row.mean, argmax, row.entropy, row.infeasible])
    marks = np.geomspace(rows[0][0], rows[-1][0], POINTS)
    chosen_rows = np.searchsorted([row[0] for row in rows], marks * (1 - 1e-9))
    return [rows[index] for index in dict.fromkeys(chosen_rows.clip(max=len(rows) - 1).tolist())]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a run from others, given its line."""
    names = (name for name in ScaleRun.__dataclass_fields__ if name not in NOT_KEY)
    return tuple(row[name] for name in names)


def graph_file(folder: Path, network: str) -> Path:
    """Where `prepare` puts a network."""
    return folder / f"{network}.json"


def prepare(arguments: argparse.Namespace) -> None:
    """Capture the networks of the rows into files."""
    arguments.graphs.mkdir(parents=True, exist_ok=True)
    for network in arguments.rows:
        path = graph_file(arguments.graphs, network)
        graph = pw.zoo.load(network)
        files.save(graph, path)
        print(f"{path}: {len(graph)} ops, {path.stat().st_size:,} bytes")


def needed_runs(arguments: argparse.Namespace, seconds: float) -> list[ScaleRun]:
    """All runs, arm by arm and seed by seed."""
    runs = []
    for arm, seed, network, batch in product(
        arguments.arms, arguments.seeds, arguments.rows, arguments.batches
    ):
        runs.append(
            ScaleRun(
                network,
                ROWS[network],
                arm,
                batch,
                seed,
                arguments.plans,
                arguments.hidden,
                arguments.groups,
                arguments.precision,
                arguments.learning_rate,
                arguments.entropy_bonus,
                arguments.device,
                str(arguments.graphs),
                str(arguments.checkpoints),
                time.time() + seconds,
            )
        )
    return runs


def run(arguments: argparse.Namespace) -> None:
    def describe_row(row: dict[str, Any]) -> str:
        names = ", ".join(str(row[name]) for name in ("network", "arm", "batch", "seed"))
        return f"{names}: {row['best']:.4f}, {row['rate']:,.0f} plans/s"

    runs = needed_runs(arguments, arguments.slice_seconds)
    results = ResultFile(arguments.out, key_of)
    run_jobs(runs, results, arguments.jobs, describe_row, skipped=(SliceOver,))


def speed(arguments: argparse.Namespace) -> None:
    """Plans per second by size of updates, and the milliseconds of their parts."""
    ends_at = time.perf_counter() + min(arguments.slice_seconds, SPEED_SECONDS)
    runs = needed_runs(arguments, arguments.slice_seconds)
    runs = [each for each in runs if each.arm in LEARNING and each.seed == arguments.seeds[0]]
    problems = {each.network: each.problem() for each in runs}
    print(f"{arguments.device}, hidden {arguments.hidden}, {arguments.groups} groups\n")
    columns = ["row", "plans an update", "precision", "plans per s", "sampling ms", "lanes ms"]
    table = Table(*columns, "learning ms", "sampling", "lanes", "learning", "GiB", "notes")
    kinds = {
        (each.network, each.batch, precision): replace(each, precision=precision)
        for each in runs
        for precision in arguments.precisions
    }
    for index, each in enumerate(kinds.values()):
        share = (ends_at - time.perf_counter()) / (len(kinds) - index)
        names = [each.network, f"{each.batch:,}", each.precision]
        if arguments.device != "cpu":  # what earlier updates captured
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            rate, parts, notes = measure_speed(each, problems[each.network], share)
        except RuntimeError as error:  # such as too little memory: the others are still measured
            blank = ["–"] * (len(table.columns) - len(names) - 1)
            table.row(*names, *blank, " ".join(str(error).split())[:500])
            continue
        cells = [f"{rate:,.0f}", *(f"{1e3 * part:.2f}" for part in parts)]
        cells += [f"{part / sum(parts):.0%}" for part in parts]
        gibibytes = torch.cuda.max_memory_allocated() / 2**30 if arguments.device != "cpu" else 0.0
        table.row(*names, *cells, f"{gibibytes:.1f}", "; ".join(notes) or "–")


def measure_speed(
    each: ScaleRun, problem: pw.Problem, seconds: float
) -> tuple[float, list[float], list[str]]:
    """Plans per second, the seconds of sampling, lanes and learning of an update, and notes."""
    began = time.perf_counter()
    trainer = each.trainer(problem)
    updates = trainer.gpu_updates
    assert updates is not None
    while trainer.updates < SETTLED_UPDATES // 2 and time.perf_counter() - began < seconds / 2:
        trainer.update()
    parts = [
        seconds_of(partial(updates.sample, 0), each.device),
        seconds_of(updates.judge, each.device),
        seconds_of(partial(updates.learn, 0.0), each.device),
    ]
    first, started = trainer.evaluations, time.perf_counter()
    while True:  # at least once: several updates, and the exact judgement of their best plans
        trainer.update()
        if time.perf_counter() - began >= seconds or trainer.finished:
            break
    rate = (trainer.evaluations - first) / (time.perf_counter() - started)
    return rate, parts, updates.notes


def seconds_of(function: Callable[[], None], device: str, repeats: int = 3) -> float:
    """The median time of a call, all of it done."""
    found = []
    for _ in range(repeats):
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        function()
        if device != "cpu":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def report(arguments: argparse.Namespace) -> None:
    """The best plan after so many plans, medians over seeds, and what the policy itself does."""
    rows = [row for row in read_rows(arguments.out) if row["plans"] == arguments.plans]
    marks = [10**power for power in range(4, 10) if 10**power < arguments.plans]
    print_arms(rows, ARMS, [*marks, arguments.plans], "plans per s", ROWS)
    table = Table("run", "plans", "seconds", "plans/s", "without start-up", "lane error", "notes")
    for row in rows:
        name = f"{row['network']}, {row['arm']}, {row['batch']:,}, seed {row['seed']}"
        cells = name, f"{row['judged']:,}", f"{row['seconds']:.0f}", f"{row['rate']:,.0f}"
        settled = f"{row['settled_rate']:,.0f}" if "settled_rate" in row else "–"
        error = f"{row['lane_error']:.1g}" if "lane_error" in row else "–"
        table.row(*cells, settled, error, "; ".join(row.get("notes", [])) or "–")


def figures(arguments: argparse.Namespace) -> None:
    rows = [row for row in read_rows(arguments.out) if row["plans"] == arguments.plans]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "at-scale.svg"
    title = "ColocRL on a GPU: best step time so far, in seconds; median of seeds"
    path.write_text(draw_curves(title, arm_panels(rows, ARMS), arguments.plans, first=10_000))
    print(path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    actions = {each.__name__: each for each in (prepare, speed, run, report, figures)}
    option = parser.add_argument
    option("action", choices=actions, help="what to do")
    option("--rows", type=name_list, default=[*ROWS], help="networks to run")
    option("--arms", type=name_list, default=[*ARMS], help="arms to run")
    option("--seeds", type=seed_range, default=range(2), help="first:last + 1")
    option("--batches", type=int_list, default=[16_384], help="plans of an update")
    option("--plans", type=int, default=PLANS, help="plans that each run judges")
    option("--groups", type=int, default=GROUPS, help="groups at most")
    option("--hidden", type=int, default=HIDDEN, help="size of the policy's hidden states")
    option("--precision", default="float32", help="of products in `run`: float32 or tf32")
    option("--precisions", type=name_list, default=["float32", "tf32"], help="those of `speed`")
    option("--learning-rate", type=float, default=LEARNING_RATE, help="the learning rate")
    option("--entropy-bonus", type=float, default=ENTROPY_BONUS, help="it falls to 0")
    option("--device", default="cuda", help="cuda, cuda:1, ... or cpu")
    option("--slice-seconds", type=float, default=1500.0, help="after which processes end")
    option("--graphs", type=Path, default=Path("out/at-scale/graphs"), help="of `prepare`")
    option("--checkpoints", type=Path, default=Path("out/at-scale"), help="folder of checkpoints")
    option("--folder", type=Path, default=Path("benchmarks/results/figures"), help="of figures")
    add_results(parser, RESULTS)
    add_jobs(parser, 1)
    arguments = parser.parse_args(argv)
    chosen(parser, arguments.rows, ROWS)
    chosen(parser, arguments.arms, ARMS)
    actions[arguments.action](arguments)


if __name__ == "__main__":
    main()
