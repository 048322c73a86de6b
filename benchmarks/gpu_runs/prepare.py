"""Put into one folder what a machine without a network needs for `benchmarks.gpu_runs.run`.

    python -m benchmarks.gpu_runs.prepare --other COMMIT

The folder gets wheels that such a machine may lack, the source of llama.cpp, the tree of an older
commit to compare with, captured networks, and the name of this commit. Copy it with the checkout.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import ROOT, current_commit, make_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

OTHER = "other.tar.gz"
OTHER_PARTS = ("src", "cpp", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")
"""What an installation of a version needs."""
WHEELS = {
    "nanobind": "nanobind",
    "scikit-build-core": "scikit_build_core",
    "pathspec": "pathspec",
    "packaging": "packaging",
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "pygments": "pygments",
    "hypothesis": "hypothesis",
    "sortedcontainers": "sortedcontainers",
    "rich": "rich",
    "markdown-it-py": "markdown_it",
    "mdurl": "mdurl",
    "typer": "typer",
    "click": "click",
    "shellingham": "shellingham",
    "tqdm": "tqdm",
    "diffusers": "diffusers",
    "importlib-metadata": "importlib_metadata",
    "zipp": "zipp",
}
"""Packages, and the modules whose absence says that they are missing."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--folder", type=Path, default=ROOT / "out" / "gpu-inputs", help="where it all goes")
    option("--other", default="", help="a commit to compare step times with; else none")
    option("--python", default="3.12", help="Python's version there")
    arguments = parser.parse_args(argv)
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commit.txt").write_text(current_commit())
    if arguments.other:
        pack_other(arguments.other, folder / OTHER)
    fetch_wheels(folder / "wheels", arguments.python)
    script = [sys.executable, "-m"]
    llama_cpp = ["benchmarks.generate.llama_cpp", "fetch", "--folder", str(folder / "llama.cpp")]
    subprocess.run([*script, *llama_cpp], cwd=ROOT, check=True)
    if not (folder / "graphs").exists():
        graphs = ["benchmarks.learning.at_scale", "prepare", "--graphs", str(folder / "graphs")]
        subprocess.run([*script, *graphs], cwd=ROOT, check=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 2**20:.1f} MiB")


def pack_other(commit: str, path: Path) -> None:
    """The tree of a commit, as far as an installation needs it."""
    command = ["git", "archive", "--format=tar.gz", "-o", str(path), commit, "--", *OTHER_PARTS]
    subprocess.run(command, cwd=ROOT, check=True)


def fetch_wheels(folder: Path, python: str) -> None:
    """Download the wheels that are not there yet."""
    there = {
        wheel.name.partition("-")[0].lower().replace("_", "-") for wheel in folder.glob("*.whl")
    }
    if missing := sorted(set(WHEELS) - there):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        command += ["--only-binary", ":all:", "--python-version", python]
        subprocess.run([*command, *missing], check=True)


if __name__ == "__main__":
    main()
