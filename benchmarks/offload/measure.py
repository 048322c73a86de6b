"""Models larger than the GPU's limit: our plan against the usual strategies, in one run.

    python -m benchmarks.offload.measure                      all: minutes on an H200
    python -m benchmarks.offload.measure --only blocks        cases whose name begins so
    python -m benchmarks.offload.measure --small              tiny networks; also without a GPU

The limit is half the weights' bytes, enforced by `torch.cuda.set_per_process_memory_fraction`, and
the peak is `max_memory_allocated`. Every row runs in a process of its own, so that a crash loses
one row; rows append to one file, and a second run skips what is there. `--table` prints it again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    ROOT,
    ResultFile,
    Table,
    make_parser,
    milliseconds,
    name_list,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS, DROPPED = 10, 5
"""Steps that are timed, and how many of them are dropped."""
OUT = "out of memory"
CLOSE = 0.05
"""Largest difference of outputs, as a share of the largest output, that counts as equal."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--out", type=Path, help="file of rows; else out/offload.jsonl or offload-small.jsonl")
    option("--only", default="", help="cases whose name begins so")
    option(
        "--ways", type=name_list, default=["gpu", "accelerate", "hand", "ours"], help="strategies"
    )
    option("--small", action="store_true", help="tiny networks")
    option("--table", action="store_true", help="print what is there, run nothing")
    option("--retry", action="store_true", help="run rows again that failed")
    option("--search", type=float, default=30.0, help="time budget of `auto`, seconds")
    option("--profiling", type=float, default=60.0, help="seconds to measure ops")
    option("--timeout", type=float, default=400.0, help="seconds of one row at most")
    option("--spares", type=int, default=6, help="attempts, each leaving more memory free")
    option("--row", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    option("--spare", type=int, default=0, help=argparse.SUPPRESS)
    option("--save", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.row:
        print(json.dumps(run_row(*arguments.row, arguments)))
        return
    path = arguments.out or Path("out") / f"offload{'-small' if arguments.small else ''}.jsonl"
    results = ResultFile(path, key_of)
    if not arguments.table:
        from benchmarks.offload.models import cases

        failed = {key_of(row) for row in newest(results.rows) if row["error"]}
        again = failed if arguments.retry else set()
        for case in (name for name in cases() if name.startswith(arguments.only)):
            for way in arguments.ways:
                if (case, way) in results and (case, way) not in again:
                    continue
                for spare in range(arguments.spares):
                    row = run_child(case, way, spare, path, arguments)
                    if row["error"] != OUT:
                        break
                    print(f"{text_of(row)}: {row['note']}", flush=True)
                print(text_of(results.append(row)), flush=True)
    print_table(newest(results.rows))


def key_of(row: dict[str, Any]) -> tuple[str, str]:
    """What distinguishes a row from others."""
    return row["case"], row["way"]


def newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest row of each case and strategy."""
    return list({key_of(row): row for row in rows}.values())


def run_child(
    case: str, way: str, spare: int, path: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One row, from a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--row", case, way]
    command += ["--search", str(arguments.search)]
    command += ["--spare", str(spare), "--profiling", str(arguments.profiling)]
    outputs = path.parent / f"{path.stem}-outputs"
    command += ["--save", str(outputs.absolute())]
    command += ["--small"] if arguments.small else []
    # The limit is on what PyTorch reserves: fragments that are free but too small must not count.
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    base: dict[str, Any] = {"case": case, "way": way, "error": ""}
    began = time.monotonic()
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=arguments.timeout, env=env, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return base | {"error": f"took more than {arguments.timeout:g} s"}
    base["seconds"] = round(time.monotonic() - began, 1)
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        errors = ran.stderr.strip().splitlines() or [f"ended with {ran.returncode}"]
        return base | {"error": errors[-1][:300]}
    return base | json.loads(lines[-1])


def run_row(case: str, way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Prepare one strategy, run it, and compare its outputs with those of the GPU alone."""
    import torch

    from benchmarks.offload.models import build, cases, weight_bytes
    from benchmarks.offload.strategies import STRATEGIES, WARMUP_STEPS, gpu, limit_of

    if gpu().type == "cpu":
        torch.set_num_threads(1)  # tiny products on a busy machine
    chosen = cases()[case]
    limit = limit_of(chosen, arguments.small)
    try:
        prepared = STRATEGIES[way](
            *(chosen, arguments.small, limit),
            *(arguments.spare, arguments.search, arguments.profiling),
        )
        warmup = WARMUP_STEPS if way == "ours" else 2
        times, output, peak, retries = time_steps(
            prepared.step, limit if way != "gpu" else None, warmup
        )
    except Exception as error:
        if "out of memory" in str(error).lower():
            return {"error": OUT, "limit": limit, "note": str(error)[:400]}
        raise
    timed = times[DROPPED:]
    quarters = statistics.quantiles(timed, n=4)
    folder = arguments.save or Path("out")
    folder.mkdir(parents=True, exist_ok=True)
    name = case.replace("/", "-").replace(" ", "-")
    output = output.detach().cpu().float()  # the GPU's memory is full
    off = None
    if way == "gpu" or not (folder / f"{name}.pt").exists():  # the reference
        torch.save(output, folder / f"{name}.pt")
    else:
        expected = torch.load(folder / f"{name}.pt")
        off = float((output - expected).abs().max() / expected.abs().max())
    return {
        "error": "",
        "limit": limit,
        "weights": weight_bytes(build(chosen, arguments.small)[0]),
        "predicted": prepared.predicted,
        "measured": statistics.median(timed),
        "spread": (quarters[2] - quarters[0]) / statistics.median(timed),
        "steps": [round(1e3 * took, 3) for took in times],
        "retries": retries,
        "peak": peak,
        "off": off,
        "note": prepared.note + prepared.issued(),
        "device": torch.cuda.get_device_name() if gpu().type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def time_steps(
    step: Any, limit: int | None, warmup: int
) -> tuple[list[float], Any, int | None, int]:
    """Seconds of each step, the first output that is a tensor, and the peak of the GPU's memory.

    And how often its allocator had to free cached memory first, which takes milliseconds.
    """
    import torch

    from benchmarks.offload.strategies import enforce

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        if limit is not None:
            enforce(limit)
        torch.cuda.reset_peak_memory_stats()
    for _ in range(warmup):
        step()
    times, before = [], _retries()
    for _ in range(STEPS):
        if cuda:
            torch.cuda.synchronize()
        output = None  # the last step's outputs are freed before the next step
        began = time.perf_counter()
        output = step()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values() if isinstance(output, dict) else output))
    peak = torch.cuda.max_memory_allocated() if cuda else None
    return times, output, peak, _retries() - before


def _retries() -> int:
    import torch

    return (
        int(torch.cuda.memory_stats().get("num_alloc_retries", 0))
        if torch.cuda.is_available()
        else 0
    )


def text_of(row: dict[str, Any]) -> str:
    if row["error"]:
        return f"{row['case']}, {row['way']}: {row['error']}"
    return f"{row['case']}, {row['way']}: {milliseconds(row['measured'], 2)} ms, {row['note']}"


def print_table(rows: list[dict[str, Any]]) -> None:
    """Milliseconds, and how many times as fast as accelerate each strategy is."""
    table = Table(
        *("case", "strategy", "predicted ms", "measured ms", "times as fast as accelerate"),
        *("peak GiB", "limit GiB", "within", "outputs", "note"),
    )
    base = {r["case"]: r["measured"] for r in rows if r["way"] == "accelerate" and not r["error"]}
    for row in rows:
        if row["error"]:
            table.row(row["case"], row["way"], None, row["error"], *[None] * 6)
            continue
        peak, off = row["peak"], row["off"]
        limited = row["way"] != "gpu" and peak is not None
        table.row(
            row["case"],
            row["way"],
            None if row["predicted"] is None else milliseconds(row["predicted"], 2),
            milliseconds(row["measured"], 2),
            f"{base.get(row['case'], math.nan) / row['measured']:.2f}",
            None if peak is None else f"{peak / 2**30:.2f}",
            f"{row['limit'] / 2**30:.2f}",
            None if not limited else "yes" if peak <= row["limit"] else "**no**",
            None if off is None else f"{'equal' if off <= CLOSE else '**differ**'} ({off:.1e})",
            row["note"],
        )


if __name__ == "__main__":
    main()
