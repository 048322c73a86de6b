"""What a newcomer does: follow the README line by line, in a fresh clone and with a wheel.

Each command must end well and show what `SHAPES` says. PyTorch and ONNX are a gigabyte: before the
README installs them, the packages of the environment that runs the test are borrowed, so that pip
finds them installed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from console_blocks import console_commands

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
ANSWER = (
    r"(?s)^(step time|period) [\d.]+ \w+ by .*lower bound [\d.]+ \w+.*^device .*^memory .*^why: "
)
SHAPES = {
    "make demo": r"(?s)step time [\d.]+ ms by auto.*\* auto .*out/report.html",
    ". .venv/bin/activate": r"^$",
    "pip install": r"Requirement already satisfied: torch",
    "placewright fits": r"(?s)^memory +weights.*gpu0 .*with a host of",
    "placewright place": ANSWER,
    "placewright explain plan.json --op": r"(?s)^'blocks.3.mlp.up.* runs on .*^device +step",
    "placewright report": r"report\.html",
    "placewright export": r"(?s)device_map = \{.*step time, simulated: [\d.]+ ms as planned",
    "placewright compare": r"(?s)^ *method .*^\* [\w-]+ +[\d.]+ ms.*^lower bound",
    "placewright models": r"(?s)^transformer .*^branches ",
    "placewright clusters": r"(?s)V100.*pcie3",
    "placewright clusters RTX4090": r"(?s)gpu0 .*RTX4090.*cpu ",
    "placewright history": r"(?s)^key +model +cluster.* branches .*plans in",
    "placewright execute": r"(?s)^step time [\d.]+ \w+ measured.*^verified: \d+ ops ran",
    "python examples/onnx_file.py": r"names a device for each node",
    "python examples/larger_than_gpu.py": r"outputs differ by at most",
    "python examples/training_step.py": r"step 4: loss",
}
"""What each command must show, by how it begins; the longest beginning counts."""


@dataclass
class Visitor:
    """Somebody who types commands in a folder, one after the other.

    Args:
        python: The interpreter of the environment that the README sets up.
        path: Where programs are looked for.
    """

    folder: Path
    python: Path
    path: str
    sourced: list[str] = field(default_factory=list)

    def type(self, text: str) -> str:
        """Run a command; what it printed."""
        if text.startswith("pip install"):
            borrow_packages(self.python)
        if text.startswith(". "):
            self.sourced.append(text)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PLACEWRIGHT", "VIRTUAL_ENV", "COV_", "MAKE"))
        }
        environment |= {"PATH": self.path, "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        environment |= {"XDG_CACHE_HOME": str(self.folder / "cache"), "COLUMNS": "100"}
        script = "\n".join(["set -e", *self.sourced, text])
        done = subprocess.run(
            [shutil.which("bash") or "/bin/bash", "-c", script],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        return done.stdout + done.stderr


def borrow_packages(python: Path) -> None:
    """Let an environment import the packages of this one, behind its own."""
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    folders = [path for path in sys.path if path.endswith("site-packages")]
    folders += [sysconfig.get_path("purelib")]
    (Path(site) / "borrowed.pth").write_text("\n".join(dict.fromkeys(folders)) + "\n")


def shape_of(text: str) -> str:
    beginnings = [beginning for beginning in SHAPES if text.startswith(beginning)]
    assert beginnings, f"{text!r} has no shape in SHAPES"
    return SHAPES[max(beginnings, key=len)]


def follow(visitor: Visitor, skip: tuple[str, ...] = ()) -> int:
    """Type every command of the README; how many there were."""
    count = 0
    for command in console_commands(README):
        if not command.text.startswith(skip or ("\0",)):
            shown = visitor.type(command.text)
            assert re.search(shape_of(command.text), shown, re.M), f"{command.text}\n{shown}"
            count += 1
    return count


def copy_checkout(folder: Path) -> Path:
    """What a clone of this checkout holds, changes that are not committed included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.mark.slow  # two minutes; of what it shows, `make test` on a fresh clone does the most
def test_the_readme_can_be_followed_in_a_fresh_clone(tmp_path):
    clone = copy_checkout(tmp_path / "clone")
    python = clone / ".venv" / "bin" / "python"
    assert follow(Visitor(clone, python, os.environ["PATH"])) > 15
    assert (clone / "out" / "report.html").stat().st_size > 100_000
    assert (clone / "report.html").stat().st_size > 100_000


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist and the wheel that is built from it, once for all test processes."""
    pytest.importorskip("build")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "dist"
    with open(shared / "dist.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            clone = copy_checkout(tmp_path_factory.mktemp("source"))
            made = tmp_path_factory.mktemp("made")
            command = [sys.executable, "-m", "build", "--outdir", str(made), str(clone)]
            subprocess.run(command, check=True, capture_output=True)
            made.rename(folder)
    return folder


def test_the_readme_can_be_followed_with_the_wheel_and_no_compiler(built, tmp_path):
    """The wheel is installed as a manylinux wheel; the folder has the examples of a checkout."""
    pytest.importorskip("auditwheel")
    scripts = Path(sys.executable).parent
    tools = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    (wheel,) = built.glob("*.whl")
    repair = [sys.executable, "-m", "auditwheel", "repair", "-w", str(tmp_path / "wheels")]
    subprocess.run([*repair, str(wheel)], check=True, capture_output=True, env=tools)
    (manylinux,) = (tmp_path / "wheels").glob("*manylinux*.whl")

    place = tmp_path / "anywhere"
    shutil.copytree(ROOT / "examples", place / "examples")
    shutil.copy2(ROOT / "constraints.txt", place)
    (place / "out").mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(place / ".venv")], check=True)
    python = place / ".venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "-q", "install", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, str(manylinux)], check=True, capture_output=True)
    visitor = Visitor(place, python, str(place / ".venv" / "bin"))
    assert shutil.which("c++", path=visitor.path) is None
    # Those of the checkout, and the slowest of what the other test has shown.
    shown = ("python examples/larger", "python examples/training", "placewright compare")
    here = ("placewright place examples/training_step", "placewright execute")
    skip = ("make demo", ". ", *shown, *here)
    assert follow(visitor, skip=skip) > 10


def test_the_wheel_holds_the_package_and_nothing_else(built):
    import zipfile

    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"placewright"}
    assert not [name for name in names if "go-a" in name or "go-b" in name or "report.json" in name]
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert wheel.stat().st_size < 3.5e6  # 3.2e6, of which 0.7e6 are weights of GO


def test_the_sdist_is_what_a_build_needs(built):
    import tarfile

    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"cpp", "src", "CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"} <= tops
    assert not tops & {"benchmarks", "docs", "tests", "scripts"}
    assert sdist.stat().st_size < 2e6
