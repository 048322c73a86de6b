"""Finds which modules of a PyTorch model can be placed as a whole, and where.

Accelerate moves tensors only at calls of modules that its map names. So a module can be split over
devices only if

- it holds no weights of its own (the root may: they go to the main device), and does not read its
  submodules' weights without calling them;
- each op of its own `forward` reads tensors of one device.

A module that cannot be split stays whole; all others are split as finely as the plan requires.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.exporters.module_paths import ROOT, enclosing_paths, is_inside, parent_path
from placewright.exporters.module_votes import majority_devices
from placewright.graph import INPUT, STATE, WEIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.exporters.base import ExportRequest

ANYWHERE = -1  # a tensor without inputs, such as a range: it is created where it is read


@dataclass(eq=False)
class ModuleUnits:
    """The model's modules that ops and weights name.

    Args:
        whole: Modules that are known to be placed as a whole.
        reasons: Why a module cannot be split.
    """

    request: ExportRequest
    whole: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ops = self.request.problem.graph.ops
        self.paths = {path for op in ops for path in enclosing_paths(op.module)} | {ROOT}
        parents = {parent_path(path) for path in self.paths if path != ROOT}
        self.whole |= self.paths - parents
        for position, op in enumerate(ops):
            if op.kind in (WEIGHT, STATE):
                if op.module not in (ROOT, *self.whole):
                    self._keep_whole(op.module, f"it holds {op.name!r} itself")
                for reader in self._reader_modules(position):
                    if reader != ROOT and is_inside(op.module, reader) and reader != op.module:
                        self._keep_whole(reader, f"it reads {op.name!r} without calling its module")

    def _reader_modules(self, position: int) -> list[str]:
        graph = self.request.problem.graph
        readers = graph.readers.get((position, 0), ())
        return [graph.ops[reader].module for reader in readers]

    def _keep_whole(self, path: str, reason: str) -> None:
        if path not in self.whole:
            self.whole.add(path)
            self.reasons[path] = reason

    def unit(self, path: str) -> str | None:
        """The outermost whole module around a path, if there is one."""
        return next(
            (outer for outer in reversed(list(enclosing_paths(path))) if outer in self.whole), None
        )

    def units(self) -> dict[str, int]:
        """The modules that are placed as a whole, numbered in order of their first op."""
        numbers: dict[str, int] = {}
        for op in self.request.problem.graph.ops:
            unit = self.unit(op.module)
            if unit is not None:
                numbers.setdefault(unit, len(numbers))
        return numbers

    def place_units(self, main_device: int) -> ModulePlacement:
        """Keep modules whole until no op reads two devices, and return the placement."""
        while True:
            placement = ModulePlacement(self, main_device)
            if placement.conflict is None:
                return placement
            position, devices = placement.conflict
            op = self.request.problem.graph.ops[position]
            names = [self.request.problem.cluster.devices[at].name for at in devices]
            self._keep_whole(op.module, f"{op.name!r} reads tensors of {names[0]} and {names[1]}")

    def is_read_by_root(self, unit: str) -> bool:
        """Whether the root reads weights of a unit without calling it."""
        ops = self.request.problem.graph.ops
        return any(
            op.kind == WEIGHT
            and self.unit(op.module) == unit
            and ROOT in self._reader_modules(position)
            for position, op in enumerate(ops)
        )


class ModulePlacement:
    """Where each op runs under a placement of whole modules.

    Attributes:
        unit_device: Each unit's device.
        op_device: Each op's device, or ANYWHERE.
        conflict: The first op that reads tensors of several devices, and these devices, if any.
    """

    def __init__(self, modules: ModuleUnits, main_device: int) -> None:
        request = modules.request
        graph = request.problem.graph
        self.units = modules.units()
        op_unit = np.array([self.units.get(modules.unit(op.module) or "?", -1) for op in graph.ops])
        if ROOT in self.units:
            op_unit[:] = self.units[ROOT]
        unit_devices = majority_devices(request, op_unit, len(self.units))
        self.op_unit = op_unit
        self.unit_device = {unit: int(unit_devices[at]) for unit, at in self.units.items()}
        self.op_device: NDArray[np.int32] = np.full(len(graph), ANYWHERE, dtype=np.int32)
        self.conflict: tuple[int, list[int]] | None = None
        for position, op in enumerate(graph.ops):
            if op.kind == INPUT:
                self.op_device[position] = main_device
            elif op_unit[position] >= 0 and unit_devices[op_unit[position]] >= 0:
                self.op_device[position] = unit_devices[op_unit[position]]
            elif op.kind in (WEIGHT, STATE):
                self.op_device[position] = main_device
            else:
                input_devices = [int(self.op_device[source]) for source, _ in op.inputs]
                devices = [at for at in dict.fromkeys(input_devices) if at != ANYWHERE]
                self.op_device[position] = devices[0] if devices else ANYWHERE
                # Autograd moves the gradients of backward ops as the forward op moved tensors.
                if len(devices) > 1 and self.conflict is None and op.phase == "forward":
                    self.conflict = position, devices
