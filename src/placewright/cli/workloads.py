"""Workload files on the command line: which files hold one, and the options that they take."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from placewright.cli.problem_options import ProblemOptions, parse_sizes
from placewright.errors import ConfigError, FileError, PlacewrightError, PlanError

if TYPE_CHECKING:
    from placewright.workload import Workload
    from placewright.workload_plan import WorkloadPlan
    from placewright.workload_result import WorkloadResult

_USABLE = ("model", "limit")  # options of a problem that a workload takes
_USABLE_FOR_CALLS = (*_USABLE, "on", "costs", "workload")  # and the calls of a model


def names_workload(problem_options: ProblemOptions) -> bool:
    """Whether options say a workload of several calls: a file of one, or calls of a model."""
    from placewright.deployment.named_models import is_library_model

    return (
        problem_options.workload is not None
        or is_library_model(problem_options.model)
        or holds_workload(problem_options.model)
    )


def holds_workload(text: str) -> bool:
    """Whether a model's text names a file that holds a workload of several calls."""
    from placewright.frontends.model_spec import ModelSpec

    return ModelSpec.parse(text).kind == "file" and _file_kind(Path(text)) == "workload"


def holds_workload_plan(path: Path) -> bool:
    """Whether a file holds a workload's plan or result."""
    return _file_kind(path) in ("workload_plan", "workload_result")


def _file_kind(path: Path) -> str:
    """The kind of a file of ours, "" for any other: whoever reads that says why."""
    from placewright.files.header import kind_of
    from placewright.files.storage import read_data

    if not path.is_file():
        return ""
    try:
        return kind_of(read_data(path))
    except (PlacewrightError, RecursionError):
        return ""


def find_workload(problem_options: ProblemOptions) -> Workload:
    """The workload in the file that the model's name says, or of the calls of a model.

    Raises:
        PlacewrightError: The file is malformed, or an option is not for workloads.
    """
    from placewright import files
    from placewright.workload import Workload

    if not holds_workload(problem_options.model):
        return _workload_of_calls(problem_options)
    for option in fields(problem_options):
        if option.name not in _USABLE and getattr(problem_options, option.name):
            raise ConfigError(
                f"--{option.name} with a workload: its calls have their own; "
                "only --limit can be given"
            )
    workload = files.load(problem_options.model, "workload")
    limits = parse_sizes("--limit", problem_options.limit, workload.cluster)
    if not limits:
        return workload
    calls = []
    for call in workload.calls:
        constraints = call.problem.constraints
        constraints = replace(constraints, limits={**constraints.limits, **limits})
        calls.append(replace(call, problem=replace(call.problem, constraints=constraints)))
    return Workload(tuple(calls))


def _workload_of_calls(problem_options: ProblemOptions) -> Workload:
    """The workload of a model's calls: `hf:PATH`, `timm:NAME` or `model.py:build`."""
    from placewright.cli.paths import find_cluster, is_this_machine
    from placewright.deployment.call_mix import parse_mix
    from placewright.deployment.model_placement import MEASURE_BUDGET
    from placewright.deployment.named_models import build_named_model
    from placewright.deployment.workload_problem import MachineCosts, library_workload

    for option in fields(problem_options):
        if option.name not in _USABLE_FOR_CALLS and getattr(problem_options, option.name):
            raise ConfigError(
                f"--{option.name} with calls of a model: expected --on, --limit, --costs here and "
                "--workload alone"
            )
    on, costs = problem_options.on, problem_options.costs
    if on is None:
        message = f"{problem_options.model} includes no cluster: name one, e.g. here or A100+cpu"
        raise typer.BadParameter(message, param_hint="'--on'")
    if costs is not None and not (is_this_machine(str(costs)) and is_this_machine(on)):
        raise ConfigError("--costs with calls of a model: expected --on here --costs here")
    text = problem_options.workload
    mix = None if text is None else parse_mix(text)
    named = build_named_model(problem_options.model, mix if isinstance(mix, int) else 1)
    machine_costs = MachineCosts.of(
        on if is_this_machine(on) else find_cluster(on), MEASURE_BUDGET, costs is not None
    )
    limits = parse_sizes("--limit", problem_options.limit, machine_costs.cluster)
    calls = named.mix if mix is None or isinstance(mix, int) else mix
    return library_workload(named.model, calls, machine_costs, limits)


def find_workload_plan(workload: Workload, path: Path) -> WorkloadPlan | WorkloadResult:
    """The plan or result in a file, fitted onto the workload.

    Raises:
        PlacewrightError: The file holds something else, or a plan of another workload.
    """
    from placewright.files import workload_plan_for
    from placewright.workload_result import WorkloadResult

    noun = load_workload_plan(path)
    try:
        if isinstance(noun, WorkloadResult):
            return replace(noun, plan=workload_plan_for(workload, noun.plan))
        return workload_plan_for(workload, noun)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def load_workload_plan(path: Path) -> WorkloadPlan | WorkloadResult:
    """The plan or result of a workload that a file holds."""
    from placewright import files
    from placewright.cli.paths import kind_name
    from placewright.workload_plan import WorkloadPlan
    from placewright.workload_result import WorkloadResult

    noun = files.load(path)
    if not isinstance(noun, WorkloadPlan | WorkloadResult):
        raise FileError(f"{path}: holds {kind_name(noun)}: expected a workload's plan or result")
    return noun
