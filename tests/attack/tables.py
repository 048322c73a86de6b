"""The tables of the attack under one kind of plan, in several processes, with a tally at the end.

    python -m attack.tables --kind gpu --jobs 8       in `tests/`; minutes on a machine with a GPU
    python -m attack.tables --kind streaming decoders

Parts are `odd_uses`, `training_loops` and `decoders`. A use, loop or decoder is `equal`, `refused`
(as the table allows), `skipped` (it draws random numbers, or makes no sense on a GPU) or `differ`;
one that ends its process, or does not answer in time, differs. Lines go to `--out`, and what is in
that file is not tried again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from attack import decoders, training_loops
from attack.odd_uses import table
from attack.odd_uses.harness import Verdict, is_skipped, judge
from attack.odd_uses.placing import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Item = tuple[str, str]
    """A part and a name in it."""

PARTS = ("training_loops", "decoders", "odd_uses")
ANSWER_SECONDS = 180.0
TESTS = Path(__file__).parent.parent


def items_of(parts: Iterable[str]) -> list[Item]:
    """Everything in these parts, what takes longest first."""
    loops = [" ".join(pair) for pair in training_loops.PAIRS]
    names = {
        "training_loops": loops,
        "decoders": list(decoders.DECODERS),
        "odd_uses": list(table.CASES),
    }
    return [(part, name) for part, found in names.items() if part in parts for name in found]


def try_item(part: str, name: str, kind: str) -> Verdict:
    """One use, loop or decoder under a kind of plan."""
    if part == "odd_uses":
        case = table.CASES[name]
        return Verdict("skipped", []) if is_skipped(case, kind) else judge(case, kind)
    if part == "training_loops":
        network, optimizer = name.split()
        found = training_loops.compare(network, optimizer, kind)
    else:
        made = decoders.generate(name, kind=kind)
        torch._dynamo.reset()
        eager = made.eager_graphs + made.eager_calls
        found = [] if made.is_equal else ["the tokens are not the model's own"]
        found += [f"{eager} graphs or calls ran eagerly: {made.reason}"] if eager else []
    return Verdict("differ" if found else "equal", found)


def serve(kind: str) -> None:
    """Try the items of the standard input, line by line; verdicts are lines on the output."""
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what networks print
        for line in sys.stdin:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    word, found = try_item(*json.loads(line), kind)
            except Exception as error:
                word, found = "differ", [f"{type(error).__name__}: {error}"]
            print(json.dumps([word, [text[:500] for text in found]]), file=answers, flush=True)


class Server:
    """A process that tries items; a new one follows one that has ended."""

    def __init__(self, kind: str) -> None:
        self.command = [sys.executable, "-m", "attack.tables", "--serve", "--kind", kind]
        self.process: subprocess.Popen[str] | None = None

    def ask(self, item: Item) -> Verdict:
        """The verdict on an item."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=TESTS,
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(ANSWER_SECONDS, process.kill)
        watchdog.start()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(item) + "\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        watchdog.cancel()
        if answer:
            return Verdict(*json.loads(answer))
        self.process = None
        return Verdict("differ", [f"its process ends with {process.wait()}"])

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


def try_all(items: list[Item], kind: str, jobs: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A line for each item, as they come; none is begun after the time."""
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    end = time.monotonic() + seconds

    def work() -> None:
        server = Server(kind)
        with contextlib.suppress(queue.Empty):
            while time.monotonic() < end:
                item = waiting.get_nowait()
                began = time.monotonic()
                word, found = server.ask(item)
                row = {"part": item[0], "name": item[1], "kind": kind, "verdict": word}
                done.put({**row, "found": found, "seconds": round(time.monotonic() - began, 2)})
        server.close()
        done.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(items)))]
    for thread in threads:
        thread.start()
    running = len(threads)
    while running:
        row = done.get()
        if row is None:
            running -= 1
        else:
            yield row


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """The lines of a file; one that was cut off is left out."""
    rows = []
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return rows


def main() -> int:
    """Print what differs, and the tally."""
    parser = argparse.ArgumentParser(prog="attack.tables", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; else all")
    parser.add_argument("--kind", choices=KINDS, default="gpu", help="of the plans")
    parser.add_argument("--jobs", type=int, default=8, help="processes at once")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which none is begun")
    parser.add_argument("--names", default="", help="only names that begin so")
    parser.add_argument("--out", type=Path, help="file of lines, which a run continues")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.kind)
        return 0
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{min(unknown)!r} is unknown: expected some of {', '.join(PARTS)}")
    if options.kind == "gpu" and not torch.cuda.is_available():
        parser.error("kind 'gpu' needs a CUDA device: this machine has none; try 'streaming'")
    items = [item for item in items_of(options.parts or PARTS) if item[1].startswith(options.names)]
    rows = [row for row in read_rows(options.out) if row["kind"] == options.kind]
    known = {(row["part"], row["name"]) for row in rows} & set(items)
    rows = [row for row in rows if (row["part"], row["name"]) in known]
    missing = [item for item in items if item not in known]
    for row in try_all(missing, options.kind, options.jobs, 60 * options.minutes):
        rows.append(row)
        if row["verdict"] == "differ":
            print(f"{row['part']} {row['name']}: {'; '.join(row['found'][:2])}", flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    for part in dict.fromkeys(part for part, _ in items):
        print(f"{part}: {tally_text([row for row in rows if row['part'] == part])}")
    print(f"{options.kind}: {tally_text(rows)}, {len(items) - len(rows)} not tried")
    return 1 if any(row["verdict"] == "differ" for row in rows) or len(rows) < len(items) else 0


def tally_text(rows: list[dict[str, Any]]) -> str:
    """How many there were of each verdict."""
    counts = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{counts[word]} {word}" for word in ("equal", "refused", "skipped", "differ"))


if __name__ == "__main__":
    raise SystemExit(main())
