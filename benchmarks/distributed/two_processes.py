"""Two processes that stand for two hosts: predicted and measured periods at several bandwidths.

    python -m benchmarks.distributed.two_processes

Each process has one core and one thread, and what it sends is delayed to a bandwidth. Ops are
measured on one core, links between the two processes; `auto` plans for the period, and takes the
plan that is best with as many steps in flight as are run (`InFlightChoice`). Three plans are run,
in random order in every round: `auto`'s, all on one machine, and the best balanced cut into two
(`auto`'s own where that uses both). A row has predicted and measured periods; the table says
whether predictions are within 15 %, whether `auto` takes one machine or two as measurement does (a
difference of less than 5 % counts as none), and whether it is ever slower than one machine.

Models named `train-…` run training steps instead: micro-batches in flight, whose gradients are
summed where the weights are, and which update all weights after each round.

It needs two idle cores: a busy one lengthens measured periods, not predicted ones. Op times are
measured once and cached beside the results: delete that folder with them to begin anew.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import (
    ResultFile,
    Table,
    add_results,
    add_seed,
    chosen,
    float_list,
    make_parser,
    name_list,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import placewright as pw
    from benchmarks.common import Row

TRAINING = "train-"
MODELS = ["chain", "gpt2", "tiny", "train-chain", "train-gpt2", "train-tiny"]
BANDWIDTHS = [0.1, 1.0, 3.0, 10.0]
"""Gb/s."""
TOLERANCE, BAND = 0.15, 0.05
MIN_SHARE = 0.3
"""Share of all compute that each machine has in a balanced cut."""
WARMUP_STEPS, STEPS, IN_FLIGHT, ROUNDS = 6, 3, 6, 3


def build(name: str) -> Any:
    """A model and its arguments: the same weights in all processes."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    name = name.removeprefix(TRAINING)
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        # Dropout, which only training has, would be on the first machine.
        rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model = GPT2LMHeadModel(GPT2Config(use_cache=False, **rates)).eval()
        return model, (torch.randint(0, 50257, (1, 128)),)
    width, layers, rows = (1024, 12, 256) if name == "chain" else (128, 6, 64)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts).eval(), (torch.randn(rows, width),)


# -- one of the two processes ------------------------------------------------------------------


def run_rank(args: argparse.Namespace) -> None:
    """Measure, plan and run, as one of two ranks; rank 0 writes the row."""
    import torch

    from placewright.runtime.distributed.launched_ranks import join_ranks, leave_ranks

    torch.set_num_threads(1)
    rank = join_ranks()
    model, example = build(args.model)
    bandwidth = args.bandwidth * 1e9 / 8
    row = plan_period(rank, model, example, bandwidth, args)
    measured = run_plans(rank, model, example, bandwidth, args, list(row["predicted"]))
    if rank == 0:
        row["measured"] = {name: median(times) for name, times in measured.items()}
        row["rounds"] = measured
        (args.folder / "row.json").write_text(json.dumps(row))
    leave_ranks()


def plan_period(
    rank: int, model: Any, example: Any, bandwidth: float, args: argparse.Namespace
) -> Row:
    """Measure ops and links, and write the plans to be run; what they are predicted to take."""
    import placewright as pw
    from placewright import files
    from placewright.profiling.machine_profile import profile_machine
    from placewright.profiling.rank_links import join_clusters, measure_rank_links
    from placewright.runtime.distributed.bandwidth_limit import BandwidthLimit
    from placewright.runtime.distributed.caller_problem import with_caller, without_caller
    from placewright.runtime.distributed.session import RankSession

    if rank == 0:  # while the other process waits for the session
        training = args.model.startswith(TRAINING)
        profile = pw.profile(model, example, training=training, workers=1, budget=args.budget)
        machine = profile.machine
    else:
        machine = profile_machine(1)
    session = RankSession({"purpose": "links"}, limit=BandwidthLimit(bandwidth))
    links = measure_rank_links(session)
    cluster = join_clusters(session, machine.cluster, links)
    if rank:
        session.serve()
        return {"predicted": ["auto", "one", "two"]}
    problem = pw.Problem(profile.graph, cluster, profile.costs, objective="period")
    whole = with_caller(problem)
    choice = pw.solvers.InFlightChoice(IN_FLIGHT)
    result = pw.solve(whole, stop=pw.MaxEvaluations(args.evaluations), select=choice)
    placements = {
        "auto": result.plan.placement,
        "one": np.zeros(len(whole.graph), dtype=np.int32),
    }
    uses_two = len(set(computing_devices(whole, result.plan.placement))) > 1
    placements["two"] = result.plan.placement if uses_two else balanced_cut(whole)
    periods = {}
    for name, placement in placements.items():
        plan = pw.Plan.of(whole, placement)
        periods[name] = pw.simulate_in_flight(whole, plan, IN_FLIGHT).interval
        plan = without_caller(plan, problem)
        files.save(plan, args.folder / f"{name}.json")
    session.close()
    return {
        "model": args.model,
        "bandwidth": args.bandwidth,
        "links": [[link.bandwidth, link.latency] for link in links],
        "ops": len(problem.graph),
        "auto_uses_two": uses_two,
        "predicted": periods,
    }


def computing_devices(problem: pw.Problem, placement: Any) -> list[int]:
    """The devices of ops that take time."""
    arrays = problem.arrays
    devices = np.asarray(placement)
    busy = arrays.scheduled & (arrays.compute[np.arange(arrays.ops), devices] > 0)
    return [int(device) for device in devices[busy]]


def balanced_cut(problem: pw.Problem) -> Any:
    """The best of all cuts of the graph's order into a first part, a second and a last one.

    The second part is the other machine's; each machine has a share of the compute.
    """
    import placewright as pw

    seconds = problem.arrays.compute[:, 0]
    total, before = seconds.sum(), np.concatenate([[0.0], np.cumsum(seconds)])
    ops = len(problem.graph)
    cuts = sorted({int(np.searchsorted(before, total * at / 40)) for at in range(41)} | {ops})
    found: list[Any] = []
    for first in cuts:
        for last in cuts:
            share = (before[min(last, ops)] - before[min(first, ops)]) / total
            if first < last and MIN_SHARE <= share <= 1 - MIN_SHARE:
                placement = np.zeros(ops, dtype=np.int32)
                placement[first:last] = 1
                found.append(problem.legalize(placement))
    candidates = np.stack(found)
    return candidates[int(np.argmin(pw.judge(problem, candidates).period))]


def run_plans(
    rank: int,
    model: Any,
    example: Any,
    bandwidth: float,
    args: argparse.Namespace,
    names: Sequence[str],
) -> dict[str, list[float]]:
    """The measured periods of all plans, round by round; nothing but on rank 0."""
    from placewright import files
    from placewright.runtime.distributed.bandwidth_limit import BandwidthLimit
    from placewright.runtime.distributed.host_ranks import HostRanks
    from placewright.runtime.distributed.rank_executor import RankExecutor
    from placewright.runtime.distributed.session import RankSession
    from placewright.runtime.meter import time_steps
    from placewright.runtime.program.program import build_program

    training = args.model.startswith(TRAINING)
    program = build_program(model, example, training=training)
    session = RankSession({"purpose": "plans"}, limit=BandwidthLimit(bandwidth))
    executors = {}
    for name in names:
        plan = files.load(args.folder / f"{name}.json", "plan")
        host_ranks = HostRanks.of(plan.device_names, session.world_size)
        executors[name] = RankExecutor(program, model, plan, session, host_ranks)
    if rank:
        session.serve()
        return {}
    rng = random.Random(args.seed)
    periods: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in rng.sample(list(names), len(names)):
            executor = executors[name]
            executor.accumulate_gradients(training)
            timed = time_steps(executor, example, {}, STEPS, WARMUP_STEPS, IN_FLIGHT)
            periods[name].append(timed.seconds)
            if training:
                executor.apply_gradients(WARMUP_STEPS + STEPS * IN_FLIGHT)
    session.close()
    return periods


# -- both processes ----------------------------------------------------------------------------


def run_both(model: str, bandwidth: float, args: argparse.Namespace) -> Row:
    """The row of a model at a bandwidth, by two processes with one core each."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        processes = []
        for rank in range(2):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "XDG_CACHE_HOME": str(args.out.resolve().with_suffix(".cache")),
            }
            options = ["--rank", str(rank), "--folder", folder, "--model", model]
            options += ["--bandwidth", str(bandwidth), "--seed", str(args.seed)]
            options += ["--rounds", str(args.rounds), "--evaluations", str(args.evaluations)]
            options += ["--budget", str(args.budget)]
            core = cores[rank % len(cores)]
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.distributed.two_processes", *options],
                    env=environment,
                    preexec_fn=lambda core=core: os.sched_setaffinity(0, {core}),
                )
            )
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{model} at {bandwidth} Gb/s: the processes ended with {codes}")
        row: Row = json.loads((Path(folder) / "row.json").read_text())
    return row


def verdict(row: Row) -> Row:
    """What a row says about the claims."""
    predicted, measured = row["predicted"], row["measured"]
    error = max(abs(predicted[name] / measured[name] - 1) for name in measured)
    gain = measured["one"] / measured["two"] - 1
    best = "either" if abs(gain) <= BAND else "two" if gain > 0 else "one"
    choice = "two" if row["auto_uses_two"] else "one"
    return {
        "error": error,
        "best": best,
        "choice": choice,
        "agrees": best in ("either", choice),
        "slowdown": measured["auto"] / measured["one"] - 1,
    }


def print_rows(rows: Sequence[Row]) -> None:
    """The table of all rows, and whether the claims hold."""
    table = Table(
        "model", "Gb/s", "plan", "predicted ms", "measured ms", "off by", "`auto` takes", "faster"
    )
    holds = True
    for row in rows:
        says = verdict(row)
        holds &= says["error"] <= TOLERANCE and says["agrees"] and says["slowdown"] <= BAND
        for name, measured in row["measured"].items():
            predicted = row["predicted"][name]
            table.row(
                row["model"],
                f"{row['bandwidth']:g}",
                name,
                f"{predicted * 1e3:.2f}",
                f"{measured * 1e3:.2f}",
                f"{predicted / measured - 1:+.1%}",
                says["choice"],
                says["best"],
            )
    print(f"\nall within {TOLERANCE:.0%}, and machines chosen as measured: {holds}")


def main() -> None:
    parser = make_parser(__doc__ or "", "benchmarks.distributed.two_processes")
    parser.add_argument("--models", type=name_list, default=["chain", "gpt2"], help="models to run")
    parser.add_argument(
        "--bandwidths", type=float_list, default=BANDWIDTHS, help="Gb/s that a process may send"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds in which plans are run")
    parser.add_argument(
        "--evaluations", type=int, default=20_000, help="plans that auto may evaluate"
    )
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for measuring ops")
    add_seed(parser)
    add_results(parser, "out/two_processes.jsonl")
    parser.add_argument("--rank", type=int, default=None, help="run as this rank, by the script")
    parser.add_argument("--folder", type=Path, default=None, help="files of both ranks, likewise")
    parser.add_argument("--model", default="", help="the model of both ranks, likewise")
    parser.add_argument("--bandwidth", type=float, default=0.0, help="their bandwidth, likewise")
    args = parser.parse_args()
    if args.rank is not None:
        run_rank(args)
        return
    results = ResultFile(args.out, lambda row: (row["model"], row["bandwidth"]))
    for model in chosen(parser, args.models, MODELS):
        for bandwidth in args.bandwidths:
            if (model, bandwidth) not in results:
                results.append(run_both(model, bandwidth, args))
    print_rows(results.rows)


if __name__ == "__main__":
    main()
