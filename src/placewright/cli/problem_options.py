"""Problem options of the command line, and the problem that they describe."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import typer

from placewright.cli.resolve import (
    ModelOptions,
    as_executed_here,
    find_cluster,
    find_model,
    is_this_machine,
    measure_costs,
)
from placewright.errors import ConfigError, nearest
from placewright.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from placewright.cli.options import DisciplineChoice, ObjectiveChoice
    from placewright.cluster import Cluster
    from placewright.costs import Table
    from placewright.problem import Constraints, Problem
    from placewright.solvers import Stop

Texts = list[str] | None


@dataclass(frozen=True)
class ProblemOptions:
    """The options that say what the problem is; `options.py` says what each means."""

    model: str
    on: str | None = None
    objective: ObjectiveChoice | None = None
    discipline: DisciplineChoice | None = None
    use: str | None = None
    reserve: Texts = None
    limit: Texts = None
    pin: Texts = None
    forbid: Texts = None
    colocate: Texts = None
    costs: Path | None = None
    training: bool = False
    optimizer: str | None = None
    dims: Texts = None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ProblemOptions:
        """Those of a command's arguments, its `locals()`, that say what the problem is."""
        return cls(
            **{
                option.name: arguments[option.name]
                for option in fields(cls)
                if option.name in arguments
            }
        )

    def problem(self) -> Problem:
        """The problem that is asked for.

        Raises:
            PlacewrightError: A name is unknown, a file is bad, or things do not go together.
        """
        from placewright import files
        from placewright.costs import Roofline
        from placewright.problem import Problem

        cluster = None if self.on is None else find_cluster(self.on)
        problem = find_model(self.model, cluster, self.model_options())
        if not isinstance(problem, Problem):
            if cluster is None:
                message = f"{self.model} brings no cluster: name one, such as 2xP100+cpu"
                raise typer.BadParameter(message, param_hint="'--on'")
            problem = Problem(problem, cluster)
            if self.on is not None and is_this_machine(self.on):
                # Measured rates are what kernels reach, not a data sheet's.
                problem = replace(problem, costs=Roofline(compute=1.0, memory=1.0))
        cluster = self._restrict_cluster(problem.cluster if cluster is None else cluster)
        constraints = self._merge_constraints(problem.constraints, cluster)
        problem = replace(problem, cluster=cluster, constraints=constraints)
        if self.costs is not None and is_this_machine(str(self.costs)):
            problem = replace(problem, costs=self._measure_costs(constraints.limits))
        elif self.costs is not None:
            problem = replace(problem, costs=files.load(self.costs, "costs"))
        if self.on is not None and is_this_machine(self.on):
            problem = as_executed_here(problem, self.on)
        if self.objective is not None:
            problem = replace(problem, objective=self.objective.value)
        if self.discipline is not None:
            problem = replace(problem, discipline=self.discipline.problem_value)
        return problem

    def _measure_costs(self, limits: Mapping[str, int]) -> Table:
        """What each op takes on this machine, measured now or before."""
        if self.on is None or not is_this_machine(self.on):
            raise ConfigError("--costs here: ops are measured on this machine: give --on here, too")
        return measure_costs(self.model, self.on, self.training, self.optimizer, limits)

    def model_options(self) -> ModelOptions:
        """How a model file is to be read."""
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
        """The devices to be used, with the memory to be kept back."""
        if self.use is not None:
            cluster = cluster.subset(_split_names("--use", self.use))
        reserves = parse_sizes("--reserve", self.reserve, cluster)
        devices = [
            replace(device, reserve=reserves.get(device.name, device.reserve))
            for device in cluster.devices
        ]
        return replace(cluster, devices=tuple(devices)) if reserves else cluster

    def _merge_constraints(self, constraints: Constraints, cluster: Cluster) -> Constraints:
        """The problem's own constraints and those of the options, which go before."""
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


def stop_rule(budget: str | None, evaluations: int | None, default: str | None = None) -> Stop:
    """When a search stops: at the first of these, or at the method's own end.

    Args:
        default: The budget where neither is given.
    """
    from placewright.solvers import MaxEvaluations, MaxTime, Stop

    stop = Stop()
    if budget is None and evaluations is None:
        budget = default
    if budget is not None:
        try:
            stop |= MaxTime(parse_seconds(budget))
        except ConfigError as error:
            raise ConfigError(f"--budget: {error}") from None
    if evaluations is not None:
        stop |= MaxEvaluations(evaluations)
    return stop


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
