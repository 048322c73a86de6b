"""How long capturing each network of the zoo takes, and how much memory.

    python -m benchmarks.capture.networks inception-v3:size=test gpt2

Without names: all networks at full size. Each is captured in a process of its own; nothing is read
from the cache or written to it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from benchmarks.common import Table, make_parser
from placewright.zoo.networks import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Sequence

MORE = ["llama-8b:mode=decode,context=4096", "llama-8b:training=yes", "moe:mode=decode"]
CHILD = """
import json, resource, sys, time
import torch
torch.set_num_threads(1)
import placewright as pw
start = time.perf_counter()
graph = pw.zoo.load(sys.argv[1])
seconds = time.perf_counter() - start
print(json.dumps({
    "ops": len(graph), "tensors": sum(len(op.outputs) for op in graph.ops),
    "weights": sum(sum(op.outputs) for op in graph.ops if op.kind == "weight"),
    "flops": sum(op.flops for op in graph.ops), "seconds": seconds,
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("networks", nargs="*", help="networks of the zoo; all if none is named")
    arguments = parser.parse_args(argv)
    table = Table(
        *("network", "ops", "tensors", "weights, MiB", "FLOPs", "seconds", "peak memory, MiB")
    )
    for name in arguments.networks or [*NETWORKS, *MORE]:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-c", CHILD, name]
            ran = subprocess.run(
                command, capture_output=True, text=True, env={"XDG_CACHE_HOME": cache}, check=False
            )
        if ran.returncode:
            table.row(name, ran.stderr.strip().splitlines()[-1], *[None] * 5)
            continue
        row = json.loads(ran.stdout.splitlines()[-1])
        table.row(
            name,
            f"{row['ops']:,}",
            f"{row['tensors']:,}",
            f"{row['weights'] / 2**20:,.0f}",
            f"{row['flops']:.3g}",
            f"{row['seconds']:.1f}",
            f"{row['rss'] / 2**20:,.0f}",
        )


if __name__ == "__main__":
    main()
