"""Runs of `benchmarks.learning.arms`: an arm of a system, or a method beside it, on one row."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import placewright as pw
from benchmarks.learning.rows import ONE_DEVICE, SYSTEMS, find_row
from placewright import solvers
from placewright.training import Regularization, Reinforce, Trainer
from placewright.training.environment import best_plan
from placewright.training.go.demonstrations import (
    Demonstration,
    DemonstrationTask,
    initial_plan,
)
from placewright.training.recipes.arms import has_teacher, with_arm

if TYPE_CHECKING:
    from benchmarks.learning.rows import Row
    from placewright import Problem
    from placewright.policies.colocrl.policy import ColocRL
    from placewright.training import Recipe

TEACHER_SHARE = 0.5
"""The share of a run's plans that its teacher may judge."""
POINTS = 50  # of a learning curve that are saved
_MAX_STEPS = 400  # of the control that is taught one device
UNSEEDED = ("expert", "single device", "bound")
"""What does not depend on a seed or on the number of plans."""
BESIDE = ("local search", "auto", *UNSEEDED)
"""What stands beside the arms of a row."""


@dataclass(frozen=True)
class Run:
    """One arm, or one method of `BESIDE`, on one row with one seed."""

    system: str
    row: str
    arm: str
    seed: int
    plans: int

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(asdict(self))

    def __call__(self) -> dict[str, Any]:
        problem = find_row(self.system, self.row).problem()
        began = time.process_time()
        figures = self._method(problem) if self.arm in BESIDE else self._train(problem)
        return {**asdict(self), **figures, "cpu_seconds": round(time.process_time() - began, 2)}

    def _method(self, problem: Problem) -> dict[str, Any]:
        if self.arm == "bound":
            return {"best": solvers.bound(problem).seconds, "over": 0, "judged": 0}
        searches: dict[str, solvers.Solver] = {
            "auto": solvers.Auto(chains=1),
            "local search": SYSTEMS[self.system].search,
            "expert": solvers.Expert(),
            "single device": solvers.SingleDevices(),
        }
        limit = None if self.arm in UNSEEDED else pw.MaxEvaluations(self.plans)
        result = pw.solve(problem, searches[self.arm], stop=limit, seed=self.seed)
        return {
            "best": result.objective_value,
            "over": int(result.overflow),
            "judged": result.evaluations,
            "curve": [[count, best] for count, _, best in result.history],
        }

    def _train(self, problem: Problem) -> dict[str, Any]:
        arm = "never learns" if self.arm == ONE_DEVICE else self.arm
        recipe = with_arm(SYSTEMS[self.system].recipe(), arm)
        taught_by, figures = None, {}
        teacher_plans = 0
        if self.system == "go":
            row = find_row(self.system, self.row)
            taught_by, teacher_plans = demonstrate(row, problem, recipe, self.plans, self.seed)
            figures["teacher"] = taught_by.best_objective if has_teacher(recipe) else None
        environment = recipe.environment(problem, demonstration=taught_by)
        budget = self.plans - teacher_plans
        trainer = Trainer([environment], recipe, self.seed, budget, device="cpu")
        if self.arm == ONE_DEVICE:
            teach_one_device(trainer)
        trainer.run()
        hooks: Any = trainer.hooks
        (over, best), curve = (
            environment.best_key,
            [[count, value] for count, _, value in environment.history],
        )
        if self.system == "go":  # a plan of its teacher is not its own
            over, best = hooks.best_keys[0]
            curve = [[count, value] for count, _, value in hooks.curves[0]]
        updates = [row for row in trainer.log if not math.isnan(row.mean)]
        points = sorted({(len(updates) - 1) * at // (POINTS - 1) for at in range(POINTS)})
        return {
            **figures,
            "best": best,
            "over": int(over),
            "found_by": environment.found_by,
            "judged": environment.evaluations + teacher_plans,
            "teacher_plans": teacher_plans,
            "greedy": next((row.greedy for row in updates[::-1] if row.greedy == row.greedy), None),
            "entropy": _finite(updates[0].entropy, updates[-1].entropy),
            "unfit_share": float(np.mean([row.infeasible for row in updates])),
            "curve": [[count + teacher_plans, value] for count, value in curve],
            "learned": [
                [row.plans + teacher_plans, *_finite(row.mean, row.greedy, row.entropy)]
                for row in (updates[at] for at in points)
            ],
        }


def demonstrate(
    row: Row, problem: Problem, recipe: Recipe, plans: int, seed: int
) -> tuple[Demonstration, int]:
    """`auto`'s plan with a share of a run's plans; GO's own first plan without a teacher.

    Args:
        plans: The plans of the whole run.

    Returns:
        The demonstration, and the plans that were judged for it.
    """
    plan, judged = initial_plan(problem), 1
    if has_teacher(recipe):
        result = pw.solve(
            problem,
            solvers.Auto(chains=1, exact=False, proposers=()),
            stop=pw.MaxEvaluations(int(plans * TEACHER_SHARE)),
            seed=seed,
        )
        plan, judged = result.plan, result.evaluations
    # a policy decides on devices and order alone: weights that the plan streams stay resident
    verdict = pw.judge(problem, plan.placement, plan.priority)
    return (
        Demonstration(
            DemonstrationTask(row.network, row.cluster, problem.discipline),
            problem,
            ("auto" if has_teacher(recipe) else "start",),
            plan.placement[None].copy(),  # a checkpoint makes a tensor of it, which may be written
            verdict.value,
            verdict.overflow,
        ),
        judged,
    )


def teach_one_device(trainer: Trainer) -> None:
    """Train ColocRL until its likeliest plan is the best single device; those plans are counted.

    Raises:
        RuntimeError: It has not learned that in `_MAX_STEPS` steps.
    """
    (environment,), policy = trainer.environments, cast("ColocRL", trainer.policy)
    problem = environment.problem
    placements = problem.single_device_placements()
    outcome = environment.judge(placements, "single device")
    best = placements[best_plan(outcome)]
    first_op = np.unique(policy.grouping(problem).group, return_index=True)[1]
    drawn = policy.act(problem, 1, 0)
    target = replace(
        drawn, actions={"device": best[first_op][None]}, placements=best[None].astype(np.int32)
    )
    terms = Regularization(self_imitation=1.0, best_episode=target)
    for step in range(_MAX_STEPS):
        episodes = policy.act(problem, 4, step)
        if (policy.act(problem, 1, 0, greedy=True).placements[0] == best).all():
            return
        credit = np.zeros((len(episodes), 1))
        Reinforce().update(policy, problem, episodes, credit, trainer.optimizer, terms)
    raise RuntimeError(f"the policy has not learned one device in {_MAX_STEPS} steps")


def _finite(*values: float) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a run from others, given its line."""
    return tuple(row[name] for name in Run.__dataclass_fields__)
