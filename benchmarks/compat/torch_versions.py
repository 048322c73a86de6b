"""Which versions of PyTorch planning and running work with.

    python -m benchmarks.compat.torch_versions --versions 2.10.0,2.15.0

Each version is installed into a folder of its own (`pip install --target`, removed afterwards; some
gigabytes, as the packages of the index bring CUDA), and put before the installed one. Then the
tests of planning (`tests/frontends/pytorch`) and of running (`tests/runtime`) are run with it, the
check of the version switched off, but for tests that start other processes. A test that fails is
listed, so that one can see what a version lacks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, ResultFile, Table, add_results, chosen, make_parser, name_list

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSIONS = "2.8.0,2.9.1,2.10.0,2.11.0,2.12.1,2.13.0,2.14.1,2.15.0"
PARTS = {
    "planning": ("tests/frontends/pytorch",),
    "running": ("tests/runtime",),
}
FAILED = {"torch": "", "passed": 0, "failed": 0}
# Runs pytest with any version: the check of the version is what is to be found out.
RUN_TESTS = """
import sys
import torch
from placewright.frontends.pytorch import torch_version
torch_version.PLANNING = torch_version.RUNNING = (0, 0), (99, 99)
print("torch", torch.__version__, flush=True)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def install(version: str, folder: Path) -> str:
    """Install a version into a folder; returns what went wrong, if anything."""
    command = [sys.executable, "-m", "pip", "-q", "install", "--target", str(folder)]
    done = subprocess.run([*command, f"torch=={version}"], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def run_tests(folder: Path, paths: Sequence[str], minutes: float) -> dict[str, Any]:
    """Counts of passed and failed tests, and the names of those that failed."""
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    options = ["-q", "-p", "no:cacheprovider", "--tb=line", "-W", "default", *paths]
    command = [sys.executable, "-c", RUN_TESTS, *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60 * minutes
        )
    except subprocess.TimeoutExpired:
        return FAILED | {"failures": [f"took over {minutes:g} minutes"]}
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    passed = re.search(r"(\d+) passed", done.stdout)
    if passed is None and not failures:
        failures = (done.stderr or done.stdout).strip().splitlines()[-1:]
    found = re.search(r"^torch (\S+)", done.stdout, re.M)
    return {
        "torch": found.group(1) if found else "",
        "passed": int(passed.group(1)) if passed else 0,
        "failed": len(failures),
        "failures": failures,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--versions", type=name_list, default=name_list(VERSIONS), help="versions to try")
    option("--parts", type=name_list, default=list(PARTS), help="planning, running or both")
    option("--folder", type=Path, help="where versions are installed; else the temporary folder")
    option("--minutes", type=float, default=20.0, help="time limit of the tests of one part")
    add_results(parser, "out/torch-versions.jsonl")
    given = parser.parse_args(argv)
    parts = chosen(parser, given.parts, PARTS)
    results = ResultFile(given.out, lambda row: (row["version"], row["part"]))
    for version in given.versions:
        missing = [part for part in parts if (version, part) not in results]
        if not missing:
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"torch-{version}-", dir=given.folder))
        try:
            problem = install(version, folder)
            for part in missing:
                row = FAILED | {"failures": [problem]} if problem else None
                row = row or run_tests(folder, PARTS[part], given.minutes)
                results.append({"version": version, "part": part, **row})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    table = Table("torch", "part", "passed", "failed", "first failure")
    for row in results.rows:
        first = row["failures"][0] if row["failures"] else None
        table.row(row["version"], row["part"], row["passed"], row["failed"], first)


if __name__ == "__main__":
    main()
