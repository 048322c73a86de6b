"""Problem options of the command line, and the problem that they describe."""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from placewright.cli import options
from placewright.cli.model_loading import ModelOptions, load_model, set_sizes
from placewright.cli.paths import find_cluster, find_machine, is_this_machine, print_note
from placewright.errors import ConfigError, nearest
from placewright.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.costs import Table
    from placewright.plan import Plan
    from placewright.problem import Constraints, Problem
    from placewright.profiling.machine_profile import MachineProfile
    from placewright.result import Result
    from placewright.solvers import Stop

Texts = list[str] | None
SavedOptions = dict[str, str | bool | tuple[str, ...]]

_LIST_OPTIONS = ("reserve", "limit", "pin", "forbid", "colocate", "dims")
_FLAG_OPTIONS = ("training", "caller")
_ENUM_OPTIONS = {"objective": options.ObjectiveChoice, "discipline": options.DisciplineChoice}
_RENAMED_OPTIONS = {"use": "devices"}  # names in files of older releases


@dataclass(frozen=True)
class ProblemOptions:
    """The options that define a problem. `with_problem_options` gives them to a command."""

    model: options.Model = ""
    on: options.On = None
    objective: options.ObjectiveOption = None
    discipline: options.DisciplineOption = None
    devices: options.Devices = None
    reserve: options.Reserve = None
    limit: options.Limit = None
    pin: options.Pin = None
    forbid: options.Forbid = None
    colocate: options.Colocate = None
    costs: options.Costs = None
    training: options.Training = False
    optimizer: options.Optimizer = None
    dims: options.Dims = None
    workload: options.WorkloadCalls = None
    caller: options.Caller = False

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ProblemOptions:
        """Those of a command's arguments that define the problem."""
        known = {option.name for option in fields(cls)}
        return cls(**{name: value for name, value in arguments.items() if name in known})

    @classmethod
    def from_dict(
        cls, saved: Mapping[str, object], typed: ProblemOptions, model_option: str = "--model "
    ) -> ProblemOptions:
        """Saved options; those that are typed now replace them.

        Args:
            model_option: What goes before the model's name where it is typed.

        Raises:
            ConfigError: An option is unknown or ill-typed, or names a Python file, which is run
                only if its name is typed.
        """
        from placewright.frontends.model_spec import ModelSpec

        known = [option.name for option in fields(cls)]
        overrides = {name: value for name in known if (value := getattr(typed, name))}
        restored: dict[str, Any] = {}
        for saved_name, value in saved.items():
            name = _RENAMED_OPTIONS.get(saved_name, saved_name)
            if name not in known:
                raise ConfigError(f"the result was made with {name!r}: {nearest(name, known)}")
            if name not in overrides:
                restored[name] = _restore_value(name, value)
        model = restored.get("model", "")
        if ModelSpec.parse(model).is_python:
            raise ConfigError(
                f"the result was made for {model!r}, a Python file, which has to be run: "
                f"add {model_option}{model} if you trust it"
            )
        return cls(**(restored | overrides))

    @classmethod
    def from_files(
        cls, paths: Sequence[Path], nouns: Sequence[Plan | Result], typed: ProblemOptions
    ) -> ProblemOptions:
        """The options of the first file that has any; those that are typed now replace them.

        Raises:
            ConfigError: No file names its problem, and no model is typed.
        """
        from placewright.result import Result

        results = [noun for noun in nouns if isinstance(noun, Result)]
        saved = next((result.options for result in results if result.options), {})
        if not saved and not typed.model:
            raise ConfigError(
                f"{paths[0]}: does not name its problem: give the model with --model and the "
                "cluster with --on, as when it was made"
            )
        return cls.from_dict(saved, typed)

    def to_dict(self) -> SavedOptions:
        """Options that differ from their defaults, for a result file."""
        saved: SavedOptions = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if value is None or value is False or value == []:
                continue
            if isinstance(value, list):
                saved[option.name] = tuple(value)
            elif isinstance(value, bool):
                saved[option.name] = value
            else:
                saved[option.name] = str(value)
        return saved

    def problem(self, sizes: Mapping[str, int] | None = None) -> Problem:
        """The problem that the options define.

        Args:
            sizes: Sizes of the model by name (`batch`, `tokens`, `context`), in place of its own.

        Raises:
            PlacewrightError: A name is unknown, a file is bad, or options contradict each other.
        """
        from placewright import files
        from placewright.costs import Roofline
        from placewright.problem import Problem

        machine, cluster = None, None
        if self.on is not None and is_this_machine(self.on):
            machine = find_machine(self.on)
            cluster = machine.cluster
        elif self.on is not None:
            cluster = find_cluster(self.on)
        model, model_options = set_sizes(self.model, self.model_options(), sizes or {})
        noun = load_model(model, cluster, model_options)
        if isinstance(noun, Problem):
            problem = noun
        elif cluster is None:
            message = f"{self.model} includes no cluster: name one, e.g. 2xP100+cpu"
            raise typer.BadParameter(message, param_hint="'--on'")
        else:
            # Measured rates are what kernels reach, not a data sheet's.
            costs = None if machine is None else Roofline(compute=1.0, memory=1.0)
            problem = Problem(noun, cluster, costs)
        cluster = self._restrict_cluster(problem.cluster if cluster is None else cluster)
        constraints = self._merge_constraints(problem.constraints, cluster)
        problem = replace(problem, cluster=cluster, constraints=constraints)
        if self.costs is not None and is_this_machine(str(self.costs)):
            problem = replace(problem, costs=self._measure_costs(constraints.limits))
        elif self.costs is not None:
            problem = replace(problem, costs=files.load(self.costs, "costs"))
        if machine is not None:
            problem = _as_executed(problem, machine)
        if self.objective is not None:
            problem = replace(problem, objective=self.objective.value)
        if self.discipline is not None:
            problem = replace(problem, discipline=self.discipline.problem_value)
        return _with_caller(problem) if self.caller else problem

    def _measure_costs(self, limits: Mapping[str, int]) -> Table:
        """The time of every op on this machine, measured now or before."""
        if self.on is None or not is_this_machine(self.on):
            raise ConfigError("--costs here: ops are measured on this machine: add --on here")
        from placewright.profiling.machine_profile import parse_workers
        from placewright.profiling.model_profile import profile

        return profile(
            self.model,
            training=self.training,
            optimizer=self.optimizer,
            limits=limits,
            workers=parse_workers(self.on),
            notify=print_note,
        ).costs

    def model_options(self) -> ModelOptions:
        """How the model is read."""
        dims: dict[str, int] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for text in (
            word for several in self.dims or () for word in _split_names("--dims", several)
        ):
            name, _, sizes = text.rpartition("=")
            if not (name and all(part.isdecimal() for part in sizes.split("x"))):
                raise ConfigError(f"--dims {text!r}: expected such as batch=8 or x=8x224x224")
            if "x" in sizes:
                shapes[name] = tuple(int(part) for part in sizes.split("x"))
            else:
                dims[name] = int(sizes)
        return ModelOptions(self.training, self.optimizer, dims, shapes)

    def _restrict_cluster(self, cluster: Cluster) -> Cluster:
        """The devices to use, with their reserves."""
        if self.devices is not None:
            cluster = cluster.subset(_split_names("--devices", self.devices))
        reserves = parse_sizes("--reserve", self.reserve, cluster)
        devices = [
            replace(device, reserve=reserves.get(device.name, device.reserve))
            for device in cluster.devices
        ]
        return replace(cluster, devices=tuple(devices)) if reserves else cluster

    def _merge_constraints(self, constraints: Constraints, cluster: Cluster) -> Constraints:
        """The problem's own constraints, and those of the options, which take precedence."""
        pins: dict[str, str] = {}
        for ops, name in _parse_pairs("--pin", self.pin, "'blocks.0.*=gpu0'"):
            if pins.setdefault(ops, name) != name:
                raise ConfigError(f"--pin puts {ops!r} on {pins[ops]!r} and on {name!r}: keep one")
        forbid: dict[str, tuple[str, ...]] = defaultdict(tuple)
        for ops, names in _parse_pairs("--forbid", self.forbid, "'*.norm=cpu'"):
            forbid[ops] += _split_names("--forbid", names)
        colocate = [_split_names("--colocate", text) for text in self.colocate or ()]
        return replace(
            constraints,
            pins={**constraints.pins, **pins},
            forbid={**constraints.forbid, **forbid},
            colocate=(*constraints.colocate, *colocate),
            limits={**constraints.limits, **parse_sizes("--limit", self.limit, cluster)},
        )


def with_problem_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command MODEL and the options of a problem, in place of `problem_options`."""
    return _expand_options(command, options.Model, MISSING)


def with_saved_problem_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command whose files name the problem: MODEL is an option."""
    return _expand_options(command, options.PlanModel, None)


def with_training_problem_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for `train`: MODEL may be left out."""
    return _expand_options(command, options.TrainingModel, None)


def _expand_options(
    command: Callable[..., None], model_annotation: object, model_default: object
) -> Callable[..., None]:
    hints = get_type_hints(ProblemOptions, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name != "problem_options":
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        for option in fields(ProblemOptions):
            annotation, default = hints[option.name], option.default
            if option.name == "model":
                annotation, default = model_annotation, model_default
            parameters.append(
                inspect.Parameter(
                    option.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if default is MISSING else default,
                    annotation=annotation,
                )
            )

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        values = {option.name: arguments.pop(option.name) for option in fields(ProblemOptions)}
        values["model"] = values["model"] or ""
        command(problem_options=ProblemOptions(**values), **arguments)

    signature = inspect.Signature(parameters)
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = signature  # type: ignore[attr-defined]  # which typer reads
    run.__annotations__ = annotations
    return run


def evaluation_limit(evaluations: int | None) -> Stop | None:
    """The stop rule of --evaluations."""
    from placewright.solvers import MaxEvaluations

    return None if evaluations is None else MaxEvaluations(evaluations)


def parse_budget(text: str | None) -> float | None:
    """Seconds of --budget.

    Raises:
        ConfigError: It is not a time.
    """
    if text is None:
        return None
    try:
        return parse_seconds(text)
    except ConfigError as error:
        raise ConfigError(f"--budget: {error}") from None


def parse_sizes(option: str, texts: Texts, cluster: Cluster) -> dict[str, int]:
    """Bytes by device: `2GiB` is for every device that is no host, `gpu0=2GiB` for one."""
    everywhere: dict[str, int] = {}
    named: dict[str, int] = {}
    for text in (word for several in texts or () for word in _split_names(option, several)):
        name, equals, amount = text.rpartition("=")
        try:
            size = parse_bytes(amount)
        except ConfigError as error:
            raise ConfigError(f"{option} {text!r}: {error}") from None
        if not equals:
            everywhere = {device.name: size for device in cluster.devices if device.kind != "cpu"}
        elif name in cluster.position:
            named[name] = size
        else:
            suggestion = nearest(name, cluster.position)
            raise ConfigError(
                f"{option} {text!r}: the cluster has no device {name!r}: {suggestion}"
            )
    return everywhere | named


def _parse_pairs(option: str, texts: Texts, example: str) -> Iterable[tuple[str, str]]:
    for text in texts or ():
        ops, _, devices = (part.strip() for part in text.rpartition("="))
        if not (ops and devices):
            raise ConfigError(f"{option} {text!r}: expected ops and a device, such as {example}")
        yield ops, devices


def _split_names(option: str, text: str) -> tuple[str, ...]:
    words = tuple(word for part in text.split(",") if (word := part.strip()))
    if not words:
        raise ConfigError(f"{option} {text!r}: expected names with commas between them")
    return words


def _with_caller(problem: Problem) -> Problem:
    """The problem whose inputs enter and whose outputs leave at the first host."""
    from placewright.runtime.distributed.caller_problem import with_caller
    from placewright.runtime.distributed.host_ranks import host_of

    if len({host_of(device.name) for device in problem.cluster.devices}) < 2:
        names = ", ".join(device.name for device in problem.cluster.devices)
        raise ConfigError(
            f"--caller is for several hosts, and the devices are {names}: expected a cluster such "
            "as 2x(cpu)@25GbE, or one that placewright profile measured under torchrun"
        )
    return with_caller(problem)


def _as_executed(problem: Problem, machine: MachineProfile) -> Problem:
    """A problem on this machine, as the runtime will run it."""
    from placewright.costs import Table
    from placewright.profiling.as_executed import executed_problem

    costs = problem.costs
    if isinstance(costs, Table) and costs.machine and costs.machine != machine.machine.key:
        print_note("the op times were measured on another machine, or before this one changed")
    return executed_problem(problem, machine)


def _restore_value(name: str, value: object) -> Any:
    kind: type = str
    expected = "text"
    if name in _LIST_OPTIONS:
        kind, expected = tuple, "a list of texts"
    elif name in _FLAG_OPTIONS:
        kind, expected = bool, "true or false"
    if not isinstance(value, kind):
        raise ConfigError(f"the result was made with {name} {value!r}: expected {expected}")
    if isinstance(value, tuple):
        return list(value)
    if name in _ENUM_OPTIONS:
        choices = _ENUM_OPTIONS[name]
        if value not in list(choices):
            raise ConfigError(
                f"the result was made with {name} {value!r}: {nearest(str(value), choices)}"
            )
        return choices(str(value))
    return Path(str(value)) if name == "costs" else value
