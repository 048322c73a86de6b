"""Models larger than the GPU's limit, called as people call them: all ways, in one run.

    python -m benchmarks.generate.measure                      all cells: an hour on an H200
    python -m benchmarks.generate.measure --models llama --ways ours,accelerate
    python -m benchmarks.generate.measure --small              tiny models; also without a GPU
    python -m benchmarks.generate.measure --llama-bench PATH --gguf PATH

A cell is a model, a limit (a share of its weights' bytes) and a way; each runs in a process of its
own, and its line is appended to one file: a second run skips the cells that are there. `generate`
is timed for the prompt and one token, and for 16 tokens more. *Peak* is one measure for all ways:
what the cell takes of the GPU's memory beyond a bare CUDA context, sampled by this process every
millisecond. llama.cpp is a build outside this repository; `-ngl` and threads are tried in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    ROOT,
    ResultFile,
    Table,
    chosen,
    float_list,
    int_list,
    make_parser,
    milliseconds,
    name_list,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LLAMA_CPP = "llama.cpp"
ALL_WAYS = ("gpu", "accelerate", "group", LLAMA_CPP, "ours")
REPEATS, NEW_TOKENS = 3, 17


def main(argv: Sequence[str] | None = None) -> None:
    from benchmarks.generate.models import SUBJECTS

    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--models", type=name_list, default=list(SUBJECTS), help="models")
    option("--ways", type=name_list, default=list(ALL_WAYS), help="ways")
    option("--limits", type=float_list, default=[0.5, 0.25], help="shares of the weights' bytes")
    option("--prompt", type=int, default=512, help="tokens of the prompt")
    option("--small", action="store_true", help="tiny models")
    option("--llama-bench", type=Path, help="the program of llama.cpp; else its cells are left out")
    option("--gguf", type=Path, help="the same Llama as a GGUF file")
    option("--layers", type=int_list, default=[8, 9, 10, 11], help="-ngl of llama.cpp")
    option("--threads", type=int_list, default=[12, 14, 16], help="threads of llama.cpp")
    option("--timeout", type=float, default=900.0, help="seconds of a cell at most")
    option(
        "--out", type=Path, help="file of lines; else out/generate.jsonl or generate-small.jsonl"
    )
    option("--logs", type=Path, default=Path("out/generate-logs"), help="folder of cells' stderr")
    option("--table", action="store_true", help="print what is there, run nothing")
    option("--cell", nargs=3, metavar=("MODEL", "LIMIT", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.cell:
        model, limit, way = arguments.cell
        print(json.dumps(run_cell(model, float(limit), way, arguments)))
        return
    chosen(parser, arguments.ways, ALL_WAYS)
    path = arguments.out or Path("out") / f"generate{'-small' if arguments.small else ''}.jsonl"
    results = ResultFile(path, key_of)
    for model in [] if arguments.table else chosen(parser, arguments.models, SUBJECTS):
        for limit in arguments.limits:
            for way in arguments.ways:
                if (model, limit, way) not in results and is_possible(model, way, arguments):
                    row = results.append(run_child(model, limit, way, arguments))
                    print(text_of(row), flush=True)
    print_table(results.rows)


def key_of(row: dict[str, Any]) -> tuple[str, float, str]:
    """What distinguishes a cell from others."""
    return row["model"], row["limit_share"], row["way"]


def is_possible(model: str, way: str, arguments: argparse.Namespace) -> bool:
    """Whether a way can run a model at all; llama.cpp runs the Llama of a file."""
    return way != LLAMA_CPP or (model == "llama" and arguments.llama_bench is not None)


class PeakSampler:
    """Samples the bytes that are free on the GPU while a cell runs."""

    def __init__(self) -> None:
        import torch

        self._info = torch.cuda.mem_get_info if torch.cuda.is_available() else None
        self._least, self._stop = 0, threading.Event()

    def __enter__(self) -> PeakSampler:
        if self._info is not None:
            self._before = self._least = self._info(0)[0]
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def _sample(self) -> None:
        assert self._info is not None
        while not self._stop.wait(0.001):
            self._least = min(self._least, self._info(0)[0])

    def __exit__(self, *error: object) -> None:
        if self._info is not None:
            self._stop.set()
            self._thread.join()

    @property
    def bytes(self) -> int | None:
        """The most that other processes took; None without a GPU."""
        return None if self._info is None else self._before - self._least


def context_bytes() -> int | None:
    """What a process takes of the GPU for its CUDA context alone."""
    code = "import torch; torch.zeros(1, device='cuda'); torch.cuda.synchronize()"
    with PeakSampler() as sampler:
        if sampler.bytes is not None:
            subprocess.run([sys.executable, "-c", code], check=True)
    return sampler.bytes


def run_child(model: str, limit: float, way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One cell, in a process of its own."""
    base: dict[str, Any] = {"model": model, "limit_share": limit, "way": way, "error": ""}
    began, context = time.monotonic(), context_bytes()
    try:
        with PeakSampler() as sampler:
            if way == LLAMA_CPP:
                base |= run_llama_cpp(limit, arguments)
            else:
                base |= _run_process(model, limit, way, arguments)
    except subprocess.TimeoutExpired:
        base["error"] = f"took more than {arguments.timeout:g} s"
    except (OSError, ValueError, KeyError) as error:
        base["error"] = f"{type(error).__name__}: {error}"[:300]
    peak = sampler.bytes
    base["peak"] = None if peak is None or context is None else max(0, peak - context)
    return base | {"seconds": round(time.monotonic() - began, 1)}


def _run_process(
    model: str, limit: float, way: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    command = [sys.executable, "-m", __spec__.name, "--cell", model, str(limit), way]
    command += ["--prompt", str(arguments.prompt), *(["--small"] if arguments.small else [])]
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    arguments.logs.mkdir(parents=True, exist_ok=True)
    log = arguments.logs / f"{model}-{limit:g}-{way}.log"
    with log.open("w") as errors:
        ran = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=arguments.timeout,
            env=env,
            cwd=ROOT,
        )
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        said = log.read_text().strip().splitlines() or [f"ended with {ran.returncode}"]
        return {"error": said[-1][:300]}
    return dict(json.loads(lines[-1]))


def run_cell(model: str, share: float, way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Prepare a model in one way, and time it."""
    import torch

    from benchmarks.generate.models import SUBJECTS, build, call_inputs, weight_bytes
    from benchmarks.generate.ways import WAYS, calls_of, device

    if device().type == "cpu":
        torch.set_num_threads(1)
    subject = SUBJECTS[model]
    weights = weight_bytes(build(model, arguments.small, "meta"))
    limit = int(weights * share)
    mix = calls_of(model, arguments.small, arguments.prompt, NEW_TOKENS)
    began = time.perf_counter()
    prepared, predicted = WAYS[way](model, arguments.small, limit, mix)
    row: dict[str, Any] = {
        "weights": weights,
        "limit": limit,
        "set_up": time.perf_counter() - began,
        "predicted": predicted,
        "torch": torch.__version__,
    }
    runner: Any = prepared
    if subject.use == "generate":
        vocabulary = runner.config.vocab_size
        generator = torch.Generator().manual_seed(0)
        prompt = torch.randint(2, vocabulary, (1, arguments.prompt), generator=generator)
        prompt = prompt.to(device())
        first = _seconds(lambda: _generate(runner, prompt, 1))
        longer = _seconds(lambda: _generate(runner, prompt, NEW_TOKENS))
        tokens = _generate(runner, prompt, NEW_TOKENS)
        row |= {
            "prompt_seconds": first,
            "token_seconds": (longer - first) / (NEW_TOKENS - 1),
            "tokens": tokens[0, -NEW_TOKENS:].tolist(),
        }
    else:
        inputs = call_inputs(model, arguments.small, device())

        def loop() -> None:
            with torch.no_grad():
                for _ in range(subject.repeats):
                    runner(**inputs)

        row |= {"call_seconds": _seconds(loop) / subject.repeats}
    return row


def _generate(model: Any, prompt: Any, new_tokens: int) -> Any:
    return model.generate(
        prompt, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False
    )


def _seconds(step: Any) -> float:
    """The median seconds of a step, after two of them."""
    import torch

    def synchronize() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    for _ in range(2):
        step()
    times = []
    for _ in range(REPEATS):
        synchronize()
        began = time.perf_counter()
        step()
        synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def run_llama_cpp(share: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """The best of llama.cpp's settings; `llama-bench` prints a JSON list of its tests.

    Settings whose peak exceeds the limit are left out: each is a process whose peak is sampled.
    """
    weights = arguments.gguf.stat().st_size
    limit = int(weights * share)
    context = context_bytes() or 0
    best: dict[str, Any] = {"error": "no setting keeps the limit"}
    for layers in arguments.layers:
        for threads in arguments.threads:
            command = [str(arguments.llama_bench), "-m", str(arguments.gguf), "-o", "json"]
            command += ["-ngl", str(layers), "-t", str(threads), "-p", str(arguments.prompt)]
            command += ["-n", str(NEW_TOKENS - 1), "-r", str(REPEATS)]
            with PeakSampler() as sampler:
                ran = subprocess.run(
                    command, capture_output=True, text=True, timeout=arguments.timeout, check=False
                )
            peak = sampler.bytes
            if ran.returncode or (peak is not None and peak - context > limit):
                continue
            found = _llama_row(json.loads(ran.stdout), arguments.prompt)
            if found["token_seconds"] < best.get("token_seconds", float("inf")):
                note = f"-ngl {layers}, {threads} threads"
                own_peak = None if peak is None else peak - context
                best = {**found, "error": "", "note": note, "own_peak": own_peak}
    return {"weights": weights, "limit": limit, **best}


def _llama_row(tests: list[dict[str, Any]], prompt: int) -> dict[str, float]:
    """Seconds of the prompt and of a token, from tokens per second."""
    prefill = next(test for test in tests if test["n_prompt"] and not test["n_gen"])
    decode = next(test for test in tests if test["n_gen"] and not test["n_prompt"])
    return {
        "prompt_seconds": prompt / prefill["avg_ts"],
        "token_seconds": 1 / decode["avg_ts"],
    }


def text_of(row: dict[str, Any]) -> str:
    name = f"{row['model']} at {row['limit_share']:g}, {row['way']}"
    if row["error"]:
        return f"{name}: {row['error']}"
    seconds = row.get("token_seconds", row.get("call_seconds"))
    return f"{name}: {milliseconds(seconds, 2)} ms"


def predicted_text(seconds: dict[str, float]) -> str | None:
    """The predicted milliseconds of each call; in older lines there are none."""
    return ", ".join(f"{name} {milliseconds(each, 2)}" for name, each in seconds.items()) or None


def print_table(rows: list[dict[str, Any]]) -> None:
    """All cells, with the peak against the limit."""
    table = Table(
        *("model", "limit", "way", "prompt ms", "token ms", "call ms", "peak GiB", "limit GiB"),
        *("within", "predicted ms", "set-up s", "note"),
    )
    for row in rows:
        head = row["model"], f"{row['limit_share']:g}", row["way"]
        if row["error"]:
            table.row(*head, *[None] * 8, row["error"])
            continue
        peak = row.get("own_peak", row["peak"])
        limited = row["way"] != "gpu" and peak is not None
        times = (row.get(f"{name}_seconds") for name in ("prompt", "token", "call"))
        table.row(
            *head,
            *(None if seconds is None else milliseconds(seconds, 2) for seconds in times),
            None if peak is None else f"{peak / 2**30:.2f}",
            f"{row['limit'] / 2**30:.2f}",
            None if not limited else "yes" if peak <= row["limit"] else "**no**",
            predicted_text(row.get("predicted") or {}),
            f"{row['set_up']:.1f}" if "set_up" in row else None,
            row.get("note"),
        )


if __name__ == "__main__":
    main()
