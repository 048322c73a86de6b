"""Runs a function on several ranks: real processes, gloo on the loopback interface.

Processes are forked from a server that has imported PyTorch once, so that a test takes a fraction
of a second of its own. What a function is called with and returns passes by pickle: that is between
a test and its processes, not between ranks.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which a test gives its processes up: it is for a machine that is very busy."""

_context = multiprocessing.get_context("forkserver")


@functools.cache
def _start_server() -> None:
    """Start the server; Python 3.11 does not tell it where modules are, so the environment does."""
    _context.set_forkserver_preload(["rank_preload"])
    previous = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if previous is not None:
            os.environ["PYTHONPATH"] = previous


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: with a value, or an error's type and text; `seconds` is when."""

    value: Any = None
    error: str = ""
    kind: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def _run(job: Callable[..., Any], rank: int, world: int, store: str, pipe: Any, args: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"LOCAL_WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}  # as torchrun does
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    del os.environ["GLOO_SOCKET_IFNAME"]
    try:
        value = job(rank, world, *args)
        outcome = Outcome(value, "", "", time.monotonic(), time.process_time())
    except BaseException as error:
        if os.environ.get("RANK_TRACES"):
            traceback.print_exc()
        outcome = Outcome(None, str(error), type(error).__name__, time.monotonic())
    pipe.send(outcome)
    pipe.close()


@dataclass
class RankProcesses:
    """The processes of a job."""

    processes: list[Any]
    pipes: list[Any]
    folder: tempfile.TemporaryDirectory[str]

    def kill(self, rank: int, signal_number: int = signal.SIGKILL) -> None:
        os.kill(self.processes[rank].pid, signal_number)

    def outcomes(self) -> list[Outcome | None]:
        """What each rank ended with, in order; None: it said nothing. All processes have ended."""
        end, outcomes = time.monotonic() + PATIENCE, []
        try:
            for pipe in self.pipes:
                try:
                    has_ended = pipe.poll(max(0.0, end - time.monotonic()))
                    outcomes.append(pipe.recv() if has_ended else None)
                except EOFError:
                    outcomes.append(None)
            for process in self.processes:
                process.join(max(0.0, end - time.monotonic()))
            codes = [process.exitcode for process in self.processes]
            assert set(codes) <= {0, -signal.SIGKILL}, f"ranks hang or crash: {codes}"
        finally:
            for process in self.processes:
                if process.exitcode is None:
                    process.kill()
                    process.join()
            self.folder.cleanup()
        return outcomes


def start_ranks(job: Callable[..., Any], world: int, *args: Any) -> RankProcesses:
    """Start a job, a function of a module, on each rank."""
    _start_server()
    folder = tempfile.TemporaryDirectory(prefix="ranks-")
    store = str(Path(folder.name) / "store")
    processes, pipes = [], []
    for rank in range(world):
        receiver, sender = _context.Pipe(duplex=False)
        process = _context.Process(target=_run, args=(job, rank, world, store, sender, args))
        process.start()
        sender.close()
        processes.append(process)
        pipes.append(receiver)
    return RankProcesses(processes, pipes, folder)


def run_ranks(job: Callable[..., Any], world: int, *args: Any) -> list[Any]:
    """What a job returns on each rank; an error of any fails the test."""
    outcomes = start_ranks(job, world, *args).outcomes()
    errors = [
        f"rank {rank}: {'it ended without a word' if each is None else each.error}"
        for rank, each in enumerate(outcomes)
        if each is None or each.error
    ]
    assert not errors, errors
    if os.environ.get("RANK_TRACES"):
        print("CPU seconds", [each.cpu_seconds for each in outcomes if each is not None])
    return [each.value for each in outcomes if each is not None]
