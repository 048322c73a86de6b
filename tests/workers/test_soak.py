"""A long run of batches, problems and lost workers: memory of driver and workers stays flat.

PLACEWRIGHT_SOAK_SECONDS=600 python -m pytest -m slow tests/workers/test_soak.py
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from worker_tasks import CountedProblem, Fail, Pid, ProblemLoads

import placewright as pw
from placewright.errors import PlanError
from placewright.workers import open_workers

SECONDS = float(os.environ.get("PLACEWRIGHT_SOAK_SECONDS", "600"))
GROWTH = 1.1  # of the middle of the run to its end; a leak of one batch a round is 10 times that


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["processes:2", "ray:auto"])
def test_memory_and_open_files_stay_flat(spec, request):
    if spec.startswith("ray"):
        request.getfixturevalue("ray_cluster")
    rng = np.random.default_rng(0)
    cluster = pw.Cluster.parse("4xP100+cpu")
    problems = [
        pw.Problem(pw.zoo.load(f"layered:ops=1000,seed={seed}"), cluster) for seed in range(6)
    ]
    samples: list[tuple[float, int, int, int]] = []  # seconds, driver, largest worker, files
    rounds, began = 0, time.monotonic()
    with open_workers(spec) as workers:
        while (seconds := time.monotonic() - began) < SECONDS:
            problem = problems[rounds % len(problems)]
            rows = problem.legalize(rng.integers(0, 5, size=(64, problem.arrays.ops)))
            pw.judge(problem, rows, workers=workers)
            workers.map(ProblemLoads(), range(4), CountedProblem("fresh"))
            with pytest.raises(PlanError):
                workers.map(Fail({0: "plan"}), [0])
            rounds += 1
            pids = set(workers.map(Pid(0.01), range(16)))
            if rounds % 20 == 0:
                worker = max(map(resident_bytes, pids))
                samples.append((seconds, resident_bytes(os.getpid()), worker, descriptors()))
            if rounds % 400 == 0:
                os.kill(min(pids), signal.SIGKILL)
    assert len(samples) >= 10, f"{rounds} rounds are too few to see a trend"
    half = len(samples) // 2
    early, late = samples[half - half // 2 : half + 1], samples[-(half // 2) - 1 :]
    for column, name in ((1, "driver"), (2, "worker")):
        before = float(np.median([sample[column] for sample in early]))
        after = float(np.median([sample[column] for sample in late]))
        print(f"{spec}: {name} {before / 2**20:.1f} MiB, later {after / 2**20:.1f} MiB")
        assert after < GROWTH * before, f"the {name} grows: {samples}"
    print(f"{spec}: {rounds} rounds, {workers.lost} workers lost")
    assert max(sample[3] for sample in late) <= max(sample[3] for sample in early) + 4
