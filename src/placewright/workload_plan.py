"""A plan for a workload: one device for each weight, and a plan for each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlanError, nearest
from placewright.plan import NO_STAGING, Plan, check_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.workload import Workload


@dataclass(frozen=True, eq=False)
class WorkloadPlan:
    """Where each weight and state is, and for each call where ops run, in which order, with what
    staging.

    Make one with `WorkloadPlan.of(workload, plans)`, which checks it.

    Args:
        calls: Names of the calls.
        plans: The plan of each call, for its own graph.
        weights: Weight or state → its device, the same in all calls.
    """

    calls: tuple[str, ...]
    plans: tuple[Plan, ...]
    weights: Mapping[str, str]

    @classmethod
    def of(cls, workload: Workload, plans: Mapping[str, Plan] | Sequence[Plan]) -> WorkloadPlan:
        """A checked plan of this workload.

        Args:
            plans: A plan for each call, by its name or in the workload's order.

        Raises:
            PlanError: A call has no plan or not its own, or a weight is on two devices.
        """
        names = tuple(call.name for call in workload.calls)
        if isinstance(plans, Mapping):
            for name in (*names, *plans):
                if name not in plans or name not in names:
                    known = plans if name not in plans else names
                    raise PlanError(
                        f"plans and calls differ in {name!r}: {nearest(name, known)}; "
                        "expected one plan for each call"
                    )
            plans = [plans[name] for name in names]
        if len(plans) != len(names):
            raise PlanError(f"{len(plans)} plans for {len(names)} calls: expected one for each")
        weights: dict[str, str] = {}
        owner: dict[str, str] = {}
        for call, plan in zip(workload.calls, plans, strict=True):
            try:
                check_names(call.problem, plan)
                Plan.of(call.problem, plan.placement, plan.priority, plan.fusion, plan.staging)
            except PlanError as error:
                raise PlanError(f"call {call.name!r}: {error}") from None
            for name in workload.weights:
                position = call.problem.graph.position.get(name)
                if position is None:
                    continue
                device = plan.device_names[plan.placement[position]]
                if weights.setdefault(name, device) != device:
                    raise PlanError(
                        f"{workload.weights[name].kind} {name!r} is on {weights[name]!r} in call "
                        f"{owner[name]!r} and on {device!r} in call {call.name!r}: it has one "
                        "device in all calls"
                    )
                owner.setdefault(name, call.name)
        checked = cls(names, tuple(plans), {name: weights[name] for name in workload.weights})
        _check_allowed(workload, checked)
        return checked

    def __getitem__(self, call: str) -> Plan:
        """The plan of a call by its name."""
        if call not in self.calls:
            raise PlanError(f"the plan has no call {call!r}: {nearest(call, self.calls)}")
        return self.plans[self.calls.index(call)]

    def __len__(self) -> int:
        return len(self.plans)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkloadPlan):
            return NotImplemented
        return (
            self.calls == other.calls
            and self.plans == other.plans
            and dict(self.weights) == dict(other.weights)
        )

    def __hash__(self) -> int:
        return hash((self.calls, self.plans))

    def __repr__(self) -> str:
        devices = self.plans[0].device_names
        placed = list(self.weights.values())
        counts = ", ".join(f"{name}: {placed.count(name)}" for name in devices)
        return f"WorkloadPlan({', '.join(self.calls)}; weights on {counts})"

    def full_plans(self, workload: Workload) -> tuple[Plan, ...]:
        """The plan of each call for `workload.problems`, which have all weights."""
        return tuple(self._full_plan(workload, at) for at in range(len(self)))

    def _full_plan(self, workload: Workload, at: int) -> Plan:
        problem, plan = workload.problems[at], self.plans[at]
        idle = [op.name for op in problem.graph.ops[len(plan) :]]
        devices = [problem.cluster.position[self.weights[name]] for name in idle]
        return Plan.of(
            problem,
            np.concatenate([plan.placement, np.array(devices, dtype=np.int32)]),
            _extend(plan.priority, len(idle), 0.0),
            _extend(plan.fusion, len(idle), -1),
            plan.staging,
        )


def unused_staging(plans: Sequence[Plan]) -> list[list[int]]:
    """Bytes of each device's staging buffer that a call does not use, from calls × devices.

    The calls of a workload have one buffer on each device, as large as the largest that any of them
    uses: the runtime's CUDA graphs hold its address.
    """
    used = [
        [0] * len(plan.device_names)
        if plan.staging is None
        else [max(0, size) for size in plan.staging.tolist()]
        for plan in plans
    ]
    largest = [max(sizes) for sizes in zip(*used, strict=True)]
    return [[most - size for most, size in zip(largest, sizes, strict=True)] for sizes in used]


def own_plan(workload: Workload, at: int, full_plan: Plan) -> Plan:
    """The plan of a call for its own graph, from one for `workload.problems`."""
    problem = workload.calls[at].problem
    ops = len(problem.graph)
    staging = full_plan.staging
    if staging is not None and (staging == NO_STAGING).all():
        staging = None
    return Plan.of(
        problem,
        full_plan.placement[:ops],
        None if full_plan.priority is None else full_plan.priority[:ops],
        None if full_plan.fusion is None else full_plan.fusion[:ops],
        staging,
    )


def _check_allowed(workload: Workload, plan: WorkloadPlan) -> None:
    """Raise PlanError if a weight is where another call than its own forbids it."""
    try:
        plan.full_plans(workload)
    except PlanError as error:
        raise PlanError(f"the workload's weights: {error}") from None


def _extend(
    values: NDArray[np.float64] | NDArray[np.int32] | None, count: int, default: float
) -> NDArray[np.generic] | None:
    if values is None:
        return None
    return np.concatenate([values, np.full(count, default, dtype=values.dtype)])
