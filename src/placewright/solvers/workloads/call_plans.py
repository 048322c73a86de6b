"""Plans of all calls of a workload side by side, as they are evaluated: exactly, call by call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright import simulator
from placewright.errors import PlanError
from placewright.plan import NO_STAGING, Plan
from placewright.plan_batch import PlanBatch
from placewright.transforms.bundles import accelerators_first
from placewright.workload_plan import WorkloadPlan, own_plan
from placewright.workload_result import weighted_sum, worst_overflow

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.workload import Workload

Residency = NDArray[np.int32]
"""The device of each weight and state of a workload."""

LOOKAHEAD = (1, 2, 3, 4)
"""Numbers of consecutive readers whose copies a staging buffer holds, as in `streamed`."""


@dataclass(frozen=True, eq=False)
class CallPlan:
    """An evaluated plan of one call, for its problem in `workload.problems`."""

    plan: Plan
    value: float
    excess: tuple[int, ...]  # devices: peak less capacity

    @property
    def overflow(self) -> int:
        return sum(max(0, excess) for excess in self.excess)


@dataclass(frozen=True, eq=False)
class CallPlans:
    """Evaluated plans of all calls that agree on the devices of weights."""

    workload: Workload
    calls: tuple[CallPlan, ...]

    def __post_init__(self) -> None:
        for at, call in enumerate(self.calls):
            if not np.array_equal(residency_of(self.workload, at, call.plan), self.residency):
                raise PlanError(
                    f"the plan of call {self.workload.calls[at].name!r} has weights on other "
                    f"devices than that of {self.workload.calls[0].name!r}: a weight has one "
                    "device in all calls"
                )

    @property
    def key(self) -> tuple[int, float]:
        """Overflow and objective of the workload, by which its plans are compared."""
        values = [call.value for call in self.calls]
        return (
            worst_overflow(
                [list(call.excess) for call in self.calls], [call.plan for call in self.calls]
            ),
            weighted_sum(tuple(self.workload.counts.tolist()), values),
        )

    @property
    def residency(self) -> Residency:
        return residency_of(self.workload, 0, self.calls[0].plan)

    def with_call(self, at: int, call: CallPlan) -> CallPlans:
        """The same with another plan for one call."""
        return CallPlans(self.workload, (*self.calls[:at], call, *self.calls[at + 1 :]))

    def workload_plan(self) -> WorkloadPlan:
        return WorkloadPlan.of(
            self.workload,
            [own_plan(self.workload, at, call.plan) for at, call in enumerate(self.calls)],
        )


def residency_of(workload: Workload, at: int, plan: Plan) -> Residency:
    """The devices of all weights and states in a call's plan."""
    residency: Residency = plan.placement[workload.weight_positions[at]]
    return residency


def evaluate_call(workload: Workload, at: int, plan: Plan) -> CallPlan:
    """Simulate one call's plan, which is for its problem in `workload.problems`."""
    problem = workload.problems[at]
    verdict = simulator.judge_batch(problem, PlanBatch.repeat(plan))
    excess = verdict.peak[0] - problem.arrays.capacity
    return CallPlan(plan, float(verdict.value[0]), tuple(excess.tolist()))


def pin_weights(workload: Workload, at: int, residency: Residency) -> Problem:
    """A call's problem with every weight and state fixed to its device."""
    problem = workload.problems[at]
    a = problem.arrays
    device = np.full(a.ops, -1)
    device[a.unit[workload.weight_positions[at]]] = residency  # by unit
    device = device[a.unit]
    pinned = device >= 0
    allowed = a.allowed.copy()
    allowed[pinned] &= np.arange(a.devices) == device[pinned, None]
    return problem.with_arrays(allowed=allowed)


def transferred_plans(problem: Problem, plan: Plan) -> PlanBatch:
    """Plans for weights that are fixed: ops where a plan for other devices of the weights has them.

    Each with several staging buffers, as `simple_plans`.

    Args:
        problem: The call with every weight fixed to its device (`pin_weights`).
    """
    a = problem.arrays
    fixed = a.allowed.sum(axis=1) == 1
    placement = problem.legalize(np.where(fixed, a.allowed.argmax(axis=1), plan.placement))
    none = np.full(a.devices, NO_STAGING, dtype=np.int64)
    buffers = [none, *_stagings(problem, placement)]
    priority = None if plan.priority is None else np.stack([plan.priority] * len(buffers))
    return PlanBatch(np.stack([placement] * len(buffers)), priority, np.stack(buffers))


def simple_plans(problem: Problem) -> PlanBatch:
    """Plans for weights that are fixed: ops on one device each, or where their weights are.

    Each without staging buffers, and with buffers for the weights of 1 to 4 consecutive readers.
    """
    a = problem.arrays
    devices = accelerators_first(problem).tolist()
    placements = [problem.legalize(np.full(a.ops, device)) for device in devices]
    placements.append(_near_weights(problem))
    rows, buffers = [], []
    for placement in placements:
        none = np.full(a.devices, NO_STAGING, dtype=np.int64)
        for staging in [none, *_stagings(problem, placement)]:
            rows.append(placement)
            buffers.append(staging)
    return PlanBatch(np.stack(rows), None, np.stack(buffers))


def _near_weights(problem: Problem) -> NDArray[np.int32]:
    """Every op where most bytes of its weights are; one without weights where its inputs are."""
    a = problem.arrays
    fixed = a.allowed.sum(axis=1) == 1
    device = np.where(fixed, a.allowed.argmax(axis=1), -1).astype(np.int32)
    fallback = int(accelerators_first(problem)[0])
    for op in np.flatnonzero(a.scheduled & ~fixed).tolist():
        tensors = a.inputs[a.first_input[op] : a.first_input[op + 1]]
        sources = a.producer[tensors]
        weights = sources[a.is_weight[sources]]
        if len(weights):
            sizes = np.bincount(device[weights].clip(0), a.resident[weights] + 1, a.devices)
            device[op] = int(sizes.argmax())
        else:
            inputs = [int(device[source]) for source in sources if a.scheduled[source]]
            device[op] = inputs[-1] if inputs else fallback
    return problem.legalize(np.where(device < 0, fallback, device))


def _stagings(problem: Problem, placement: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """Buffers on all devices that read remote weights, for some consecutive readers each."""
    a = problem.arrays
    streamed = a.streamed_bytes(placement)
    choices: dict[bytes, NDArray[np.int64]] = {}
    for lookahead in LOOKAHEAD:
        staging = np.full(a.devices, NO_STAGING, dtype=np.int64)
        for device in range(a.devices):
            sizes = streamed[(placement == device) & (streamed > 0)]
            if len(sizes):
                ends = np.concatenate([[0], sizes.cumsum()])
                count = min(lookahead, len(sizes))
                staging[device] = int((ends[count:] - ends[: len(ends) - count]).max())
        if (staging >= 0).any():
            choices.setdefault(staging.tobytes(), staging)
    return list(choices.values())
