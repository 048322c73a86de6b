"""The standing attack: `python -m attack` in `tests/` prints what was tried, with counts.

Each part has a function `attack(first_seed, seconds) -> Tally`. A state file keeps the totals and
the next seed of every part, so that a later run goes on where this one stopped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

PARTS: tuple[str, ...] = (
    "attack.fuzz.files",
    "attack.fuzz.onnx_models",
    "attack.fuzz.graph_definitions",
    "attack.fuzz.public_workloads",
    "attack.fuzz.texts",
    "attack.fuzz.saved_policies",
    "attack.fuzz.pages",
    "attack.kills",
    "attack.oracle",
    "attack.workload_oracle",
    "attack.odd_uses.sequences",
    "attack.training_loops",
)
"""Modules with a function `attack`."""


def part_name(name: str) -> str:
    """The part of a name, which may leave out the package: `fuzz.files`.

    Raises:
        SystemExit: There is no such part.
    """
    full = name if name.startswith("attack.") else f"attack.{name}"
    if full not in PARTS:
        raise SystemExit(f"part {name!r} is unknown: expected one of {', '.join(PARTS)}")
    return full


def main() -> int:
    """Run every part, or those named, and print a line for each with its totals."""
    parser = argparse.ArgumentParser(prog="attack", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=90, help="time for all parts together")
    parser.add_argument("--state", type=Path, help="file with totals and next seeds")
    options = parser.parse_args()
    names = [part_name(name) for name in options.parts] or list(PARTS)
    state: dict[str, Any] = {}
    if options.state is not None and options.state.exists():
        state = json.loads(options.state.read_text())
    findings = 0
    for name in names:
        entry = state.setdefault(name, {"next_seed": 0, "counts": {}, "findings": []})
        part = importlib.import_module(name)
        tally = part.attack(entry["next_seed"], options.seconds / len(names))
        entry["next_seed"] = tally.next_seed
        entry["counts"] = dict(Counter(entry["counts"]) + tally.counts)
        entry["findings"] += tally.findings
        findings += len(tally.findings)
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(entry["counts"].items()))
        print(f"{name}: {tally.tried:,} now, {tally.next_seed:,} in all ({counts})", flush=True)
        for line in tally.findings[:20]:
            print(f"  {line}")
        if options.state is not None:
            options.state.write_text(json.dumps(state, indent=1))
    print(f"{findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
