"""Resolves names and files of the command line: models, clusters, plans and methods."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, FileError, PlanError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from placewright.cluster import Cluster
    from placewright.costs import Table
    from placewright.graph import Graph
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.solvers import Solver

_SUFFIXES = (".json", ".toml", ".gz", ".txt")


@dataclass(frozen=True)
class ModelOptions:
    """How a model of another library is to be read."""

    training: bool = False
    optimizer: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def find_model(
    text: str, cluster: Cluster | None = None, model_options: ModelOptions | None = None
) -> Graph | Problem:
    """The network of that name, or what a file holds: a graph, a problem, a workload or a model.

    Args:
        cluster: Used in place of a workload's own.

    Raises:
        PlacewrightError: The name is unknown, or the file is missing or malformed.
    """
    from placewright import files, frontends, zoo
    from placewright.graph import Graph
    from placewright.problem import Problem

    options = model_options or ModelOptions()
    path, _, function = text.partition(":")
    if path.endswith(".py") and (function or _names_file(path)):
        _refuse_dims(text, options)
        return frontends.from_python(text, options.training, options.optimizer)
    if path.strip() in zoo.ENTRIES or not _names_file(text):
        refuse_training(text, options.training, options.optimizer)
        _refuse_dims(text, options)
        return zoo.load(text, note=_print_note)
    refuse_training(text, options.training, options.optimizer)
    if text.endswith(".onnx"):
        return frontends.from_onnx(text, options.dims, options.shapes)
    if text.endswith((".pb", ".pbtxt")) or os.path.exists(os.path.join(text, "saved_model.pb")):
        rows = {name: (size,) for name, size in options.dims.items()}
        return frontends.from_tensorflow(text, {**rows, **options.shapes})
    _refuse_dims(text, options)
    if frontends.is_workload(text):
        return frontends.from_workload(text, cluster=cluster)
    noun = files.load(text)
    if not isinstance(noun, Graph | Problem):
        raise FileError(
            f"{text}: holds {_kind_name(noun)}: expected a graph, a problem or a workload"
        )
    return noun


def refuse_training(text: str, training: bool, optimizer: str | None) -> None:
    """Raise ConfigError where a step is asked for of what is no Python file's model.

    Raises:
        PlacewrightError: Also where the text names no network.
    """
    from placewright import zoo

    if text.partition(":")[0].endswith(".py") or not (training or optimizer is not None):
        return
    option, word = (
        ("--training", "training=true") if training else ("--optimizer", "optimizer=NAME")
    )
    what = "a file that says itself what its step is"
    if text.partition(":")[0].strip() in zoo.ENTRIES or not _names_file(text):
        name = zoo.parse(text)[0].name
        has = word.partition("=")[0] in zoo.ENTRIES[name].defaults
        what = "a network of the zoo" + (f": say {word} in its name" if has else ", drawn as it is")
    raise ConfigError(f"{option} is for model.py:build: {text!r} is {what}")


def training_mode(text: str, training: bool, optimizer: str | None) -> tuple[bool, str | None]:
    """Whether a model's step trains, and how: as asked of a Python file's, else as its name says.

    Raises:
        PlacewrightError: The text names no network.
    """
    if text.partition(":")[0].endswith(".py"):
        return training, optimizer
    from placewright import zoo
    from placewright.zoo.capture import DEFAULT_OPTIMIZER

    entry, chosen = zoo.parse(text)
    rule, size = chosen.pop("optimizer", DEFAULT_OPTIMIZER), chosen.pop("size", "full")
    if entry.network is None or not entry.network.arguments(str(size), **chosen).get("training"):
        return False, None
    return True, str(rule)


def _refuse_dims(text: str, options: ModelOptions) -> None:
    if options.dims or options.shapes:
        raise ConfigError(f"--dims is for ONNX and TensorFlow files: {text!r} leaves nothing open")


def _print_note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def find_cluster(text: str) -> Cluster:
    """The cluster that a string such as `2xP100+cpu` or a file describes; `here`: this machine."""
    from placewright import files
    from placewright.cluster import Cluster

    if is_this_machine(text):
        from placewright.profiling.machine_profile import parse_workers, profile_machine

        return profile_machine(parse_workers(text), notify=_print_note).cluster
    return files.load(text, "cluster") if _names_file(text) else Cluster.parse(text)


def as_executed_here(problem: Problem, on: str) -> Problem:
    """A problem on this machine, with the starts of ops that the runtime will need."""
    from placewright.costs import Table
    from placewright.profiling.as_executed import executed_problem
    from placewright.profiling.machine_profile import parse_workers, profile_machine

    profile, costs = profile_machine(parse_workers(on)), problem.costs
    if isinstance(costs, Table) and costs.machine and costs.machine != profile.machine.key:
        _print_note("the op times were measured on another machine, or before this one changed")
    return executed_problem(problem, profile)


def measure_costs(
    model: str, on: str, training: bool, optimizer: str | None, limits: Mapping[str, int]
) -> Table:
    """What each op of a model takes on each device of this machine."""
    from placewright.profiling.machine_profile import parse_workers, profile_machine
    from placewright.profiling.op_costs import profile_ops
    from placewright.runtime.models import find_program
    from placewright.runtime.real_devices import machine_devices

    workers = parse_workers(on)
    program = find_program(model, training, optimizer)  # first: its file may change settings
    profile = profile_machine(workers, notify=_print_note)
    sites = machine_devices(profile.machine, workers)
    _print_note(f"measuring the ops of {model}: up to a minute, once")
    op_profile = profile_ops(program, profile.machine, profile.cluster, sites, limits=limits)
    return op_profile.table


def is_this_machine(text: str) -> bool:
    """Whether a text that names a cluster means this machine: `here` or `here:workers=2`."""
    return text.strip().partition(":")[0].strip() == "here"


def find_plan(problem: Problem, path: Path) -> tuple[str, Plan]:
    """What made the plan of a plan, result or split file, and the plan, fitted onto the problem."""
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
        raise FileError(f"{path}: holds {_kind_name(noun)}: expected a plan or a result")
    return noun


def find_method(name: str) -> Solver:
    """The method of that name: a solver, or a policy that ships trained.

    `auto` comes with its proposers, if any are on by default.
    """
    from placewright.solvers import METHODS, Auto
    from placewright.training.policy_solver import POLICY_SOLVERS
    from placewright.training.proposers import DEFAULT, named

    if name not in METHODS and name not in POLICY_SOLVERS:
        raise ConfigError(
            f"no method is named {name!r}: {nearest(name, [*METHODS, *POLICY_SOLVERS])}"
        )
    if name == Auto.name:
        return Auto(proposers=named(DEFAULT))
    return POLICY_SOLVERS[name]() if name in POLICY_SOLVERS else METHODS[name]()


def check_writable(*paths: Path | None) -> None:
    """Raise FileError, before any work is done, where a file has no place of its own to go to."""
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
    """Raise FileError, before any work is done, where what is written as JSON is to be TOML."""
    from placewright.files.storage import is_toml

    if path is not None and is_toml(path):
        raise FileError(f"{path}: {content} is written as JSON: end the name in .json")


def find_folder(path: Path) -> Path | None:
    """The folder that a path means, made if need be: one that is there, or has no ending."""
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


def _names_file(text: str) -> bool:
    """Whether a text names a file: one that is there, or one that should be."""
    return os.path.lexists(text) or "/" in text or os.sep in text or text.endswith(_SUFFIXES)


def _kind_name(noun: object) -> str:
    return {"Table": "costs", "Roofline": "costs", "Constraints": "constraints"}.get(
        type(noun).__name__, f"a {type(noun).__name__.lower()}"
    )
