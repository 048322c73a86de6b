"""The options that describe a problem, as typed, in, the problem out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import typer

from placewright.cli.resolve import (
    Reading,
    as_run_here,
    find_cluster,
    find_model,
    is_here,
    measure_costs,
)
from placewright.errors import ConfigError, nearest
from placewright.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from placewright.cli.options import Discipline, Objective
    from placewright.cluster import Cluster
    from placewright.costs import Table
    from placewright.problem import Constraints, Problem
    from placewright.solvers import Stop

Texts = list[str] | None


@dataclass(frozen=True)
class Asked:
    """The options that say what the problem is; `options.py` says what each means."""

    model: str
    on: str | None = None
    objective: Objective | None = None
    discipline: Discipline | None = None
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
    def of(cls, typed: Mapping[str, Any]) -> Asked:
        """Those of a command's arguments, its `locals()`, that say what the problem is."""
        return cls(**{each.name: typed[each.name] for each in fields(cls) if each.name in typed})

    def problem(self) -> Problem:
        """The problem that is asked for.

        Raises:
            PlacewrightError: A name is unknown, a file is bad, or things do not go together.
        """
        from placewright import files
        from placewright.costs import Roofline
        from placewright.problem import Problem

        cluster = None if self.on is None else find_cluster(self.on)
        problem = find_model(self.model, cluster, self.reading())
        if not isinstance(problem, Problem):
            if cluster is None:
                what = f"{self.model} brings no cluster: name one, such as 2xP100+cpu"
                raise typer.BadParameter(what, param_hint="'--on'")
            problem = Problem(problem, cluster)
            if self.on is not None and is_here(self.on):
                # Measured rates are what kernels reach, not a data sheet's.
                problem = replace(problem, costs=Roofline(compute=1.0, memory=1.0))
        cluster = self._narrowed(problem.cluster if cluster is None else cluster)
        constraints = self._joined(problem.constraints, cluster)
        problem = replace(problem, cluster=cluster, constraints=constraints)
        if self.costs is not None and is_here(str(self.costs)):
            problem = replace(problem, costs=self._measured(constraints.limits))
        elif self.costs is not None:
            problem = replace(problem, costs=files.load(self.costs, "costs"))
        if self.on is not None and is_here(self.on):
            problem = as_run_here(problem, self.on)
        if self.objective is not None:
            problem = replace(problem, objective=self.objective.value)
        if self.discipline is not None:
            problem = replace(problem, discipline=self.discipline.word)
        return problem

    def _measured(self, limits: Mapping[str, int]) -> Table:
        """What each op takes on this machine, measured now or before."""
        if self.on is None or not is_here(self.on):
            raise ConfigError("--costs here: ops are measured on this machine: give --on here, too")
        return measure_costs(self.model, self.on, self.training, self.optimizer, limits)

    def reading(self) -> Reading:
        """How a model file is to be read."""
        dims: dict[str, int] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for text in (word for several in self.dims or () for word in _words("--dims", several)):
            name, _, sizes = text.rpartition("=")
            if not (name and all(part.isdecimal() for part in sizes.split("x"))):
                raise ConfigError(f"--dims {text!r}: expected such as batch=8 or x=8x224x224")
            if "x" in sizes:
                shapes[name] = tuple(int(part) for part in sizes.split("x"))
            else:
                dims[name] = int(sizes)
        return Reading(self.training, self.optimizer, dims, shapes)

    def _narrowed(self, cluster: Cluster) -> Cluster:
        """The devices to be used, with the memory to be kept back."""
        if self.use is not None:
            cluster = cluster.only(_words("--use", self.use))
        kept = sizes("--reserve", self.reserve, cluster)
        devices = [
            replace(each, reserve=kept.get(each.name, each.reserve)) for each in cluster.devices
        ]
        return replace(cluster, devices=tuple(devices)) if kept else cluster

    def _joined(self, given: Constraints, cluster: Cluster) -> Constraints:
        """The problem's own constraints and those of the options, which go before."""
        pins: dict[str, str] = {}
        for ops, name in _pairs("--pin", self.pin, "'blocks.0.*=gpu0'"):
            if pins.setdefault(ops, name) != name:
                raise ConfigError(f"--pin puts {ops!r} on {pins[ops]!r} and on {name!r}: keep one")
        forbid: dict[str, tuple[str, ...]] = defaultdict(tuple)
        for ops, names in _pairs("--forbid", self.forbid, "'*.norm=cpu'"):
            forbid[ops] += _words("--forbid", names)
        colocate = [_words("--colocate", text) for text in self.colocate or ()]
        return replace(
            given,
            pins={**given.pins, **pins},
            forbid={**given.forbid, **forbid},
            colocate=(*given.colocate, *colocate),
            limits={**given.limits, **sizes("--limit", self.limit, cluster)},
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


def sizes(option: str, texts: Texts, cluster: Cluster) -> dict[str, int]:
    """Bytes by device: `2GiB` is for every device that is no host, `gpu0=2GiB` for one."""
    everywhere: dict[str, int] = {}
    named: dict[str, int] = {}
    for text in (word for several in texts or () for word in _words(option, several)):
        name, equals, amount = text.rpartition("=")
        try:
            size = parse_bytes(amount)
        except ConfigError as error:
            raise ConfigError(f"{option} {text!r}: {error}") from None
        if not equals:
            everywhere = {each.name: size for each in cluster.devices if each.kind != "cpu"}
        elif name in cluster.position:
            named[name] = size
        else:
            offer = nearest(name, cluster.position)
            raise ConfigError(f"{option} {text!r}: the cluster has no device {name!r}: {offer}")
    return everywhere | named


def _pairs(option: str, texts: Texts, example: str) -> Iterable[tuple[str, str]]:
    for text in texts or ():
        ops, _, devices = (part.strip() for part in text.rpartition("="))
        if not (ops and devices):
            raise ConfigError(f"{option} {text!r}: expected ops and a device, such as {example}")
        yield ops, devices


def _words(option: str, text: str) -> tuple[str, ...]:
    words = tuple(word for part in text.split(",") if (word := part.strip()))
    if not words:
        raise ConfigError(f"{option} {text!r}: expected names with commas between them")
    return words
