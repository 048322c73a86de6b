"""Memory fit: whether a model fits the devices, what takes the memory, and what would do.

A model that fits one device needs no search: one simulated step gives its peak. Otherwise a few
plans that take no search are tried, then a short one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.explanations.host_memory import AddedHost, add_host
from placewright.explanations.quick_plans import QuickPlans
from placewright.graph import STATE
from placewright.layers import LayerGroup, layer_groups
from placewright.plan import Plan
from placewright.solvers import Auto, MaxEvaluations, solve
from placewright.transforms.bundles import accelerators
from placewright.units import UNLIMITED, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.timeline import Timeline

_EVALUATIONS = 400  # of the short search where quick plans do not fit
_LARGE_GRAPH_OPS = 5_000  # above which there is none


@dataclass(frozen=True)
class MemoryUse:
    """What takes the memory of one device at its peak, in bytes.

    Args:
        weights: Weights that stay there.
        optimizer: States of the optimizer.
        cache: States of the model, such as a KV cache.
        activations: The most that activations, gradients and workspace take beside the rest.
        staging: The buffer that streamed weights pass through.
        usable: Bytes that a plan may use there.
    """

    device: str
    weights: int
    optimizer: int
    cache: int
    activations: int
    staging: int
    usable: int

    @property
    def peak(self) -> int:
        return self.weights + self.optimizer + self.cache + self.activations + self.staging

    @property
    def fits(self) -> bool:
        return self.peak <= self.usable


@dataclass(frozen=True, eq=False)
class MemoryFit:
    """Whether a model fits.

    Args:
        whole: The memory of everything on one device, the one that it fits best.
        plan: The best quick plan; None where weights and states exceed all devices together.
        seconds: The plan's step time or period, if it fits.
        uses: The memory of each device in that plan.
        added_host: A plan with a host, where nothing fits and the cluster has none.
        needed: Bytes that every plan needs, all devices together: weights and states.
    """

    problem: Problem
    whole: MemoryUse
    plan: Plan | None
    seconds: float | None
    uses: tuple[MemoryUse, ...]
    added_host: AddedHost | None
    needed: int

    @property
    def fits(self) -> bool:
        return self.seconds is not None

    @property
    def layers(self) -> tuple[LayerGroup, ...]:
        """Where the layers are in the plan, if it fits."""
        return () if self.plan is None or not self.fits else layer_groups(self.problem, self.plan)

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        whole = self.whole
        peak, usable = format_bytes(whole.peak), _limit_text(whole.usable)
        if whole.fits:
            return f"fits: everything on {whole.device}, {peak} of {usable}"
        if self.seconds is not None:
            return (
                f"fits in parts, {format_seconds(self.seconds)} per step: everything takes {peak}, "
                f"and {whole.device} has {usable}"
            )
        lacking = format_bytes(whole.peak - whole.usable)
        return f"does not fit: everything takes {peak}, {lacking} more than {whole.device} has"

    @property
    def remedies(self) -> list[str]:
        """What would do where it does not fit on one device."""
        whole = self.whole
        if whole.fits:
            return []
        lines = []
        if self.added_host is not None:
            added = self.added_host
            value = format_seconds(added.result.objective_value)
            memory = format_bytes(added.memory)
            lines.append(f"with a host of {memory} ({added.cluster}): it fits, {value} per step")
        size = format_bytes(_round_up(whole.peak))
        device = next(each for each in self.problem.cluster.devices if each.name == whole.device)
        lines.append(
            f"--limit {whole.device}={size.replace(' ', '')} would hold everything"
            if whole.peak <= device.capacity
            else f"a device with {size} of usable memory would hold everything"
        )
        return lines

    def __str__(self) -> str:
        columns = ("device", *COLUMNS)
        rows = [columns, *([use.device, *use_cells(use)] for use in self.shown_uses)]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        table = [
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        groups = [] if self.whole.fits else [f"  {group}" for group in self.layers]
        return "\n".join([self.verdict, *groups, *table, *self.remedies])

    @property
    def shown_uses(self) -> Sequence[MemoryUse]:
        """The plan's memory where it fits, otherwise that of everything on one device."""
        return self.uses if self.fits else (self.whole,)


COLUMNS = ("weights", "optimizer", "cache", "activations", "staging", "peak", "usable", "fits")
"""Heads of a table of memory uses, after the device."""


def use_cells(use: MemoryUse) -> list[str]:
    """A memory use as the cells of a table."""
    sizes = (use.weights, use.optimizer, use.cache, use.activations, use.staging, use.peak)
    cells = [format_bytes(size) if size else "–" for size in sizes]
    return [*cells, _limit_text(use.usable), "yes" if use.fits else "no"]


def fits(problem: Problem) -> MemoryFit:
    """Whether a model fits the devices, in whole or in parts. It takes no search where a sum does.

    The plan is a quick one: `solve` finds faster ones.
    """
    a = problem.arrays
    candidates = accelerators(problem)
    placements = problem.single_device_placements()[candidates]
    verdict = simulator.judge(problem, placements)
    spare = a.capacity[candidates] - verdict.peak[np.arange(len(candidates)), candidates]
    order = np.lexsort((-spare, verdict.value, verdict.overflow))
    best = int(order[0])
    plan = Plan.of(problem, placements[best])
    timeline = simulator.simulate(problem, plan)
    whole = memory_uses(problem, timeline)[int(candidates[best])]
    needed = int(a.resident.sum())
    if needed > int(a.capacity.sum()):
        uses, seconds = memory_uses(problem, timeline), None
        return MemoryFit(problem, whole, None, seconds, uses, add_host(problem), needed)
    if not timeline.fits:
        timeline = simulator.simulate(problem, _split_plan(problem, plan))
    value = timeline.step_time if problem.objective == "step" else timeline.period
    return MemoryFit(
        problem,
        whole,
        timeline.plan,
        value if timeline.fits else None,
        memory_uses(problem, timeline),
        None if timeline.fits else add_host(problem),
        needed,
    )


def _split_plan(problem: Problem, plan: Plan) -> Plan:
    """A plan on several devices that takes little or no search."""
    split = QuickPlans.of(problem, plan)(problem)
    if len(problem.graph) > _LARGE_GRAPH_OPS or simulator.simulate(problem, split).fits:
        return split
    stop = MaxEvaluations(_EVALUATIONS)
    return solve(problem, Auto(), stop, progress=False, warm_start=split).plan


def memory_uses(problem: Problem, timeline: Timeline) -> tuple[MemoryUse, ...]:
    """What takes each device's memory in a plan, by kind."""
    a, plan = problem.arrays, timeline.plan
    ops = problem.graph.ops
    is_cache = np.array([op.kind == STATE for op in ops])
    is_update = np.array([op.phase == "update" for op in ops]) & ~a.is_weight

    def resident(selection: NDArray[np.bool_]) -> list[int]:
        sizes = np.zeros(a.devices, dtype=np.int64)
        np.add.at(sizes, plan.placement[selection], a.resident[selection])
        return [int(size) for size in sizes]

    weights, optimizer = resident(~is_cache & ~is_update), resident(is_update & ~is_cache)
    cache = resident(is_cache)
    staging = [0] * a.devices if plan.staging is None else np.maximum(plan.staging, 0).tolist()
    uses = []
    for at, device in enumerate(problem.cluster.devices):
        fixed = weights[at] + optimizer[at] + cache[at] + staging[at]
        uses.append(
            MemoryUse(
                device.name,
                *(weights[at], optimizer[at], cache[at]),
                activations=int(timeline.peak[at]) - fixed,
                staging=int(staging[at]),
                usable=int(timeline.capacity[at]),
            )
        )
    return tuple(uses)


def _round_up(size: int) -> int:
    """The least size, not smaller, that is written exactly in four digits."""
    unit = 1024 ** max(0, (size.bit_length() - 1) // 10)
    step = Fraction(unit, 10 ** (4 - len(str(size // unit))))
    return math.ceil(math.ceil(size / step) * step)


def _limit_text(size: int) -> str:
    return "no limit" if size >= UNLIMITED else format_bytes(size)
