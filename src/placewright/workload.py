"""A workload: several calls of one model, such as prefill and decode, that share its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright.costs import Roofline, Table
from placewright.disjoint_sets import DisjointSets
from placewright.errors import ProblemError, nearest
from placewright.graph import STATE, WEIGHT, Graph, Op
from placewright.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from placewright.cluster import Cluster
    from placewright.costs import CostModel, FusedParts, Seconds
    from placewright.device import Link
    from placewright.problem import Objective


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a model: a graph for one shape of inputs, and how often it is made.

    Args:
        name: Its name in the workload, e.g. `decode`.
        problem: Its graph on the cluster, with the costs of this shape.
        count: How often it is made; its step time counts this many times. Any number above 0.
    """

    name: str
    problem: Problem
    count: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise ProblemError(f"a call is named {self.name!r}: expected a text, e.g. 'decode'")
        if not isinstance(self.problem, Problem):
            raise ProblemError(
                f"call {self.name!r} has {type(self.problem).__name__} as its problem: "
                "expected Problem(graph, cluster)"
            )
        is_number = isinstance(self.count, (int, float, np.integer, np.floating))
        if not (is_number and math.isfinite(self.count) and self.count > 0):
            raise ProblemError(
                f"call {self.name!r} is made {self.count!r} times: expected a number above 0"
            )

    def __repr__(self) -> str:
        return f"Call({self.name!r}, {self.problem.graph!r}, count={self.count:g})"


@dataclass(frozen=True, eq=False)
class Workload:
    """Calls that run one after the other on one cluster and share weights and states by name.

    A weight or a state has one device in all calls; it occupies that device also while a call runs
    that does not read it. The rest of a plan is chosen for each call: where ops run, in which
    order, and which weights are streamed. Memory must hold in each call, and the objective is the
    sum of the calls' step times (or periods), each times its count.

    A weight has the same bytes in all calls that have it. A state may grow from call to call, as a
    KV cache does: it occupies its largest size in all of them.

    Raises:
        ProblemError: Calls differ in cluster, limits, objective or weights, or share a name.
    """

    calls: tuple[Call, ...]

    def __post_init__(self) -> None:
        calls = tuple(self.calls)
        object.__setattr__(self, "calls", calls)
        if not calls or not all(isinstance(call, Call) for call in calls):
            raise ProblemError(
                f"a workload of {self.calls!r}: expected one call or more, "
                "such as Workload([Call('prefill', problem), Call('decode', other, count=128)])"
            )
        names = [call.name for call in calls]
        if len(set(names)) < len(names):
            raise ProblemError(f"two calls have one name: {', '.join(names)}; give each its own")
        first = calls[0]
        for call in calls[1:]:
            for what, mine, theirs in (
                (
                    "cluster",
                    first.problem.cluster.fingerprint,
                    call.problem.cluster.fingerprint,
                ),
                ("objective", first.problem.objective, call.problem.objective),
                ("discipline", first.problem.discipline, call.problem.discipline),
                ("overlap", first.problem.overlap, call.problem.overlap),
                (
                    "limits",
                    dict(first.problem.constraints.limits),
                    dict(call.problem.constraints.limits),
                ),
            ):
                if mine != theirs:
                    raise ProblemError(
                        f"calls {first.name!r} and {call.name!r} differ in {what}: all calls of a "
                        "workload share it"
                    )
        _ = self.weights

    def __repr__(self) -> str:
        calls = ", ".join(f"{call.name} x{call.count:g}" for call in self.calls)
        return f"Workload({calls}, {len(self.weights):,} weights and states)"

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def cluster(self) -> Cluster:
        return self.calls[0].problem.cluster

    @property
    def objective(self) -> Objective:
        return self.calls[0].problem.objective

    @cached_property
    def counts(self) -> NDArray[np.float64]:
        return np.array([call.count for call in self.calls], dtype=np.float64)

    def position(self, name: str) -> int:
        """The position of a call by its name.

        Raises:
            ProblemError: There is no such call.
        """
        names = [call.name for call in self.calls]
        if name not in names:
            raise ProblemError(f"the workload has no call {name!r}: {nearest(name, names)}")
        return names.index(name)

    @cached_property
    def weights(self) -> dict[str, Op]:
        """The weights and states of all calls by name, each with its largest size."""
        weights: dict[str, Op] = {}
        owner: dict[str, str] = {}
        for call in self.calls:
            for op in call.problem.graph.ops:
                if op.kind not in (WEIGHT, STATE):
                    continue
                known = weights.setdefault(op.name, op)
                owner.setdefault(op.name, call.name)
                if (known.kind, known.dtype, len(known.outputs)) != (
                    *(op.kind, op.dtype, len(op.outputs)),
                ) or (
                    op.kind == WEIGHT
                    and (known.outputs, known.resident) != (op.outputs, op.resident)
                ):
                    raise ProblemError(
                        f"{_describe(known)} {op.name!r} in call {owner[op.name]!r} and "
                        f"{_describe(op)} in call {call.name!r}: what calls share by name must be "
                        "the same; rename one of them"
                    )
                if _resident_bytes(op) > _resident_bytes(known):
                    weights[op.name] = op
        for call in self.calls:
            for op in call.problem.graph.ops:
                if op.name in weights and op.kind not in (WEIGHT, STATE):
                    raise ProblemError(
                        f"op {op.name!r} of call {call.name!r} has the name of a "
                        f"{weights[op.name].kind} of call {owner[op.name]!r}: rename one of them"
                    )
        return weights

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """The problem of each call, with all weights and states of the workload.

        Those of other calls come last: nothing reads them, but they occupy their device. A call
        that has all of them, free to be anywhere the other calls allow, keeps its own problem.
        """
        groups: dict[int, list[str]] = {}
        for name, group in zip(self.weights, self.weight_groups.tolist(), strict=True):
            groups.setdefault(group, []).append(name)
        colocate = [tuple(names) for names in groups.values() if len(names) > 1]
        allowed = self._allowed_devices
        return tuple(
            _with_all_weights(call.problem, self.weights, allowed, colocate) for call in self.calls
        )

    @cached_property
    def weight_positions(self) -> NDArray[np.int64]:
        """Calls × weights: the position of each weight in the graphs of `problems`."""
        return np.array(
            [[problem.graph.position[name] for name in self.weights] for problem in self.problems],
            dtype=np.int64,
        ).reshape(len(self), len(self.weights))

    @cached_property
    def weight_groups(self) -> NDArray[np.int64]:
        """Weights: a number; weights of one number must share a device, in any of the calls."""
        sets = DisjointSets(len(self.weights))
        row = {name: at for at, name in enumerate(self.weights)}
        for call in self.calls:
            first_of_unit: dict[int, int] = {}
            unit = call.problem.arrays.unit.tolist()
            for position, op in enumerate(call.problem.graph.ops):
                if op.name in row:
                    sets.merge(first_of_unit.setdefault(unit[position], row[op.name]), row[op.name])
        heads = np.array([sets.find(weight) for weight in range(len(row))], dtype=np.int64)
        return np.unique(heads, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def _allowed_devices(self) -> dict[str, NDArray[np.bool_]]:
        """Where all calls allow each weight and state."""
        groups = self.weight_groups
        allowed = np.ones((int(groups.max(initial=-1)) + 1, len(self.cluster)), dtype=bool)
        for call in self.calls:
            position = call.problem.graph.position
            for name, group in zip(self.weights, groups, strict=True):
                if name in position:
                    allowed[group] &= call.problem.arrays.allowed[position[name]]
        for name, group in zip(self.weights, groups, strict=True):
            if not allowed[group].any():
                raise ProblemError(
                    f"no device is left for {self.weights[name].kind} {name!r}: the calls' pins, "
                    "forbidden devices and colocations contradict each other; loosen one"
                )
        return {name: allowed[group] for name, group in zip(self.weights, groups, strict=True)}


def _describe(op: Op) -> str:
    size = f"{_resident_bytes(op):,} bytes"
    return f"{op.kind} ({size}, {op.dtype})"


def _resident_bytes(op: Op) -> int:
    return op.resident + sum(op.outputs)


def _with_all_weights(
    problem: Problem,
    weights: Mapping[str, Op],
    allowed: Mapping[str, NDArray[np.bool_]],
    colocate: Sequence[tuple[str, ...]],
) -> Problem:
    graph, arrays = problem.graph, problem.arrays
    position = graph.position
    idle = [
        replace(op, colocate=None, runs_on=())
        for name, op in weights.items()
        if name not in position
    ]
    grown = {
        name: _resident_bytes(op) - _resident_bytes(graph.ops[position[name]])
        for name, op in weights.items()
        if name in position and _resident_bytes(op) > _resident_bytes(graph.ops[position[name]])
    }
    is_narrowed = any(
        (arrays.allowed[position[name]] & ~allowed[name]).any()
        for name in weights
        if name in position
    )
    is_parted = any(
        len({arrays.unit[position[name]] for name in group if name in position}) > 1
        for group in colocate
    )
    if not (idle or grown or is_narrowed or is_parted):
        return problem
    ops = [
        replace(op, resident=op.resident + grown[op.name]) if op.name in grown else op
        for op in graph.ops
    ]
    forbidden = {
        name: tuple(
            device.name
            for device, may in zip(problem.cluster.devices, allowed[name], strict=True)
            if not may
        )
        for name in weights
    }
    # Patterns are resolved first: those of this call say nothing about other calls' weights.
    constraints = problem.resolved_constraints()
    forbid = {
        name: tuple(dict.fromkeys((*constraints.forbid.get(name, ()), *forbidden.get(name, ()))))
        for name in dict.fromkeys((*constraints.forbid, *forbidden))
    }
    return replace(
        problem,
        graph=Graph(graph.name, (*ops, *idle), graph.outputs),
        costs=_with_idle_ops(problem.costs, graph, idle),
        constraints=replace(
            constraints,
            forbid={name: devices for name, devices in forbid.items() if devices},
            colocate=(*constraints.colocate, *colocate),
        ),
    )


def _with_idle_ops(costs: CostModel, graph: Graph, idle: Sequence[Op]) -> CostModel:
    """The costs with weights that nothing reads, which take no time."""
    if isinstance(costs, Roofline) or not idle:
        return costs
    if not isinstance(costs, Table):
        return _IdleOpCosts(costs, graph)
    rows = len(idle)
    zeros = np.zeros((rows, len(costs.columns)))
    tensors = sum(len(op.outputs) for op in idle)

    def extend(values: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        return None if values is None else np.concatenate([values, zeros])

    return replace(
        costs,
        ops=(*costs.ops, *(op.name for op in idle)),
        seconds=np.concatenate([costs.seconds, zeros]),
        transfers=None
        if costs.transfers is None
        else np.concatenate([costs.transfers, np.zeros(tensors)]),
        issue=extend(costs.issue),
        spread=extend(costs.spread),
        workspace=None
        if costs.workspace is None
        else np.concatenate([costs.workspace, np.zeros(rows, dtype=np.int64)]),
    )


@dataclass(frozen=True, eq=False)
class _IdleOpCosts:
    """The costs of a graph, to which ops were appended that take no time."""

    base: CostModel
    graph: Graph

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        seconds = self.base.op_seconds(self.graph, cluster)
        return np.concatenate([seconds, np.zeros((len(graph) - len(seconds), len(cluster)))])

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        seconds = self.base.transfer_seconds(self.graph, links)
        tensors = sum(len(op.outputs) for op in graph.ops)
        return np.concatenate([seconds, np.zeros((len(links), tensors - seconds.shape[1]))], axis=1)

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        parts = self.base.fused_parts(self.graph, cluster)
        idle = len(graph) - len(self.graph)
        zeros = np.zeros((idle, len(cluster)))
        return replace(
            parts,
            unfused=np.concatenate([parts.unfused, zeros]),
            work=np.concatenate([parts.work, zeros]),
            bytes_moved=np.concatenate([parts.bytes_moved, np.zeros(idle, dtype=np.int64)]),
            free=np.concatenate([parts.free, np.ones(idle, dtype=bool)]),
        )
