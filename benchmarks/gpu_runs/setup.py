"""Install this checkout into the Python that runs it, and say what is missing.

    python -m benchmarks.gpu_runs.setup --check       only says it
    python -m benchmarks.gpu_runs.setup --other DIR   the other version of `prepare`, into a folder

Wheels in the prepared folder are installed where their package is missing; nothing is downloaded.
A checkout that is installed already, with all of its sources, is not built again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import ROOT, machine, make_parser
from benchmarks.gpu_runs.prepare import OTHER, WHEELS

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = {
    "numpy": "everything",
    "scipy": "everything",
    "torch": "everything",
    "safetensors": "everything",
    "transformers": "generate, decoders",
    "accelerate": "generate, offload",
    "diffusers": "group offloading, dit",
    "yaml": "llama.cpp",
    "tqdm": "llama.cpp",
    "PIL": "dit",
    "pytest": "tests",
    "hypothesis": "tests",
}
"""Packages that the slices import, and what for."""
PROGRAMS = {"cmake": "builds", "ninja": "builds", "nvcc": "llama.cpp"}
INSTALL = ("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--inputs", type=Path, default=ROOT / "out" / "gpu-inputs", help="folder of `prepare`")
    option("--stamp", type=Path, help="file that says which sources are installed")
    option("--other", type=Path, help="install the other version into this folder, nothing else")
    option("--check", action="store_true", help="install nothing")
    arguments = parser.parse_args(argv)
    if arguments.other is not None:
        install_other(arguments.inputs / OTHER, arguments.other)
        return
    if not arguments.check:
        install_wheels(arguments.inputs / "wheels")
        install_checkout(arguments.stamp)
    import torch

    print(machine())
    print(f"CUDA: {'yes' if torch.cuda.is_available() else 'no'}")
    missing = [
        f"{name} ({use})"
        for name, use in PACKAGES.items()
        if importlib.util.find_spec(name) is None
    ]
    missing += [f"{name} ({use})" for name, use in PROGRAMS.items() if shutil.which(name) is None]
    print(f"missing: {', '.join(missing) or 'nothing'}")


def install_wheels(folder: Path) -> None:
    """Install the wheels whose package cannot be imported."""
    wanted = []
    for wheel in sorted(folder.glob("*.whl")):
        package = wheel.name.partition("-")[0]
        module = WHEELS.get(package.replace("_", "-"), package)
        if importlib.util.find_spec(module) is None:
            wanted.append(str(wheel))
    if wanted:
        print(f"installs {', '.join(Path(each).name for each in wanted)}", flush=True)
        subprocess.run([sys.executable, *INSTALL, *wanted], check=True)


def install_checkout(stamp: Path | None) -> None:
    """Install the package; a second call with the same sources does nothing."""
    digest = digest_of_sources()
    if stamp is not None and stamp.exists() and stamp.read_text() == digest:
        print("this checkout is installed already")
        return
    subprocess.run([sys.executable, *INSTALL, str(ROOT)], check=True)
    if stamp is not None:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest)


def digest_of_sources() -> str:
    """Of all files that an installation is made of."""
    digest = hashlib.sha256()
    paths = [ROOT / "pyproject.toml", ROOT / "CMakeLists.txt"]
    for folder in ("src", "cpp"):
        paths += sorted(path for path in (ROOT / folder).rglob("*") if path.is_file())
    for path in paths:
        if "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def install_other(archive: Path, folder: Path) -> None:
    """Install another version's tree into a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as tree:
        with tarfile.open(archive) as file:
            file.extractall(tree, filter="data")
        subprocess.run([sys.executable, *INSTALL, "--target", str(folder), tree], check=True)
    print(f"{folder}: {(folder / 'placewright').is_dir()}")


if __name__ == "__main__":
    main()
