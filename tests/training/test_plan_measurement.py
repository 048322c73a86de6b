"""Measured training: which plans are run, and which are not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, simulator, zoo
from placewright.errors import ConfigError, ExecutionError
from placewright.runtime import Measurement, Meter
from placewright.training import Trainer, find_recipe
from placewright.training.plan_measurement import (
    PlanMeasurement,
    measured_best,
    open_measured_environment,
)

pytest.importorskip("torch")


class FixedMeter(Meter):
    """Every plan takes as long as it has ops off the first device, in milliseconds."""

    failure = ""

    def _request(self, plan):
        if self.failure:
            return Measurement(math.inf, failure=self.failure)
        return Measurement(1e-3 * (1 + int((plan.placement != 0).sum())))


@pytest.fixture(scope="module")
def problem() -> Problem:
    """One that half of the plans do not fit."""
    free = Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))
    peak = simulator.judge(free, plans(free)).peak[:, 0]
    return Problem(free.graph, free.cluster, limits={"gpu0": int(np.median(peak))})


def plans(problem):
    rng = np.random.default_rng(0)
    return problem.legalize(rng.integers(0, 3, size=(20, problem.arrays.ops)))


def test_a_plan_over_the_memory_limits_is_not_run_but_simulated(problem):
    meter, rows = FixedMeter("none"), plans(problem)
    outcome, verdict = PlanMeasurement(meter)(problem, rows), simulator.judge(problem, rows)
    fits = verdict.overflow == 0
    assert 0 < fits.sum() < len(rows)
    assert len(meter.measurements) == len({row.tobytes() for row in rows[fits]})
    assert np.array_equal(outcome.overflow, verdict.overflow)
    assert np.array_equal(outcome.seconds[~fits], verdict.value[~fits])
    assert np.array_equal(outcome.seconds[fits], 1e-3 * (1 + (rows[fits] != 0).sum(axis=1)))


def test_what_cannot_be_measured_is_refused(problem):
    measure, rows = PlanMeasurement(FixedMeter("none")), plans(problem)
    with pytest.raises(ConfigError, match="the objective is the period: train for the step"):
        measure(replace(problem, objective="period"), rows)
    fused = np.full(rows.shape, -1, dtype=np.int32)
    assert len(measure(problem, rows, fusion=fused).seconds) == len(rows)
    fused[3, :2] = 0
    with pytest.raises(ConfigError, match="fuses ops, which the runtime cannot run"):
        measure(problem, rows, fusion=fused)


def test_rewards_are_relative_to_the_fastest_single_device_that_fits(problem, tmp_path):
    recipe, roomy = find_recipe("colocrl", groups=4, hidden=4), replace(problem)
    with open_measured_environment(recipe, roomy, FixedMeter("none"), tmp_path / "run") as found:
        devices = roomy.single_device_placements()
        seconds = [1e-3 * (1 + (row != 0).sum()) for row in devices]
        fits = simulator.judge(roomy, np.stack(devices)).overflow == 0
        assert found.reference_seconds == min(np.array(seconds)[fits])


@pytest.mark.parametrize("is_limited", [False, True])
def test_where_no_plan_can_be_run_the_error_has_the_cause(problem, tmp_path, is_limited):
    """Also where the best plan is one that does not fit, and was simulated."""
    problem = problem if is_limited else Problem(problem.graph, problem.cluster)
    recipe, meter = find_recipe("colocrl", groups=4, hidden=4), FixedMeter("none")
    meter.failure = "no such device\nand more"
    with open_measured_environment(recipe, problem, meter, tmp_path) as environment:
        if is_limited:
            environment.judge(plans(problem), "test")
            assert environment.best_key[0] > 0
        else:
            Trainer([environment], recipe, 0, 10, device="cpu").run()
            assert environment.best_placement is None
        with pytest.raises(ExecutionError, match=r"last of them from running: no such device$"):
            measured_best(environment, meter)
