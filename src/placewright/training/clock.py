"""Simulated op times for policies that read them: a policy itself knows no simulator."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from placewright import simulator
from placewright.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.training.trainer import Trainer

_ready_problems: WeakKeyDictionary[Problem, Problem] = WeakKeyDictionary()


class SimulatorClock:
    """The clock of `policies.Clock`, by the simulator."""

    def op_starts(self, problem: Problem, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Plans × ops: seconds at which each op starts; equal plans are simulated once."""
        distinct, inverse = np.unique(placements, axis=0, return_inverse=True)
        starts = [
            simulator.simulate(problem, Plan.of(problem, placement)).start for placement in distinct
        ]
        return np.stack(starts)[inverse.reshape(-1)]

    def op_times(
        self, problem: Problem, placements: NDArray[np.int32], priority: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Plans × ops: when a ready executor starts and ends each op."""
        return ready_times(problem, placements, priority)


class CountingClock(SimulatorClock):
    """The clock of a trainer's policy: plans simulated inside an episode count as judged."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def op_starts(self, problem: Problem, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        if not self.trainer.policy.judges_steps:  # those are judged again with each step
            for environment in self.trainer.environments:
                if environment.problem is problem:
                    environment.evaluations += len(placements)
        return super().op_starts(problem, placements)


def ready_times(
    problem: Problem, placements: NDArray[np.int32], priority: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Plans × ops: when a ready executor starts and ends each op."""
    ready = _ready_problem(problem)
    template = Plan.of(ready, placements[0], priority[0])  # checked; its names serve for all plans
    timelines = [
        simulator.simulate(ready, replace(template, placement=placement, priority=row_priority))
        for placement, row_priority in zip(placements, priority, strict=True)
    ]
    starts = np.stack([timeline.start for timeline in timelines])
    return starts, np.stack([timeline.end for timeline in timelines])


def _ready_problem(problem: Problem) -> Problem:
    if problem.discipline == "ready":
        return problem
    if problem not in _ready_problems:
        ready_problem = replace(problem, discipline="ready").with_arrays(**_array_fields(problem))
        _ready_problems[problem] = ready_problem
    return _ready_problems[problem]


def _array_fields(problem: Problem) -> dict[str, Any]:
    """The problem's arrays, which may differ from those of its graph and cluster."""
    return {
        array_field.name: getattr(problem.arrays, array_field.name)
        for array_field in fields(problem.arrays)
    }
