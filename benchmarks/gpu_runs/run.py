"""Run slices of what a GPU must show, within so many minutes, and go on in the next call.

    python -m benchmarks.gpu_runs.run tests offload --minutes 9 --out FOLDER
    python -m benchmarks.gpu_runs.run generate-llama --minutes 9 --out FOLDER --earlier FOLDER
    python -m benchmarks.gpu_runs.run all --dry-run          what would be run, and what is done
    python -m benchmarks.gpu_runs.run all --small --minutes 9 --out out/gpu-small

Commands run one after the other, the most important of a slice first, and builds beside them. One
that exceeds its time is stopped; one that does not fit into the minutes that are left is left out.
FOLDER has raw lines, logs, states and a table after every command, in at most eight files. What is
done is not run again where `--work` is still there, or where `--earlier` names such a FOLDER. What
`benchmarks.gpu_runs.prepare` made is in `--inputs`. docs/dev/gpu-runs.md says what shows what.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks.common import ROOT, make_parser, name_list
from benchmarks.gpu_runs.commands import BUILDS, SETUP, SLICES, Command
from benchmarks.gpu_runs.records import Records, last_line, table_text, tail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SAVE_SECONDS = 20.0
GRACE_SECONDS = 15.0
"""Less than its limit is what a command hears of, to end by itself."""
DONE = ("done", "failed")
"""States after which a command is not run again."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("slices", nargs="+", choices=[*SLICES, "all"], help="what to run, in this order")
    option("--minutes", type=float, default=9.0, help="after which nothing runs any more")
    option("--out", type=Path, help="folder of results; else out/gpu-results or gpu-results-small")
    option("--earlier", type=Path, nargs="*", default=[], help="results of calls before this one")
    option("--work", type=Path, help="folder of all files; else out/gpu-work or gpu-work-small")
    option("--inputs", type=Path, default=ROOT / "out" / "gpu-inputs", help="made by `prepare`")
    option("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes of the attack")
    option("--only", type=name_list, default=[], help="only commands whose names begin so")
    option("--retry", action="store_true", help="run again what has failed in another call")
    option("--small", action="store_true", help="small forms, also without a GPU")
    option("--dry-run", action="store_true", help="print what would be run")
    arguments = parser.parse_args(argv)
    end = "-small" if arguments.small else ""
    for name, folder in (("out", "gpu-results"), ("work", "gpu-work"), ("inputs", "gpu-inputs")):
        chosen = getattr(arguments, name) or ROOT / "out" / f"{folder}{end}"
        setattr(arguments, name, chosen.absolute())
    records = Records(arguments.work, arguments.out)
    records.restore([*arguments.earlier, arguments.out])
    session = Session(arguments, records)
    commands = chosen_commands(arguments)
    if arguments.dry_run:
        for command in commands:
            state = records.runs.get(command.name, {}).get("state", "")
            words = shlex.join(session.words_of(command, command.minutes))
            print(f"{command.name}: {command.minutes:g} min {state}\n    {words}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    with contextlib.ExitStack() as stack:
        stack.callback(session.stop_all)
        session.run(commands)
    print(table_text(session.table()))
    left = [command.name for command in commands if not session.is_settled(command)]
    print(f"still to run: {', '.join(left) or 'nothing'}")
    return 0


def chosen_commands(arguments: Any) -> list[Command]:
    """The commands of the slices after the builds that they need, and after the setup."""
    names = [*SLICES] if "all" in arguments.slices else list(dict.fromkeys(arguments.slices))
    listed = [command for name in names for command in SLICES[name]]
    if arguments.only:  # builds that are named are wanted for a later call
        begins = tuple(arguments.only)
        listed = [each for each in listed if each in BUILDS or each.name.startswith(begins)]
    needed = {name for command in listed for name in command.needs}
    builds = [build for build in BUILDS if build.name in needed or build in listed]
    commands = list(dict.fromkeys([SETUP, *builds, *listed]))
    return [each for each in commands if not arguments.small or each.small is not None]


@dataclass
class Process:
    """A command that runs."""

    command: Command
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float
    end: float


class Session:
    """One call: commands within its minutes."""

    def __init__(self, arguments: Any, records: Records) -> None:
        self.arguments, self.records = arguments, records
        self.began = time.monotonic()
        self.end = self.began + 60 * arguments.minutes
        self.running: list[Process] = []
        self.ended: list[str] = []
        self.saved = self.began

    # -- which commands ------------------------------------------------------------------------

    def run(self, commands: Sequence[Command]) -> None:
        """Run all that fits."""
        waiting = [command for command in commands if not self.is_settled(command)]
        while waiting:
            if self.has_failed(SETUP):
                break
            command = next(self.ready(waiting), None)
            if command is None:
                if not self.running:
                    break
                self.wait(self.running[0])
                continue
            waiting.remove(command)
            process = self.start(command)
            if not command.is_background:
                self.wait(process)
        for process in list(self.running):
            self.wait(process)

    def has_failed(self, command: Command) -> bool:
        """Whether it has run in this call, without success."""
        return command.name in self.ended and self.state_of(command.name) != "done"

    def is_settled(self, command: Command) -> bool:
        """Whether its result is there; the setup belongs to every call."""
        run = self.records.runs.get(command.name)
        if run is None or (command is SETUP and command.name not in self.ended):
            return False
        if command in BUILDS and not self.arguments.small:
            made = [self.arguments.work / path for path in BUILT[command.name]]
            return run["state"] == "done" and all(path.exists() for path in made)
        if self.arguments.retry and command.name not in self.ended:
            return run["state"] == "done"
        return run["state"] in DONE

    def ready(self, waiting: Sequence[Command]) -> Iterator[Command]:
        """Commands that can be begun now, in order."""
        running = {process.command.name for process in self.running}
        pending = running | {command.name for command in waiting}
        for command in waiting:
            states = [self.state_of(name) for name in command.needs if name not in pending]
            is_free = not pending & set(command.needs) and all(each == "done" for each in states)
            if is_free and command.is_alone and self.running:
                is_free = False
            if is_free and self.end - time.monotonic() >= 60 * self.expected(command):
                yield command

    def state_of(self, name: str) -> str:
        return str(self.records.runs.get(name, {}).get("state", "not run"))

    def expected(self, command: Command) -> float:
        return 0.05 if self.arguments.small else command.expected

    # -- processes -----------------------------------------------------------------------------

    def words_of(self, command: Command, minutes: float) -> list[str]:
        """What is run, with this much time."""
        words = command.small if self.arguments.small and command.small else command.words
        seconds = max(5.0, 60 * minutes - GRACE_SECONDS)
        work = self.arguments.work
        values = {"rows": work / "rows", "work": work, "inputs": self.arguments.inputs}
        values |= {"jobs": self.arguments.jobs, "seconds": f"{seconds:.0f}"}
        filled = [
            word.format(**values, minutes=f"{seconds / 60:.2f}") for word in shlex.split(words)
        ]
        return [sys.executable, *filled]

    def start(self, command: Command) -> Process:
        now = time.monotonic()
        end = min(now + 60 * command.minutes, self.end)
        log = self.records.log_path(command.name).open("wb")
        commit = self.arguments.inputs / "commit.txt"
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        if commit.exists():
            env.setdefault("BENCHMARK_COMMIT", commit.read_text().strip())
        words = self.words_of(command, (end - now) / 60)
        nice = ["nice", "-n", "19"] if command.is_background else []
        print(f"{now - self.began:5.0f} s: {command.name}", flush=True)
        started = subprocess.Popen(
            [*nice, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=command.folder,
            env=env,
            start_new_session=True,
        )
        process = Process(command, started, log, now, end)
        self.running.append(process)
        return process

    def wait(self, process: Process) -> None:
        """Until a process has ended; those in the background are looked after meanwhile."""
        while process in self.running:
            for each in list(self.running):
                if each.process.poll() is not None:
                    self.finish(each, was_stopped=False)
                elif time.monotonic() >= each.end:
                    stop(each.process)
                    self.finish(each, was_stopped=True)
            if time.monotonic() - self.saved > SAVE_SECONDS:
                self.records.save()
                self.saved = time.monotonic()
            time.sleep(0.05)

    def finish(self, process: Process, was_stopped: bool) -> None:
        """Record what came of a process."""
        self.running.remove(process)
        process.log.close()
        command, path = process.command, self.records.log_path(process.command.name)
        code = process.process.returncode
        state = state_after(command, code, was_stopped, process.end < self.end, tail(path))
        seconds = time.monotonic() - process.began
        self.ended.append(command.name)
        self.records.add(
            {
                "command": command.name,
                "seconds": round(seconds, 1),
                "exit": code,
                "state": state,
                "last_line": last_line(path),
                "small": self.arguments.small,
            }
        )
        self.records.keep(command.name, command.keep)
        print(f"{time.monotonic() - self.began:5.0f} s: {command.name}: {state}", flush=True)

    def stop_all(self) -> None:
        """Leave nothing running."""
        for process in list(self.running):
            stop(process.process)
            self.finish(process, was_stopped=True)

    def table(self) -> list[dict[str, Any]]:
        """The lines of this call, in the order in which commands ended."""
        return [self.records.runs[name] for name in dict.fromkeys(self.ended)]


BUILT = {
    "llama.cpp": ["llama.cpp/llama-bench"],
    "GGUF": ["llama.cpp/llama.gguf"],
    "other version": ["other/placewright"],
}
"""What builds leave in the work folder, which another machine may lack."""


def state_after(command: Command, code: int, was_stopped: bool, had_all: bool, log: str) -> str:
    """`done`, `failed`, or `unfinished`: there is more to do in another call."""
    if was_stopped:
        return "failed" if had_all and not command.has_rest else "unfinished"
    if command.unfinished and re.search(command.unfinished, log):
        return "unfinished"
    return "failed" if code else "done"


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
    process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
