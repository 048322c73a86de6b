"""What all benchmarks share: arguments, files of results that runs resume from, and tables.

Results are lines of JSON. Each line says which commit, machine and day it is from; a run whose line
is in the file already is not repeated, so that a benchmark can be stopped and continued.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    Row = dict[str, Any]

ROOT = Path(__file__).parent.parent


# -- arguments ---------------------------------------------------------------------------------


class BenchmarkParser(argparse.ArgumentParser):
    """A parser that shows a script's docstring, and wants help for every option."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings
        )

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an option; its default is shown behind its help."""
        if not settings.get("help"):
            raise ValueError(f"option {names} has no help")
        default = settings.get("default")
        shown = default is not None and default is not False and default != ""
        if shown and settings["help"] not in (argparse.SUPPRESS, "show this help message and exit"):
            settings["help"] += f" (default: {_text_of(default)})"
        return super().add_argument(*names, **settings)


def make_parser(doc: str, module: str) -> BenchmarkParser:
    """The parser of the script with this docstring; `module` is its `__spec__.name`."""
    return BenchmarkParser(description=doc, prog=f"python -m {module}")


def _text_of(default: object) -> str:
    if isinstance(default, range):
        return f"{default.start}:{default.stop}"
    if isinstance(default, (list, tuple)):
        return ",".join(str(item) for item in default)
    if isinstance(default, Path) and default.is_relative_to(ROOT):
        default = default.relative_to(ROOT)
    return str(default).replace("%", "%%")


def seed_range(text: str) -> range:
    """`0:200` is seeds 0 to 199."""
    first, last = text.split(":")
    return range(int(first), int(last))


def name_list(text: str) -> list[str]:
    """Names with commas between them."""
    return [name for name in text.split(",") if name]


def float_list(text: str) -> list[float]:
    """Numbers with commas between them."""
    return [float(part) for part in name_list(text)]


def int_list(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    return [int(part) for part in name_list(text)]


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="random seed")


def add_results(parser: argparse.ArgumentParser, default: str) -> None:
    """`--out`, the file of results."""
    parser.add_argument(
        "--out", type=Path, default=Path(default), help="file of results, which a run continues"
    )


def add_jobs(parser: argparse.ArgumentParser, default: int = 2) -> None:
    """`--jobs`, processes at once."""
    parser.add_argument(
        "--jobs",
        type=int,
        default=default,
        help="processes at once; 0 only prints what is in --out",
    )


def chosen(
    parser: argparse.ArgumentParser, names: Sequence[str], known: Iterable[str]
) -> list[str]:
    """The names, all of which must be known; the parser ends the program otherwise."""
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{unknown[0]!r} is not known: expected some of {', '.join(known)}")
    return list(names)


# -- results -----------------------------------------------------------------------------------


@cache
def provenance() -> Row:
    """Commit, machine and day, as each line of results has them."""
    return {
        "commit": current_commit(),
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
    }


def machine() -> str:
    """This machine in a few words: processor, cores, GPU, Python."""
    words = [_processor(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    torch = sys.modules.get("torch")  # only where the benchmark needs it itself
    if torch is not None:
        words.append(f"torch {torch.__version__}")
        if torch.cuda.is_available():
            words.append(torch.cuda.get_device_name())
    return ", ".join(words)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def current_commit() -> str:
    """The commit of this checkout; a copy without git's folder is told by `BENCHMARK_COMMIT`."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("BENCHMARK_COMMIT", "unknown")
    return ran.stdout.strip()


class ResultFile:
    """Lines of JSON, one for each run.

    Args:
        key: What distinguishes a run from others, given its line.
    """

    def __init__(self, path: Path, key: Callable[[Row], Hashable]) -> None:
        self.path, self._key = path, key
        self.rows = read_rows(path)
        self._keys = {key(row) for row in self.rows}

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def append(self, row: Row) -> Row:
        """Add a run's line, with commit, machine and date."""
        row = {**row, **provenance()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)
        self._keys.add(self._key(row))
        return row


def read_rows(path: Path) -> list[Row]:
    """The lines of a file, none if there is no file; a last line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


class Job(Protocol):
    """What `run_jobs` runs in another process: a call gives the line of its results."""

    @property
    def key(self) -> Hashable:
        """What distinguishes it from others: that of its line."""

    def __call__(self) -> Row:
        """Run it."""


def run_jobs(
    jobs: Sequence[Job],
    results: ResultFile,
    at_once: int,
    describe: Callable[[Row], str],
    skipped: tuple[type[Exception], ...] = (),
    initializer: Callable[..., None] | None = None,
    initargs: tuple[Any, ...] = (),
) -> list[Row]:
    """All lines of the file, after the jobs that are not in it have run.

    Args:
        at_once: Processes, each with one thread for matrix products; 0 runs nothing.
        describe: What is printed when a job is done.
        skipped: Errors of a job that are printed, and the others go on.
    """
    waiting = [job for job in dict.fromkeys(jobs) if job.key not in results]
    if not at_once or not waiting:
        return results.rows
    # Processes read this as they begin: small networks are fastest with one thread.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    began = time.perf_counter()
    context = get_context("spawn")
    with ProcessPoolExecutor(at_once, context, initializer, initargs) as pool:
        futures = {pool.submit(job): job for job in waiting}
        try:
            for future in as_completed(futures):
                try:
                    row = results.append(future.result())
                except skipped as error:
                    print(f"{futures[future].key}: {error}", flush=True)
                    continue
                print(f"{time.perf_counter() - began:5.0f} s: {describe(row)}", flush=True)
        except (
            BaseException
        ):  # an interrupt, or a job that failed: the others wait for the next run
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results.rows


# -- tables ------------------------------------------------------------------------------------


class Table:
    """A Markdown table that is printed row by row, as figures come in.

    Args:
        title: A heading above it.
    """

    def __init__(self, *columns: str, title: str = "") -> None:
        self.columns = columns
        if title:
            print(f"\n**{title}**\n")
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)

    def row(self, *cells: object) -> None:
        """Print one row; nothing stands for None."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        print(f"| {' | '.join('' if cell is None else str(cell) for cell in cells)} |", flush=True)


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; not a number if there is no value."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def milliseconds(seconds: float, digits: int = 3) -> str:
    return f"{1e3 * seconds:.{digits}f}"
