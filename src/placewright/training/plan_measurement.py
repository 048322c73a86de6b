"""Measured training: plans are run on this machine, and their step times replace simulated ones.

Each measured plan is in a journal before the next one is run. Samples depend on the seed, the
update's number and earlier times alone, so that a run that was stopped at any moment makes the same
plans again from its last checkpoint, and finds those that it has measured in the journal.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, ExecutionError
from placewright.files.journal import Journal
from placewright.files.storage import make_folder
from placewright.plan import Plan
from placewright.profiling.selection import MeasuredCandidate
from placewright.solvers.cautious_choice import plan_candidate, single_device_candidates
from placewright.training.environment import simulate_plans

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from placewright.outcome import Outcome
    from placewright.problem import Problem
    from placewright.runtime import Meter
    from placewright.training.environment import Environment
    from placewright.training.recipes.base import Recipe

JOURNAL_FILE = "measurements.journal"
"""The journal of measured plans in the folder of a run."""


@dataclass(frozen=True)
class PlanMeasurement:
    """Judges plans by running them: the `measure` of an environment.

    A plan over the memory limits is not run; it takes as long as the simulator says.
    """

    meter: Meter

    def __call__(
        self,
        problem: Problem,
        placements: NDArray[np.int32],
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
    ) -> Outcome:
        """The measured times of plans × ops.

        Raises:
            ConfigError: Plans fuse ops, or the objective is no step time.
        """
        if problem.objective != "step":
            raise ConfigError(
                f"plans are measured one step at a time, and the objective is the "
                f"{problem.objective}: train for the step, or without measuring"
            )
        if fusion is not None and (fusion >= 0).any():
            raise ConfigError(
                "the policy fuses ops, which the runtime cannot run: train another recipe, or "
                "without measuring"
            )
        simulated = simulate_plans(problem, placements, priority)
        fits, seconds = simulated.overflow == 0, simulated.seconds.copy()
        if fits.any():
            orders = None if priority is None else priority[fits]
            seconds[fits] = self.meter(problem, placements[fits], orders).seconds
        return replace(simulated, seconds=seconds)


@contextmanager
def open_measured_environment(
    recipe: Recipe, problem: Problem, meter: Meter, folder: Path
) -> Iterator[Environment]:
    """An environment whose plans are measured, with a journal in the folder of the run.

    Rewards are relative to the fastest single device, which is measured first; to the simulator's
    reference where none fits or can be run.

    Raises:
        FileError: The folder cannot be made, or its journal cannot be used.
    """
    make_folder(folder)
    with Journal(folder / JOURNAL_FILE) as journal, meter:
        meter.journal = journal
        environment = recipe.environment(problem, PlanMeasurement(meter))
        fastest = min(
            (each.measurement.seconds for each in measured_devices(problem, meter)),
            default=math.inf,
        )
        if math.isfinite(fastest):
            environment.reference_seconds = fastest
        yield environment


def measured_devices(problem: Problem, meter: Meter) -> list[MeasuredCandidate]:
    """Everything on one device, for each device that it fits on, measured once."""
    candidates = single_device_candidates(problem)
    return [MeasuredCandidate(each, meter.measure(each.plan)) for each in candidates]


def measured_best(environment: Environment, meter: Meter) -> MeasuredCandidate:
    """The best plan of an environment with its measurement.

    Raises:
        ExecutionError: None of its plans fits and could be run.
    """
    problem = environment.problem
    if environment.best_placement is None or environment.best_key[0] > 0:
        failures = [each.failure for each in meter.measurements.values() if each.failure]
        reason = failures[-1].strip().partition("\n")[0] if failures else "none fits the memory"
        raise ExecutionError(
            f"none of the {environment.evaluations} plans fits and could be run: train without "
            f"measuring, or mend what kept the last of them from running: {reason}"
        )
    plan = Plan.of(problem, environment.best_placement, environment.best_priority)
    return MeasuredCandidate(
        plan_candidate(problem, plan, environment.found_by), meter.measure(plan)
    )
