"""Files and clusters that the command line names."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from placewright.cli.general_options import is_quiet
from placewright.errors import FileError, PlanError, printable

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.cluster import Cluster
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.profiling.machine_profile import MachineProfile
    from placewright.result import Result


_BANDWIDTH = re.compile(r"\d[kmgt]?i?b/s(?=\s*[,)])", re.IGNORECASE)


def find_cluster(text: str) -> Cluster:
    """The cluster that a string such as `2xP100+cpu` or a file describes."""
    from placewright import files
    from placewright.cluster import Cluster
    from placewright.frontends.model_spec import names_file

    # The slash of a bandwidth, as in MyGPU(24GB,82TF,1008GB/s), is not that of a path.
    is_file = os.path.lexists(text) or names_file(_BANDWIDTH.sub("", text))
    return files.load(text, "cluster") if is_file else Cluster.parse(text)


def find_machine(text: str) -> MachineProfile:
    """This machine, measured now or before, as `here` or `here:workers=2` names it."""
    from placewright.profiling.machine_profile import parse_workers, profile_machine

    return profile_machine(parse_workers(text), notify=print_note)


def is_this_machine(text: str) -> bool:
    """Whether a text that names a cluster means this machine: `here` or `here:workers=2`."""
    return text.strip().partition(":")[0].strip() == "here"


def find_plan(problem: Problem, path: Path) -> tuple[str, Plan]:
    """The method and the plan of a plan, result or split file, fitted onto the problem."""
    from placewright import files, frontends
    from placewright.result import Result

    if frontends.is_split(path):
        return "split", frontends.read_split(problem, path)
    noun = load_plan(path)
    name, plan = (noun.solver, noun.plan) if isinstance(noun, Result) else ("given", noun)
    try:
        return name, files.plan_for(problem, plan)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def load_plan(path: Path) -> Plan | Result:
    """The plan or result that a file holds."""
    from placewright import files
    from placewright.plan import Plan
    from placewright.result import Result

    noun = files.load(path)
    if not isinstance(noun, Plan | Result):
        raise FileError(f"{path}: holds {kind_name(noun)}: expected a plan or a result")
    return noun


def check_writable(*paths: Path | None) -> None:
    """Raise FileError, before any work is done, if an output file cannot be written."""
    real_paths: set[str] = set()
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise FileError(f"{path}: is a folder: expected the name of a file")
        if not path.parent.is_dir():
            raise FileError(f"{path}: cannot be written: there is no folder {str(path.parent)!r}")
        real = os.path.realpath(path)
        if real in real_paths and (
            path.is_file() or not path.exists()
        ):  # /dev/null takes everything
            raise FileError(f"{path}: is to be written twice: give each output a file of its own")
        real_paths.add(real)


def check_json(path: Path | None, content: str) -> None:
    """Raise FileError, before any work is done, if JSON output has a TOML name."""
    from placewright.files.storage import is_toml

    if path is not None and is_toml(path):
        raise FileError(f"{path}: {content} is written as JSON: end the name in .json")


def find_folder(path: Path) -> Path | None:
    """The folder that a path names, created if need be; None for the name of a file."""
    if path.is_dir():
        return path
    if path.suffix or path.exists():
        return None
    check_writable(path)
    try:
        path.mkdir()
    except OSError as error:
        raise FileError(f"{path}: cannot be made: {error.strerror}") from None
    return path


def kind_name(noun: object) -> str:
    """What a file holds, in words."""
    names = {
        "Table": "costs",
        "Roofline": "costs",
        "Constraints": "constraints",
        "WorkloadPlan": "a workload's plan",
        "WorkloadResult": "a workload's result",
    }
    return names.get(type(noun).__name__, f"a {type(noun).__name__.lower()}")


def print_note(text: str) -> None:
    """A line on stderr, unless --quiet is given."""
    if not is_quiet():
        print(printable(text), file=sys.stderr, flush=True)
