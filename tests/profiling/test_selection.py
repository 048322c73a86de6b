"""Plans chosen by measured times: the choice never loses to one device."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from models import Branches, capture, plans, torch

import placewright as pw
from placewright.errors import ConfigError, ExecutionError
from placewright.problem import Constraints
from placewright.profiling.selection import MeasuredChoice, rerank
from placewright.runtime import Measurement, Meter


def build():
    torch.manual_seed(0)
    return Branches().eval(), (torch.randn(4, 8),), {}


@pytest.fixture(scope="module")
def problem():
    return capture(*build()[:2])[1]


SCHEDULED = range(7, 14)  # the ops of `Branches` that are neither weights nor inputs


class FakeMeter(Meter):
    """A meter with made-up times: one device is faster than several."""

    def _request(self, plan):
        placed = {plan.device_names[plan.placement[at]] for at in SCHEDULED}
        return Measurement(1.0 if len(placed) == 1 else 2.0)


def test_the_choice_never_loses_to_the_best_single_device(problem):
    assert [at for at in range(14) if problem.arrays.scheduled[at]] == list(SCHEDULED)
    ranked = rerank(problem, plans(problem, 5), FakeMeter(build), k=2)
    assert len(ranked) == 4  # two plans, two devices
    assert ranked[0].candidate.found_by.startswith("all on cpu")
    assert [one.measurement.seconds for one in ranked] == [1, 1, 2, 2]
    choice = MeasuredChoice(FakeMeter(build), k=2)
    result = pw.solve(problem, pw.solvers.Auto(), pw.MaxEvaluations(200), select=choice)
    assert result.found_by in ("single", "all on cpu0", "all on cpu1")
    assert len(choice.ranking) >= 3
    with pytest.raises(ConfigError, match="expected 1 or more"):
        MeasuredChoice(FakeMeter(build), k=0)


class UnlimitedMeter(FakeMeter):
    """Measures on devices that have more than their limits; some plans cannot be run."""

    fails = "none"

    def _request(self, plan):
        placed = {plan.device_names[plan.placement[at]] for at in SCHEDULED}
        fails = self.fails == "all" or (self.fails == "spread" and len(placed) > 1)
        if fails:
            return Measurement(math.inf, failure=f"no room for {len(placed)}\nbecause of it")
        return Measurement(1.0 if len(placed) == 1 else 2.0)


def test_a_plan_over_the_limit_is_not_chosen_however_fast(problem):
    """All on one device is over the limit, and would be faster."""
    alone = pw.Plan.of(problem, problem.legalize(np.zeros(len(problem.graph), dtype=int)))
    most = int(pw.simulate(problem, alone).peak.max())
    limits = dict.fromkeys(("cpu0", "cpu1"), most - 1)
    limited = replace(problem, constraints=Constraints(limits=limits))
    fits = [one for one in plans(problem, 20) if not pw.simulate(limited, one).overflow][:2]
    assert len(fits) == 2
    ranked = rerank(limited, [alone, *fits], UnlimitedMeter(build))
    assert [one.measurement.seconds for one in ranked] == [2, 2, 1]
    assert [one.candidate.key[0] > 0 for one in ranked] == [False, False, True]
    failing = UnlimitedMeter(build)
    failing.fails = "spread"
    with pytest.raises(ExecutionError, match="none of the 2 plans that fit the memory could be"):
        rerank(limited, [alone, *fits], failing)
    tight = replace(problem, constraints=Constraints(limits=dict.fromkeys(limits, 1)))
    over = rerank(tight, [*fits, alone], failing)
    assert over[0].measurement.seconds == 1  # nothing fits: then what could be run


def test_where_no_plan_could_be_run_there_is_no_choice(problem):
    failing = UnlimitedMeter(build)
    failing.fails = "all"
    message = r"none of the 4 plans could .* of them: no room for \d$"
    with pytest.raises(ExecutionError, match=message):
        rerank(problem, plans(problem, 2), failing)
    with pytest.raises(ExecutionError, match="plans could be run"):
        pw.solve(problem, pw.solvers.Auto(), pw.MaxEvaluations(50), select=MeasuredChoice(failing))
