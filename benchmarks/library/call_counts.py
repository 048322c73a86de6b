"""Counts what one `placewright place --report` call touches.

    python -m benchmarks.library.call_counts heft

It prints how many files and functions of the package run, and how often a step is simulated outside
the search: calls of `simulator.simulate` that no solver makes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import make_parser

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

MODEL = """
import torch

def build():
    layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
    return torch.nn.Sequential(*layers).eval(), (torch.rand(8, 1024),)
"""
OPTIONS = ("--on", "V100+cpu", "--limit", "gpu0=1034MiB", "--evaluations", "500")


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module of the package is being imported: class bodies and tables are no calls."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and "/src/placewright/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("method", nargs="?", default="auto", help="the method to count")
    arguments = parser.parse_args(argv)
    import placewright
    from placewright.cli import main as command_line

    root = str(Path(placewright.__file__).parent)
    functions: set[tuple[str, str]] = set()
    simulations = 0

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal simulations
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or not code.co_filename.startswith(root):
            return
        if _is_importing(frame):
            return
        functions.add((code.co_filename, code.co_qualname))
        caller = "" if frame.f_back is None else frame.f_back.f_code.co_filename
        in_search = any(folder in caller for folder in ("/exact/", "/partition/"))
        simulations += code.co_name == "simulate" and not in_search

    os.chdir(tempfile.mkdtemp())
    Path("model.py").write_text(MODEL)
    sys.setprofile(on_call)
    try:
        words = [
            "place",
            "model.py:build",
            *OPTIONS,
            "--method",
            arguments.method,
            "--store",
            "none",
        ]
        command_line([*words, "--report", "r.html"])
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    files = {file for file, _ in functions}
    figures = f"{len(files)} files, {len(functions)} functions, {simulations} simulations"
    print(figures, file=sys.stderr)


if __name__ == "__main__":
    main()
