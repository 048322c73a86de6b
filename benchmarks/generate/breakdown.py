"""Time to first token of a Llama with random weights, by stage.

    python -m benchmarks.generate.breakdown                    16 small layers, two CPU workers
    python -m benchmarks.generate.breakdown --ways plan        `profile`, `solve` and `apply`
    python -m benchmarks.generate.breakdown --layers 4 --hidden 64

`place` captures prefill and decode with their caches in a dry run; `place again` is a second start,
which takes the plan from the store. Each of the two workers may have three quarters of the weights,
so that both are used. `plan` is what came before `place`: a plan for one token without a cache,
measured in a child process with random weights, then `apply` and `generate`. CPU seconds count all
threads of the process, and say more than seconds on a machine that others use. Traces take as long
for narrow layers as for wide ones. Each way is a process of its own, and begins with an empty
cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, ResultFile, Table, make_parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAYS = ("plan", "place", "place again")
FIRST_TOKEN = "first token"
WORKSPACE = 16 * 2**20
"""Bytes of each worker's limit besides weights."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--ways", nargs="+", choices=WAYS, default=WAYS, help="which, in this order")
    option("--layers", type=int, default=16, help="layers of the Llama")
    option("--hidden", type=int, default=512, help="its hidden size")
    option("--prompt", type=int, default=512, help="tokens of the prompt")
    option("--budget", type=float, default=5.0, help="seconds of the search")
    option("--out", type=Path, default=Path("out/generate-breakdown.jsonl"), help="file of rows")
    option("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        print(json.dumps(run_way(arguments.child, arguments)))
        return
    results = ResultFile(arguments.out, lambda row: None)
    table = Table("way", "stage", "seconds", "CPU seconds")
    with tempfile.TemporaryDirectory() as cache:
        for way in arguments.ways:
            row = results.append(run_child(way, cache, arguments))
            totals = [0.0, 0.0]
            for stage, *figures in row["stages"]:
                table.row(way, stage, *(f"{figure:.1f}" for figure in figures))
                totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
                if stage == FIRST_TOKEN:
                    table.row(way, "to the first token", *(f"{total:.1f}" for total in totals))
            table.row(way, "in all", *(f"{total:.1f}" for total in totals))


def run_child(way: str, cache: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One way in a process of its own; `place again` finds the cache of `place`."""
    command = [sys.executable, "-m", __spec__.name, "--child", way]
    for name in ("layers", "hidden", "prompt", "budget"):
        command += [f"--{name}", str(getattr(arguments, name))]
    folder = Path(cache) / ("plan" if way == "plan" else "place")
    env = os.environ | {"XDG_CACHE_HOME": str(folder)}
    ran = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return dict(json.loads(ran.stdout.strip().splitlines()[-1]))


class Stages:
    """Seconds and CPU seconds of each stage."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float]] = []
        self.restart()

    def restart(self) -> None:
        """Begin a stage."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end(self, name: str) -> None:
        """End a stage; the next one begins."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.rows.append((name, wall, cpu))
        self.restart()


def run_way(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    stages = Stages()
    import torch
    import transformers

    import placewright as pw

    model = build_llama(arguments)
    stages.end("imports, the model")
    prompt = torch.randint(2, 100, (1, arguments.prompt))
    if way == "plan":
        for name in _plan_stages(model, arguments):
            stages.end(name)
    else:
        size = sum(weight.nbytes for weight in model.parameters())
        limit = size * 3 // 4 + WORKSPACE
        pw.place(
            model,
            limits={"cpu0": limit, "cpu1": limit},
            workload=pw.Generate(prompt=arguments.prompt, new_tokens=32),
            cluster="here:workers=2",
            budget=arguments.budget,
            store=Path(os.environ["XDG_CACHE_HOME"]) / "store.sqlite",  # of this benchmark alone
            notify=lambda line: stages.end(line.partition(":")[0]),
        )
    model.generate(prompt, max_new_tokens=1, do_sample=False)
    stages.end(FIRST_TOKEN)
    model.generate(prompt, max_new_tokens=3, do_sample=False)
    stages.end("3 tokens")
    model.generate(prompt[:, :-3], max_new_tokens=3, do_sample=False)
    stages.end("3 tokens of another length")
    model.generate(prompt.repeat(1, 2), max_new_tokens=3, do_sample=False)
    stages.end("3 tokens in another bucket")
    return {
        "way": way,
        "layers": arguments.layers,
        "hidden": arguments.hidden,
        "prompt": arguments.prompt,
        "stages": stages.rows,
        "graphs": len(model.placed.graphs) if hasattr(model, "placed") else 0,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def _plan_stages(model: Any, arguments: argparse.Namespace) -> Iterator[str]:
    """A plan for one token without a cache, as before `place`; yields each stage's name."""
    import torch

    import placewright as pw
    from placewright.runtime.sample_model import load_model

    kwargs = {"input_ids": torch.zeros(1, 1, dtype=torch.long), "use_cache": False}
    profile = pw.profile(model, (), kwargs)
    yield "captured, measured"
    result = pw.solve(profile.problem(), budget=arguments.budget)
    yield "plan"
    with torch.device("meta"):
        empty = build_llama(arguments)
    load_model(lambda: (empty, (), kwargs))
    yield "weights filled"
    pw.apply(result, model)
    yield "weights"


def build_llama(arguments: argparse.Namespace) -> Any:
    """A Llama with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=8000,
        hidden_size=arguments.hidden,
        intermediate_size=arguments.hidden * 11 // 4,
        num_hidden_layers=arguments.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


if __name__ == "__main__":
    main()
