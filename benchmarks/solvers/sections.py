"""The sections of `auto_quality`: each prints its table and counts the rows that miss."""

from __future__ import annotations

import json
import multiprocessing
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

import placewright as pw
from benchmarks.common import Table, milliseconds
from benchmarks.solvers.random_problems import random_problem
from placewright.scheduling.list_scheduler import ListSchedule
from placewright.solvers import (
    HEFT,
    METF,
    METHODS,
    MSCT,
    ON_REQUEST,
    SEARCHES,
    Auto,
    CPoP,
    Exact,
    MaxEvaluations,
    MaxTime,
    SingleDevices,
    bound,
    solve,
)

if TYPE_CHECKING:
    from pathlib import Path

# The best figure that any public planner reached on a workload, in milliseconds: an integer program
# on HiGHS (300 s), contiguous dynamic programming, local search, Scotch, PipeDream or the expert.
PEERS = {
    "layer_bert24_inference": 17.7147,
    "layer_bert24_training": 39.7895,
    "layer_gnmt_inference": 31.6873,
    "layer_resnet50_inference": 33.4332,
    "layer_resnet50_training": 76.8994,
    "layer_inceptionv3_inference": 51.6049,
    "op_bert_l-3_inference": 21.9084,
    "op_bert_l-3_training": 54.2074,
    "op_bert_l-12_inference": 130.0381,
    "op_resnet50_inference": 124.3488,
}
ZOO = (  # on the clusters of the papers, whose runtime takes whatever is ready
    ("rnnlm-2", "2xK80+cpu"),
    ("rnnlm-4", "4xK80+cpu"),
    ("nmt-2", "2xK80+cpu"),
    ("nmt-4", "4xK80+cpu"),
    ("nmt-8", "8xP100+cpu"),
    ("inception-v3", "2xK80+cpu"),
    ("resnet-50", "4xP100+cpu"),
    ("resnet-152", "4xP100+cpu"),
    ("nasnet-a", "4xP100+cpu"),
    ("transformer-xl-2", "2xP100+cpu"),
    ("wavenet-2x18", "2xP100+cpu"),
    ("bert-base", "4xP100+cpu"),
    ("gpt2", "2xP100+cpu"),
    ("t5", "2xP100+cpu"),
    ("unet", "2xP100+cpu"),
    ("cifar10", "2xK80+cpu"),
    ("ptb", "2xK80+cpu"),
    ("nmt", "2xK80+cpu"),
)


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    data: Path | None
    seconds: float
    seeds: range
    workers: int


def random(settings: Settings) -> int:
    """200 random problems of up to 25 ops on up to 3 devices: the optimum by CP-SAT (60 s, two
    workers), `auto` in 10 s, `auto` without CP-SAT after two million plans, and the bound."""
    with multiprocessing.get_context("spawn").Pool(settings.workers) as pool:
        rows = pool.map(_random_row, settings.seeds, chunksize=1)
    proven = [row for row in rows if row["proven"]]
    for column in ("auto", "annealing"):
        above = np.array([row[column] / row["exact"] - 1 for row in proven])
        equal = int((above <= 1e-6).sum())
        print(
            f"{column}: equal to the optimum on {equal} of {len(proven)} proven "
            f"({equal / max(1, len(proven)):.1%}), at most {above.max(initial=0):.2%} above"
        )
    over = [row["seed"] for row in proven if row["bound"] > row["exact"] * (1 + 1e-9)]
    beaten = [row["seed"] for row in rows if row["auto"] < row["exact"] * (1 - 1e-6)]
    print(f"not proven within 60 s: {[row['seed'] for row in rows if not row['proven']]}")
    print(f"auto below what CP-SAT found: {beaten}; bounds above an optimum: {over}")
    gaps = np.array([row["exact"] / row["bound"] - 1 for row in proven])
    print(f"optimum above the bound: median {np.median(gaps):.1%}, most {gaps.max(initial=0):.1%}")
    above = [row["auto"] / row["exact"] - 1 for row in proven]
    short = sum(value > 1e-6 for value in above)
    return len(over) + (short > 0.05 * len(proven)) + sum(value > 0.02 for value in above)


def _random_row(seed: int) -> dict[str, float]:
    problem = random_problem(seed)
    exact = solve(problem, Exact(workers=2), MaxTime(60))
    auto = solve(problem, Auto(), MaxTime(10), cautious=False)
    annealing = solve(problem, Auto(exact=False), MaxEvaluations(2_000_000), cautious=False)
    row = {
        "seed": seed,
        "ops": len(problem.graph),
        "exact": exact.objective_value,
        "proven": exact.gap < 1e-6,
        "auto": auto.objective_value,
        "annealing": annealing.objective_value,
        "bound": bound(problem).seconds,
        "seconds": exact.seconds,
    }
    print(json.dumps(row), flush=True)
    return row


def period(settings: Settings) -> int:
    """The public throughput workloads: period in milliseconds, against the best public planner."""
    if settings.data is None:
        print("skipped: no --data")
        return 0
    missed = 0
    table = Table(
        *("workload", "single", "best public", "auto", "bound", "fits", "seconds"),
        *("auto by", "bound by", "target met"),
    )
    for path in sorted((settings.data / "dnn-partitioning" / "throughput").glob("*.json")):
        problem = replace(pw.from_workload(path), objective="period")
        single = solve(problem, SingleDevices())
        result = solve(problem, Auto(), MaxTime(settings.seconds), cautious=False)
        proven = bound(problem, effort="thorough")
        peer = PEERS.get(path.stem, float("nan"))
        good = result.fits and not result.objective_value * 1e3 > peer + 1e-4
        missed += not good
        best = max(proven.seconds, result.bound)
        table.row(
            path.stem,
            _single(single),
            f"{peer:.4f}",
            milliseconds(result.objective_value, 4),
            milliseconds(best, 4),
            "yes" if result.fits else "no",
            f"{result.seconds:.1f}",
            result.found_by,
            proven.name,
            _word(good),
        )
    return missed


def unseen(settings: Settings) -> int:
    """Workloads of the same kind that no setting was chosen on: the PipeDream profiles, trained on
    6xV100+cpu, period in milliseconds. `auto` in 10 s against our own constructive methods, and
    local search in 10 s."""
    if settings.data is None:
        print("skipped: no --data")
        return 0
    missed = 0
    table = Table("profile", "ops", "single", "best other", "auto", "bound", "target met")
    for path in sorted((settings.data / "pipedream").glob("*.graph.txt")):
        cluster = pw.Cluster.parse("6xV100+cpu")
        problem = replace(pw.from_workload(path, cluster=cluster), objective="period")
        single = solve(problem, SingleDevices())
        methods = (
            "cuts",
            "ideals",
            "balanced",
            "scotch",
            "metis",
            "kahip",
            "m-etf",
            "local-search",
        )
        others = [
            solve(
                problem,
                METHODS[each](),
                MaxTime(10 if each in SEARCHES else 60),
                cautious=False,
            )
            for each in methods
        ]
        best = min(others, key=lambda result: result.key)
        auto = solve(problem, Auto(), MaxTime(10), cautious=False)
        proven = max(auto.bound, bound(problem, effort="thorough").seconds)
        good = auto.key <= best.key
        missed += not good
        table.row(
            path.name.split(".")[0],
            len(problem.graph),
            _single(single),
            f"{best.solver} {_ms(best)}",
            _ms(auto),
            milliseconds(proven),
            _word(good),
        )
    return missed


def step(settings: Settings) -> int:
    """Four equal devices, one outgoing channel each (7.6 GB/s + 25 µs), no memory limit: step time
    in milliseconds. List schedulers place as if links were never busy: `uncontended` is what they
    promise, `simulated` what it is with links that serve one transfer at a time."""
    if settings.data is None:
        print("skipped: no --data")
        return 0
    missed = 0
    table = Table("problem", "ops", "method", "uncontended", "simulated", "bound", "target met")
    for name, problem in _serialised(settings.data):
        single = solve(problem, SingleDevices())
        ops = len(problem.graph)
        table.row(name, ops, "one device", None, _ms(single), None, None)
        auto = solve(problem, Auto(), MaxTime(settings.seconds), cautious=False)
        worst = [single.objective_value]
        for solver in (METF(contended=False), MSCT(contended=False), HEFT(), CPoP()):
            result = solve(problem, solver)
            worst.append(result.objective_value)
            promised = f"{_uncontended(problem, result.plan):.3f}"
            table.row(name, ops, solver.name, promised, _ms(result), None, None)
        good = auto.objective_value <= min(worst) * (1 + 1e-12)
        missed += not good
        promised = f"{_uncontended(problem, auto.plan):.3f}"
        lower = f"{milliseconds(auto.bound)} ({auto.bound_name})"
        table.row(name, ops, "auto", promised, _ms(auto), lower, _word(good))
    return missed


def _serialised(data: Path) -> list[tuple[str, pw.Problem]]:
    names = [f"gpu{at}" for at in range(4)]
    cluster = pw.Cluster(
        "four with one outgoing channel each",
        tuple(pw.Device(name, model="V100", memory=2**60) for name in names),
        {
            (source, target): pw.Link(7.6e9, 25e-6, f"out of {source}")
            for source in names
            for target in names
            if source != target
        },
    )
    problems = []
    for stem in ("op_bert_l-3_inference", "op_bert_l-12_inference", "layer_inceptionv3_inference"):
        path = data / "dnn-partitioning" / "throughput" / f"{stem}.json"
        problems.append((stem, _with_bytes(path, pw.from_workload(path, cluster=cluster))))
    for stem in ("inception_v3", "vgg16", "gnmt", "resnet50"):
        path = data / "pipedream" / f"{stem}.graph.txt"
        problems.append((f"{stem} training", pw.from_workload(path, cluster=cluster)))
    return problems


def _with_bytes(path: Path, problem: pw.Problem) -> pw.Problem:
    """The file's tensor sizes in place of its transfer times, which are for another link."""
    sizes = {
        str(edge["sourceId"]): int(edge["size"]) for edge in json.loads(path.read_text())["edges"]
    }
    ops = tuple(replace(op, outputs=(sizes.get(op.name, 0),)) for op in problem.graph.ops)
    costs = replace(problem.costs, transfers=None)
    return replace(problem, graph=replace(problem.graph, ops=ops), costs=costs, overlap=True)


def _uncontended(problem: pw.Problem, plan: pw.Plan) -> float:
    """Milliseconds of a plan if transfers never waited for a channel."""
    listing = ListSchedule(problem, contended=False)
    order = np.arange(len(plan)) if plan.priority is None else plan.priority
    for op in pw.simulator.reference.plan_order(problem.arrays, order.tolist()):
        listing.add(op, int(plan.placement[op]))
    return listing.step_time * 1e3


def offload(settings: Settings) -> int:
    """16 transformer blocks, 5.5 GiB of weights, on a GPU that may hold half: step time in
    milliseconds against the best of the hand-written plans, at three sizes of the input."""
    missed = 0
    table = Table("tokens", "accelerate", "by hand", "auto", "bound", "plan", "target met")
    for tokens in (1, 512, 4096):
        problem, by_hand = _offload(tokens)
        best = min(by_hand.values())
        result = solve(problem, Auto(), MaxTime(settings.seconds), cautious=False)
        default = solve(problem, METHODS["accelerate"]())
        good = result.fits and result.objective_value <= best * (1 + 1e-9)
        missed += not good
        table.row(
            tokens,
            _ms(default),
            milliseconds(best),
            _ms(result),
            milliseconds(result.bound),
            _letters(problem, result.plan),
            _word(good),
        )
    return missed


def _offload(tokens: int) -> tuple[pw.Problem, dict[str, float]]:
    """One op per block with measured times; plans by hand as letters: R resident on the GPU, C
    computed on the CPU where the weight lives, S streamed to the GPU."""
    blocks, size = 16, int(5.5 * 2**30) // 16
    gpu, cpu = {1: (0.21e-3, 7e-3), 512: (0.325e-3, 55e-3), 4096: (2.69e-3, 0.499)}[tokens]
    ops: list[pw.Op] = []
    for at in range(blocks):
        ops.append(pw.Op(f"weight{at}", "weight", outputs=(size,)))
        before = ((len(ops) - 2, 0),) if at else ()
        reads = (*before, (len(ops) - 1, 0))
        ops.append(pw.Op(f"block{at}", inputs=reads, outputs=(8192 * tokens,)))
    seconds = [[gpu, cpu] if op.kind == "op" else [0.0, 0.0] for op in ops]
    table = pw.Table(tuple(op.name for op in ops), ("gpu", "cpu"), np.array(seconds))
    links = {pair: pw.Link(55e9, 1e-5) for pair in (("gpu", "cpu"), ("cpu", "gpu"))}
    devices = (
        pw.Device("gpu", memory=8 * size + 3 * 8192 * tokens),
        pw.Device("cpu", "cpu", memory=2**40),
    )
    problem = pw.Problem(
        pw.Graph("offload", tuple(ops)), pw.Cluster("one GPU", devices, links), table
    )
    layouts = {
        "cpu": "R" * 6 + "C" * 10,
        "streamed": "R" * 6 + "S" * 10,
        "cpu then streamed": "R" * 6 + "C" * 5 + "S" * 5,
        "interleaved": "RCS" * 5 + "R",
    }
    by_hand = {}
    for name, layout in layouts.items():
        device = [place for at in layout for place in (int(at != "R"), int(at == "C"))]
        plan = pw.Plan.of(problem, device, staging={"gpu": 2 * size})
        timeline = pw.simulate(problem, plan)
        assert timeline.fits, name
        by_hand[name] = timeline.step_time
    return problem, by_hand


def _letters(problem: pw.Problem, plan: pw.Plan) -> str:
    pairs = plan.placement.reshape(-1, 2)
    return "".join("C" if op else "S" if weight else "R" for weight, op in pairs.tolist())


def half(settings: Settings) -> int:
    """Models of today on a GPU that may use half the bytes of their weights, one call: step time in
    milliseconds. `accelerate` is simulated as it runs (no prefetch, its own copy rate)."""
    missed = 0
    table = Table(
        *("model", "accelerate", "streamed", "cpu", "auto", "bound", "accelerate / auto"),
        *("auto by", "bound by", "target met"),
    )
    for name in (
        "llama-8b:mode=decode",
        "llama-8b:training=false",
        "gpt2-xl:training=false",
        "moe:mode=decode",
        "moe:training=false",
    ):
        graph = pw.zoo.load(name)
        weights = sum(sum(op.outputs) for op in graph.ops if op.kind == "weight")
        limits = pw.Constraints(limits={"gpu0": weights // 2})
        problem = pw.Problem(graph, pw.Cluster.parse("H100+cpu"), constraints=limits)
        results = [
            solve(problem, METHODS[method]()) for method in ("accelerate", "streamed", "cpu-only")
        ]
        auto = solve(problem, Auto(), MaxTime(settings.seconds), cautious=False)
        good = auto.fits and all(auto.key <= result.key for result in results)
        missed += not good
        table.row(
            name,
            *(_ms(result) for result in (*results, auto)),
            milliseconds(auto.bound),
            f"{results[0].objective_value / auto.objective_value:.1f}",
            auto.found_by,
            auto.bound_name,
            _word(good),
        )
    return missed


def zoo(settings: Settings) -> int:
    """The zoo on its papers' clusters (`ready`): step time in milliseconds; constructive methods to
    their own end, other searches 3 s each, `auto` in its budget."""
    return _rows(settings.seconds, settings.seconds, every=True)


def quick(settings: Settings) -> int:
    """The same rows with 1 s for `auto` (10 s above 5,000 ops) against the list schedulers and the
    expert."""
    return _rows(1.0, 10.0, every=False)


def _rows(small: float, large: float, every: bool) -> int:
    missed = 0
    listed = ["expert", "heft", "m-etf", "m-sct"]
    table = Table(
        *("network", "cluster", "ops", "single", *listed, "best other", "auto", "seconds"),
        *("bound", "auto by", "target met"),
    )
    for name, on in ZOO:
        problem = pw.Problem(pw.zoo.load(name), pw.Cluster.parse(on), discipline="ready")
        assert problem.arrays.ops  # packing is not counted
        budget = small if len(problem.graph) <= 5_000 else large
        others = [each for each in METHODS if each not in ON_REQUEST | {"auto"}]
        others += ["annealing", "local-search", "genetic", "cross-entropy"]
        results = []
        for method in others if every else listed:
            stop = MaxTime(3.0 if method in SEARCHES else 60.0)
            try:
                results.append(solve(problem, METHODS[method](), stop, cautious=False))
            except pw.errors.ConfigError:
                continue  # e.g. no expert placement is known for this network
        auto = solve(problem, Auto(), MaxTime(budget), cautious=False)
        single = solve(problem, SingleDevices())
        best = min(results, key=lambda result: result.key)
        good = auto.key <= best.key
        missed += not good
        shown = {result.solver: result for result in results}
        table.row(
            name,
            on,
            f"{len(problem.graph):,}",
            _single(single),
            *(_ms(shown[method]) if method in shown else "–" for method in listed),
            f"{best.solver} {_ms(best)}",
            _ms(auto),
            f"{auto.seconds:.1f}",
            milliseconds(auto.bound, 2),
            auto.found_by,
            _word(good),
        )
    return missed


def large(settings: Settings) -> int:
    """About 50,000 ops: `auto` in 60 s against the expert, in a process of its own, so that the
    peak of its memory is known."""
    child = subprocess.run(
        [sys.executable, "-m", __spec__.name], capture_output=True, text=True, check=False
    )
    print(child.stdout.strip() or child.stderr.strip().splitlines()[-1])
    return 0 if child.returncode == 0 else 1


def _large() -> bool:
    graph = pw.zoo.load("nmt-8:steps=48")
    begin = time.perf_counter()
    problem = pw.Problem(graph, pw.Cluster.parse("8xP100+cpu"), discipline="ready")
    assert problem.arrays.ops
    packed = time.perf_counter() - begin
    auto = solve(problem, Auto(), MaxTime(60), cautious=False)
    expert, single = (solve(problem, METHODS[each]()) for each in ("expert", "single"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    good = auto.key < expert.key and auto.seconds < 62 and peak < 4e9
    print(
        f"{len(graph):,} ops, packed in {packed:.1f} s: single {_ms(single)} expert {_ms(expert)} "
        f"auto {_ms(auto)} in {auto.seconds:.1f} s, {auto.evaluations:,} plans, bound "
        f"{auto.bound * 1e3:.2f}, peak {peak / 1e9:.2f} GB {_word(good)} ({auto.found_by})"
    )
    return good


def _ms(result: pw.Result) -> str:
    """Step time or period; `!` marks a plan that does not fit."""
    return milliseconds(result.objective_value) + ("" if result.fits else "!")


def _single(result: pw.Result) -> str:
    return _ms(result) if result.fits else f"({result.objective_value * 1e3:.2f})"


def _word(good: bool) -> str:
    return "yes" if good else "NO"


SECTIONS = {
    section.__name__: section
    for section in (random, period, unseen, step, offload, half, zoo, large, quick)
}

if __name__ == "__main__":
    sys.exit(0 if _large() else 1)
