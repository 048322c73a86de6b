"""Modules of a PyTorch model in, which of them can be placed as a whole, and where, out.

Accelerate moves tensors where a module that its map names is called, and nowhere else. So a module
can be split over devices only if

- it holds no weights of its own (the root may: they go to the main device), and does not read its
  submodules' weights without calling them;
- each op of its own `forward` reads tensors of one device.

A module that cannot be split stays whole; what remains is split as finely as the plan asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.exporters.module_votes import majority
from placewright.graph import INPUT, STATE, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placewright.exporters.base import Ask

ANYWHERE = -1  # a tensor made from nothing, such as a range: it goes where it is read
ROOT = ""


@dataclass(eq=False)
class Modules:
    """The model's modules as far as ops and weights name them.

    Args:
        whole: Modules that are placed as a whole, as far as is known.
        why: For each that had to be, the reason.
    """

    ask: Ask
    whole: set[str] = field(default_factory=set)
    why: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ops = self.ask.problem.graph.ops
        self.paths = {path for op in ops for path in upwards(op.module)} | {ROOT}
        parents = {_parent(path) for path in self.paths if path != ROOT}
        self.whole |= self.paths - parents
        for position, op in enumerate(ops):
            if op.kind in (WEIGHT, STATE):
                if op.module not in (ROOT, *self.whole):
                    self._fold(op.module, f"it holds {op.name!r} itself")
                for reader in self._readers(position):
                    if reader != ROOT and _inside(op.module, reader) and reader != op.module:
                        self._fold(reader, f"it reads {op.name!r} without calling its module")

    def _readers(self, position: int) -> list[str]:
        graph = self.ask.problem.graph
        found = graph.readers.get((position, 0), ())
        return [graph.ops[reader].module for reader in found]

    def _fold(self, path: str, why: str) -> None:
        if path not in self.whole:
            self.whole.add(path)
            self.why[path] = why

    def unit(self, path: str) -> str | None:
        """The outermost whole module around a path, if there is one."""
        return next((outer for outer in reversed(list(upwards(path))) if outer in self.whole), None)

    def units(self) -> dict[str, int]:
        """The modules that are placed as a whole, in order of their first op, numbered."""
        found: dict[str, int] = {}
        for op in self.ask.problem.graph.ops:
            unit = self.unit(op.module)
            if unit is not None:
                found.setdefault(unit, len(found))
        return found

    def settle(self, main: int) -> Flow:
        """Fold modules until everything can run, and say where each op then does."""
        while True:
            flow = Flow(self, main)
            if flow.clash is None:
                return flow
            position, devices = flow.clash
            op = self.ask.problem.graph.ops[position]
            names = [self.ask.problem.cluster.devices[at].name for at in devices]
            self._fold(op.module, f"{op.name!r} reads tensors of {names[0]} and {names[1]}")

    def read_by_root(self, unit: str) -> bool:
        """Whether the root reads weights of a unit without calling it."""
        ops = self.ask.problem.graph.ops
        return any(
            op.kind == WEIGHT and self.unit(op.module) == unit and ROOT in self._readers(position)
            for position, op in enumerate(ops)
        )


class Flow:
    """Where each op runs under a placement of whole modules.

    Attributes:
        device: Each unit's device.
        at: Each op's device, or ANYWHERE.
        clash: The first op that reads tensors of several devices, and which, if there is one.
    """

    def __init__(self, modules: Modules, main: int) -> None:
        ask = modules.ask
        graph = ask.problem.graph
        self.units = modules.units()
        group = np.array([self.units.get(modules.unit(op.module) or "?", -1) for op in graph.ops])
        if ROOT in self.units:
            group[:] = self.units[ROOT]
        chosen = majority(ask, group, len(self.units))
        self.group = group
        self.device = {unit: int(chosen[at]) for unit, at in self.units.items()}
        self.at: NDArray[np.int32] = np.full(len(graph), ANYWHERE, dtype=np.int32)
        self.clash: tuple[int, list[int]] | None = None
        for position, op in enumerate(graph.ops):
            if op.kind == INPUT:
                self.at[position] = main
            elif group[position] >= 0 and chosen[group[position]] >= 0:
                self.at[position] = chosen[group[position]]
            elif op.kind in (WEIGHT, STATE):
                self.at[position] = main
            else:
                sources = [int(self.at[source]) for source, _ in op.inputs]
                devices = [at for at in dict.fromkeys(sources) if at != ANYWHERE]
                self.at[position] = devices[0] if devices else ANYWHERE
                # Backward ops are autograd's, which moves gradients as the forward op did tensors.
                if len(devices) > 1 and self.clash is None and op.phase == "forward":
                    self.clash = position, devices


def upwards(path: str) -> Iterator[str]:
    """A path and those around it, the root last."""
    while path:
        yield path
        path = _parent(path)
    yield ROOT


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _inside(path: str, outer: str) -> bool:
    return outer == ROOT or path == outer or path.startswith(f"{outer}.")
