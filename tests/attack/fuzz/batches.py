"""Runs a fuzzer's seeds in a child process with limits on time and memory.

`python -m attack.fuzz.batches MODULE SEED COUNT SECONDS STATE` is the child. It notes the seed that
it tries in STATE, memory that both processes share, so that the parent knows which seed crashed or
hung it.
"""

from __future__ import annotations

import importlib
import mmap
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from attack.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parent.parent.parent
sys.path += [str(TESTS / "frontends")]  # models and workloads that the frontends' tests share
MAX_CPU_SECONDS = 10.0
"""CPU time of one input: other processes may take the clock's."""
MAX_MEMORY = 2 * 2**30
OUTCOMES = ("accepted", "refused", "findings")
_STATE = struct.Struct(f"<q{len(OUTCOMES)}q")  # the seed being tried, and counts
_UNLIMITED = 2**62


def attack_of(module: str) -> Callable[[int, float], Tally]:
    """The function `attack` of a fuzzer."""
    return lambda first_seed, seconds: try_batch(module, first_seed, seconds)


def try_batch(module: str, first_seed: int, seconds: float, most: int = _UNLIMITED) -> Tally:
    """Try seeds in children until the time is up, or as many as `most`."""
    tally = Tally(first_seed, first_seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end and tally.tried < most:
        _run_child(module, tally, end - time.monotonic(), most - tally.tried)
    return tally


def _run_child(module: str, tally: Tally, seconds: float, most: int) -> None:
    """Run one child to its end, and add what it did."""
    with tempfile.TemporaryDirectory() as folder:
        state_path = Path(folder) / "state"
        state_path.write_bytes(_STATE.pack(tally.next_seed, *([0] * len(OUTCOMES))))
        words = [module, tally.next_seed, most, seconds, state_path]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        output = Path(folder) / "output"
        with output.open("w") as stream:
            child = subprocess.Popen(
                [sys.executable, "-m", "attack.fuzz.batches", *map(str, words)],
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=environment,
                cwd=folder,
            )
            reason = _watch(child, state_path)
            findings = child.communicate()[0].splitlines()
        seed, *counts = _STATE.unpack(state_path.read_bytes())
        tally.counts += Counter(dict(zip(OUTCOMES, counts, strict=True)))
        tally.findings += findings
        if reason or child.returncode:
            last_lines = " | ".join(output.read_text().splitlines()[-3:])
            reason = reason or f"exit status {child.returncode}: {last_lines[-300:]}"
            tally.findings.append(f"seed {seed}: {reason}")
            tally.counts["findings"] += 1
            seed += 1
        tally.next_seed = seed


def _watch(child: subprocess.Popen[str], state_path: Path) -> str:
    """Wait for the child; if one seed takes too long, kill it and say so."""
    seed, since = None, 0.0
    while child.poll() is None:
        time.sleep(0.1)
        now = _STATE.unpack(state_path.read_bytes())[0]
        cpu_seconds = _cpu_seconds(child.pid)
        if now != seed:
            seed, since = now, cpu_seconds
        elif cpu_seconds - since > MAX_CPU_SECONDS:
            child.kill()
            child.wait()
            return f"it takes more than {MAX_CPU_SECONDS:g} seconds"
    return ""


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(module: str, first_seed: int, most: int, seconds: float, state_path: str) -> None:
    """The child: try seeds, and print a line for each finding."""
    attempt = importlib.import_module(module).attempt
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * mmap.PAGESIZE + MAX_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    counts = dict.fromkeys(OUTCOMES, 0)
    end = time.monotonic() + seconds
    seed = first_seed
    with open(state_path, "r+b") as file, mmap.mmap(file.fileno(), _STATE.size) as state:
        while time.monotonic() < end and seed < first_seed + most:
            state[:] = _STATE.pack(seed, *counts.values())
            try:
                counts[attempt(seed)] += 1
            except Exception as error:
                counts["findings"] += 1
                print(f"seed {seed}: {type(error).__name__}: {_first_words(error)}", flush=True)
            seed += 1
        state[:] = _STATE.pack(seed, *counts.values())


def _first_words(error: Exception) -> str:
    """An error's text, and the line of ours that it comes from."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "placewright" in code.co_filename:
            where = f" ({Path(code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return ascii(" ".join(str(error).split())[:200])[1:-1] + where


if __name__ == "__main__":
    name, seed_text, most_text, seconds_text, path_text = sys.argv[1:]
    _serve(name, int(seed_text), int(most_text), float(seconds_text), path_text)
