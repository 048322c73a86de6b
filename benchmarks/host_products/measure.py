"""Products of few rows on the host: our kernel, PyTorch's, and a plain read of the same weights.

    python -m benchmarks.host_products.measure --threads 1,2

Weights are cold: calls cycle through copies that together exceed the cache three times. In a round
each way runs once, in random order, so that all meet the same load of the machine. A row has each
way's GB/s in its undisturbed rounds (the fastest fifth), the ratio of these, and the median of the
ratios within a round. One thread is timed by its CPU time, which other processes do not lengthen;
several are timed by the clock, which is of use only on an idle machine: a row says how many
processes wanted a core (`load`). Threads are those of a worker of the runtime. With
`--beside-copies` weights are copied to all GPUs meanwhile. Weights are in huge pages, as the
runtime stores them, but for `--small-pages`.
"""

from __future__ import annotations

import math
import os
import random
import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.common import (
    ResultFile,
    Table,
    add_results,
    int_list,
    machine,
    make_parser,
    name_list,
)
from placewright.profiling.copy_load import CopyLoad
from placewright.runtime.huge_pages import use_huge_pages
from placewright.runtime.machine import available_cores, last_cache_bytes
from placewright.runtime.real_devices import RealDevice, share_cores
from placewright.runtime.skinny_gemm import multiply, read_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.common import Row

WEIGHTS = ["1024x4096", "4096x4096", "14336x4096", "4096x14336"]
DTYPES = ["bfloat16", "float16", "float32"]
LAYOUTS = ["linear", "conv1d"]
"""`linear` has a weight of N x K, GPT-2's `conv1d` one of K x N; both are written as N x K here."""
WAYS = ["read", "torch", "ours"]
SECONDS_PER_CASE, MIN_ROUNDS, MAX_ROUNDS = 4.0, 5, 200
MAX_COPY_BYTES = 2 << 30


@dataclass(frozen=True)
class Case:
    """One product: its weight, dtype and layout, rows and threads."""

    weight: str
    dtype: str
    layout: str
    rows: int
    threads: int
    beside_copies: bool
    small_pages: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        return (
            self.weight,
            self.dtype,
            self.layout,
            self.rows,
            self.threads,
            self.beside_copies,
            self.small_pages,
        )

    def __call__(self) -> Row:
        """Measure it, in a thread as the runtime's workers are."""
        load = CopyLoad(range(torch.cuda.device_count())) if self.beside_copies else CopyLoad(())
        device = worker(self.threads, self.beside_copies)
        with load.running():
            samples = device.run(partial(measure_ways, self))
        size = self.bytes
        row: Row = {
            "weight": self.weight,
            "dtype": self.dtype,
            "layout": self.layout,
            "rows": self.rows,
            "threads": self.threads,
            "beside_copies": self.beside_copies,
            "small_pages": self.small_pages,
            "bytes": size,
            "rounds": len(samples["read"]),
            "load": round(os.getloadavg()[0], 1),
        }
        best = {way: sorted(samples[way])[len(samples[way]) // 5] for way in WAYS}
        row |= {f"{way}_gbs": round(size / best[way] / 1e9, 2) for way in WAYS}
        for way in ("torch", "ours"):
            ratios = [a / b for a, b in zip(samples["read"], samples[way], strict=True)]
            row[f"{way}_of_read"] = round(best["read"] / best[way], 3)
            row[f"{way}_of_read_median"] = round(median(ratios), 3)
        return row

    @property
    def bytes(self) -> int:
        columns, depth = (int(size) for size in self.weight.split("x"))
        return columns * depth * getattr(torch, self.dtype).itemsize


def worker(threads: int, has_gpus: bool) -> RealDevice:
    """A worker of so many threads; beside GPUs it keeps to its cores, as in the runtime."""
    host = RealDevice("cpu", threads=threads)
    gpus = [RealDevice("gpu0", "cuda")] if has_gpus else []
    return share_cores([*gpus, host], available_cores())[-1]


def measure_ways(case: Case) -> dict[str, list[float]]:
    """Seconds of each way, round by round."""
    columns, depth = (int(size) for size in case.weight.split("x"))
    dtype = getattr(torch, case.dtype)
    shape = (columns, depth) if case.layout == "linear" else (depth, columns)
    count = max(
        1, min(math.ceil(3 * last_cache_bytes() / case.bytes), MAX_COPY_BYTES // case.bytes)
    )
    first = torch.empty(shape, dtype=dtype).uniform_(-1, 1)
    stored = [first, *(first.clone() for _ in range(count - 1))]
    if not case.small_pages:  # as the runtime stores weights
        for weight in stored:
            use_huge_pages(weight)
    x = torch.empty(case.rows, depth, dtype=dtype).uniform_(-1, 1)
    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "read": read_tensor,
        "torch": lambda weight: (
            torch.nn.functional.linear(x, weight) if case.layout == "linear" else x @ weight
        ),
        "ours": lambda weight: multiply(x, weight.t() if case.layout == "linear" else weight),
    }
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    clock = time.thread_time if case.threads == 1 else time.perf_counter
    touched, deadline, order = 0, math.inf, random.Random(0)
    for at in range(-1, MAX_ROUNDS):  # the first round is not timed
        if at >= MIN_ROUNDS and time.perf_counter() > deadline:
            break
        for way in order.sample(WAYS, len(WAYS)):
            weight = stored[touched % count]
            touched += 1
            start = clock()
            calls[way](weight)
            if at >= 0:
                samples[way].append(clock() - start)
        if at < 0:
            deadline = time.perf_counter() + SECONDS_PER_CASE
    return samples


def main() -> None:
    parser = make_parser(__doc__ or "", "benchmarks.host_products.measure")
    parser.add_argument(
        "--weights", type=name_list, default=WEIGHTS, help="sizes of weights, N x K"
    )
    parser.add_argument("--dtypes", type=name_list, default=DTYPES, help="dtypes of all tensors")
    parser.add_argument("--layouts", type=name_list, default=LAYOUTS, help="linear, conv1d or both")
    parser.add_argument("--rows", type=int_list, default=[1], help="rows of x")
    parser.add_argument("--threads", type=int_list, default=[1, 2], help="threads of a product")
    parser.add_argument(
        "--beside-copies", action="store_true", help="copy to all GPUs at the same time"
    )
    parser.add_argument(
        "--small-pages", action="store_true", help="leave weights in pages of 4 KiB"
    )
    add_results(parser, "out/host-products.jsonl")
    options = parser.parse_args()
    if options.beside_copies and not torch.cuda.is_available():
        parser.error("--beside-copies needs a GPU: this machine has none")
    cases = [
        Case(weight, dtype, layout, rows, threads, options.beside_copies, options.small_pages)
        for threads in options.threads
        for layout in options.layouts
        for rows in options.rows
        for dtype in options.dtypes
        for weight in options.weights
    ]
    results = ResultFile(options.out, lambda row: Case(*(row[name] for name in NAMES)).key)
    print(machine())
    table = Table(
        "threads", "layout", "rows", "dtype", "weight", "MB", "read GB/s", "torch", "ours",
        "torch / read", "ours / read", "median", "load",
    )  # fmt: skip
    for case in cases:
        if case.key not in results:
            results.append(case())
        row = next(row for row in results.rows if Case(*(row[name] for name in NAMES)) == case)
        table.row(
            row["threads"],
            row["layout"],
            row["rows"],
            row["dtype"],
            row["weight"],
            f"{row['bytes'] / 1e6:.0f}",
            *(f"{row[f'{way}_gbs']:.1f}" for way in WAYS),
            *(f"{row[f'{way}_of_read']:.2f}" for way in ("torch", "ours")),
            f"{row['ours_of_read_median']:.2f}",
            row["load"],
        )


NAMES = ["weight", "dtype", "layout", "rows", "threads", "beside_copies", "small_pages"]

if __name__ == "__main__":
    main()
