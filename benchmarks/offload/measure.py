"""Models larger than the GPU's limit: our plan against the usual ways, in one run.

    python benchmarks/offload.py                      every case and way: minutes on an H200
    python benchmarks/offload.py --only blocks        cases whose name begins so
    python benchmarks/offload.py --small              tiny networks; also without a GPU

The limit is half the weights' bytes, enforced by `torch.cuda.set_per_process_memory_fraction`, and
the peak is `max_memory_allocated`. Every row runs in a process of its own, so that a crash loses
one row; rows append to one file, and a second run skips what is there. `--table` prints it again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STEPS, DROPPED = 10, 5
"""Steps that are timed, and how many of them are dropped."""
OUT = "out of memory"
CLOSE = 0.05
"""Largest difference of outputs, as a share of the largest output, that counts as equal."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="file of rows; default: out/offload[-small].jsonl")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--ways", default="gpu,accelerate,hand,ours")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--retry", action="store_true", help="run rows again that failed")
    parser.add_argument("--search", type=float, default=30.0, help="seconds of auto")
    parser.add_argument("--profiling", type=float, default=60.0, help="seconds to measure ops")
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds of one row")
    parser.add_argument("--spares", type=int, default=6, help="tries, each with more room left")
    parser.add_argument("--row", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--spare", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(run_row(*asked.row, asked)))
        return
    path = asked.out or Path("out") / f"offload{'-small' if asked.small else ''}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = read(path)
    if not asked.table:
        sys.path.insert(0, str(HERE))
        from offload_models import cases

        done = {(r["case"], r["way"]) for r in rows if not (asked.retry and r["error"])}
        for case in (name for name in cases() if name.startswith(asked.only)):
            for way in asked.ways.split(","):
                if (case, way) not in done:
                    for spare in range(asked.spares):
                        row = child(case, way, spare, path, asked)
                        if row["error"] != OUT:
                            break
                        print(f"{line(row)}: {row['note']}", flush=True)
                    with path.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(line(row), flush=True)
        rows = read(path)
    print(table(rows))


def child(case: str, way: str, spare: int, path: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """One row, from a process of its own."""
    command = [sys.executable, __file__, "--row", case, way, "--search", str(asked.search)]
    command += ["--spare", str(spare), "--profiling", str(asked.profiling)]
    command += ["--save", str(path.parent / f"{path.stem}-outputs")]
    command += ["--small"] if asked.small else []
    # A limit holds what PyTorch reserves: pieces that are free but too small must not count.
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    base = {"case": case, "way": way, "day": datetime.date.today().isoformat(), "error": ""}
    began = time.monotonic()
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=asked.timeout, env=env
        )
    except subprocess.TimeoutExpired:
        return base | {"error": f"took more than {asked.timeout:g} s"}
    base["seconds"] = round(time.monotonic() - began, 1)
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        said = ran.stderr.strip().splitlines() or [f"ended with {ran.returncode}"]
        return base | {"error": said[-1][:300]}
    return base | json.loads(lines[-1])


def run_row(case: str, way: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Prepare one way, run it, and compare what it makes with what the GPU alone makes."""
    sys.path.insert(0, str(HERE))
    import torch
    from offload_models import build, cases, weight_bytes
    from offload_ways import WARMING, WAYS, gpu, limit_of

    if gpu().type == "cpu":
        torch.set_num_threads(1)  # tiny products on a busy machine
    chosen = cases()[case]
    limit = limit_of(chosen, asked.small)
    try:
        prepared = WAYS[way](chosen, asked.small, limit, asked.spare, asked.search, asked.profiling)
        warming = WARMING if way == "ours" else 2
        times, made, peak, retries = measure(
            prepared.step, limit if way != "gpu" else None, warming
        )
    except Exception as error:
        if "out of memory" in str(error).lower():
            return {"error": OUT, "limit": limit, "note": str(error)[:400]}
        raise
    kept = times[DROPPED:]
    quarters = statistics.quantiles(kept, n=4)
    folder = asked.save or Path("out")
    folder.mkdir(parents=True, exist_ok=True)
    name = case.replace("/", "-").replace(" ", "-")
    made = made.detach().cpu().float()  # the GPU has no room for it
    off = None
    if way == "gpu" or not (folder / f"{name}.pt").exists():  # what the others are held to
        torch.save(made, folder / f"{name}.pt")
    else:
        right = torch.load(folder / f"{name}.pt")
        off = float((made - right).abs().max() / right.abs().max())
    return {
        "error": "",
        "limit": limit,
        "weights": weight_bytes(build(chosen, asked.small)[0]),
        "predicted": prepared.predicted,
        "measured": statistics.median(kept),
        "spread": (quarters[2] - quarters[0]) / statistics.median(kept),
        "steps": [round(1e3 * took, 3) for took in times],
        "retries": retries,
        "peak": peak,
        "off": off,
        "note": prepared.note + prepared.issued(),
        "device": torch.cuda.get_device_name() if gpu().type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def measure(step: Any, limit: int | None, warming: int) -> tuple[list[float], Any, int | None, int]:
    """Seconds of each step, the first output that is a tensor, and the peak of the GPU's memory.

    And how often its allocator had to give back memory first, which takes milliseconds.
    """
    import torch
    from offload_ways import enforce

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        if limit is not None:
            enforce(limit)
        torch.cuda.reset_peak_memory_stats()
    for _ in range(warming):
        step()
    times, before = [], _retries()
    for _ in range(STEPS):
        if cuda:
            torch.cuda.synchronize()
        made = None  # nobody keeps the last step's outputs while the next is under way
        began = time.perf_counter()
        made = step()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    while not isinstance(made, torch.Tensor):
        made = next(iter(made.values() if isinstance(made, dict) else made))
    peak = torch.cuda.max_memory_allocated() if cuda else None
    return times, made, peak, _retries() - before


def _retries() -> int:
    import torch

    return (
        int(torch.cuda.memory_stats().get("num_alloc_retries", 0))
        if torch.cuda.is_available()
        else 0
    )


def read(path: Path) -> list[dict[str, Any]]:
    """The newest row of each case and way; a last line that was cut off is left out."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(text)
        except ValueError:
            continue
        rows[row["case"], row["way"]] = row
    return list(rows.values())


def line(row: dict[str, Any]) -> str:
    if row["error"]:
        return f"{row['case']}, {row['way']}: {row['error']}"
    return f"{row['case']}, {row['way']}: {1e3 * row['measured']:.2f} ms, {row['note']}"


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: milliseconds, and how many times as fast as accelerate each way is."""
    lines = [
        "| case | way | predicted ms | measured ms | as fast as accelerate | peak GiB | "
        "limit GiB | within | outputs | note |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    base = {r["case"]: r["measured"] for r in rows if r["way"] == "accelerate" and not r["error"]}
    for row in rows:
        if row["error"]:
            lines.append(f"| {row['case']} | {row['way']} | | {row['error']} | | | | | | |")
            continue
        predicted = "" if row["predicted"] is None else f"{1e3 * row['predicted']:.2f}"
        times = base.get(row["case"], math.nan) / row["measured"]
        peak = row["peak"]
        limited = row["way"] != "gpu" and peak is not None
        within = "" if not limited else "yes" if peak <= row["limit"] else "**no**"
        off = row["off"]
        outputs = "" if off is None else f"{'equal' if off <= CLOSE else '**differ**'} ({off:.1e})"
        lines.append(
            f"| {row['case']} | {row['way']} | {predicted} | {1e3 * row['measured']:.2f} | "
            f"{times:.2f} | {'' if peak is None else f'{peak / 2**30:.2f}'} | "
            f"{row['limit'] / 2**30:.2f} | {within} | {outputs} | {row['note']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
