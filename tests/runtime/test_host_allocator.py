"""Freed memory is kept: making the same tensor again touches no new page."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytest.importorskip("torch")

CODE = """
import os, resource, threading, torch
from placewright.runtime.host_allocator import retain_freed_memory

def faults():
    for _ in range(20):
        torch.empty(10 << 20).zero_()  # 40 MiB: 10,240 pages
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.empty(10 << 20).zero_()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, flush=True)

child = os.fork()  # before any large block, and PyTorch is loaded once
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert retain_freed_memory() and retain_freed_memory()
thread = threading.Thread(target=faults)
thread.start()
thread.join()
"""

WORKER = """
import resource, numpy as np, torch
from placewright import Cluster, Plan, Problem
from placewright.runtime.program.program import build_program
from placewright.runtime.executor import Executor

torch.set_num_threads(1)
model, x = torch.nn.Sequential(*[torch.nn.ReLU(), torch.nn.Tanh()] * 2).eval(), torch.ones(10 << 20)
program = build_program(model, (x,))
problem = Problem(program.graph, Cluster.parse("cpu"))
with Executor(program, model, Plan.of(problem, np.zeros(len(program.graph)))) as run:
    for _ in range(4):
        run(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        run(x)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


ARENAS = """
import threading

def other():
    made = bytearray(1000)  # from an arena of its own
    over.wait()

over = threading.Event()
for _ in range(12):
    threading.Thread(target=other, daemon=True).start()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
@pytest.mark.parametrize(
    "before",
    [
        pytest.param("", id="alone"),
        pytest.param(ARENAS, id="beside threads with arenas", marks=pytest.mark.slow),
    ],
)
def test_a_worker_reuses_its_memory(before):
    code = [sys.executable, "-c", before + WORKER]
    ran = subprocess.run(code, check=True, capture_output=True, text=True)
    # Pages of a tensor: four steps make sixteen; a thread that is late may need a few more at once.
    assert int(ran.stdout) < 8 * 10_240


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_retained_memory_is_not_requested_again():
    ran = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    left, kept = (int(line) for line in ran.stdout.split())
    assert left > 5 * 10_000
    assert kept < 1000
