"""How long and how much memory capturing each network of the zoo takes, in a process of its own.

`python benchmarks/capture.py [NAME …]`; all networks at full size without names. Nothing is read
from or written to the cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from placewright.zoo.networks import NETWORKS

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


def main() -> None:
    names = sys.argv[1:] or [*NETWORKS, *MORE]
    print(
        f"{'network':36} {'ops':>7} {'tensors':>8} {'weights':>11} {'FLOPs':>9} {'s':>6} {'RSS':>8}"
    )
    for name in names:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-c", CHILD, name]
            ran = subprocess.run(
                command, capture_output=True, text=True, env={"XDG_CACHE_HOME": cache}, check=False
            )
        if ran.returncode:
            print(f"{name:36} failed: {ran.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        row = json.loads(ran.stdout.splitlines()[-1])
        print(
            f"{name:36} {row['ops']:7,} {row['tensors']:8,} {row['weights'] / 2**20:7,.0f} MiB "
            f"{row['flops']:9.3g} {row['seconds']:6.1f} {row['rss'] / 2**20:4,.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
